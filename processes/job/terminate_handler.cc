#include "processes/job/terminate_handler.h"

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
std::mutex& callbacks_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
using Callback = std::function<void(const std::string&)>;
std::vector<std::pair<const void*, Callback>>& callbacks_by_owner() {
  static auto* callbacks = new std::vector<std::pair<const void*, Callback>>;
  return *callbacks;
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
    std::unique_lock lock(callbacks_mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      for (const auto& [owner, callback] : callbacks_by_owner()) callback(message);
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

void install_terminate_handler() {
  static std::once_flag once;
  std::call_once(once, [] { next_handler = std::set_terminate(on_terminate); });
}

void add_terminate_callback(const void* owner, Callback callback) {
  std::lock_guard lock(callbacks_mutex());
  callbacks_by_owner().emplace_back(owner, std::move(callback));
}

void remove_terminate_callback(const void* owner) {
  std::lock_guard lock(callbacks_mutex());
  auto& callbacks = callbacks_by_owner();
  callbacks.erase(std::remove_if(callbacks.begin(), callbacks.end(), [&](const auto& c) { return c.first == owner; }),
                  callbacks.end());
}

}  // namespace dtensor
