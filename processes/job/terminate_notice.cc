#include "processes/job/terminate_notice.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "processes/job/error_file.h"

namespace dtensor {
namespace {

// A terminate handler has no arguments. Never destroyed: a thread may end after main.
std::mutex& tells_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
using Tell = std::function<void(const std::string&)>;
std::vector<std::pair<const void*, Tell>>& live_tells() {
  static auto* tells = new std::vector<std::pair<const void*, Tell>>;
  return *tells;
}

std::terminate_handler next_handler = nullptr;

void on_terminate() {
  std::string message = "std::terminate was called";
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& e) {
      message = message_of(e);
    } catch (...) {
      message = "an exception of unknown type";
    }
  }
  {
    std::unique_lock lock(tells_mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      for (const auto& [owner, tell] : live_tells()) tell(message);
    }
  }
  if (const char* file = std::getenv("TORCHELASTIC_ERROR_FILE"); file != nullptr) write_error_file(file, message);
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

std::string message_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : e.what();
}

void tell_others_on_terminate() {
  static std::once_flag once;
  std::call_once(once, [] { next_handler = std::set_terminate(on_terminate); });
}

void tell_on_terminate(const void* owner, Tell tell) {
  std::lock_guard lock(tells_mutex());
  live_tells().emplace_back(owner, std::move(tell));
}

void forget_on_terminate(const void* owner) {
  std::lock_guard lock(tells_mutex());
  auto& tells = live_tells();
  tells.erase(std::remove_if(tells.begin(), tells.end(), [&](const auto& t) { return t.first == owner; }), tells.end());
}

}  // namespace dtensor
