#include "processes/job/terminate_handler.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/error_message.h"
#include "processes/job/error_file.h"
#include "processes/job/process_end.h"

namespace dtensor::internal {
namespace {

// A terminate handler has no arguments. Never destroyed: a thread may end after main.
std::mutex& callbacks_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
using Callback = std::function<void(const std::string&)>;
struct Entry {
  const void* owner;
  pid_t process;  // of the owner
  Callback callback;
};
std::vector<Entry>& entries() {
  static auto* entries = new std::vector<Entry>;
  return *entries;
}

std::terminate_handler next_handler = nullptr;

std::atomic<pid_t> process{0};  // that installed the handler

void report_uncaught(const std::string& message) {
  if (is_fork_of_rank()) return;
  {
    std::unique_lock lock(callbacks_mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      for (const Entry& e : entries()) {
        if (e.process == ::getpid()) e.callback(message);
      }
    }
  }
  if (const char* file = std::getenv("TORCHELASTIC_ERROR_FILE"); file != nullptr) write_error_file(file, message);
}

void on_terminate() {
  yield_to_exit();
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
  report_uncaught(message);
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

void install_terminate_handler() {
  static std::once_flag once;
  std::call_once(once, [] { next_handler = std::set_terminate(on_terminate); });
  process = ::getpid();
}

bool is_fork_of_rank() noexcept { return process != 0 && process != ::getpid(); }

void add_terminate_callback(const void* owner, Callback callback) {
  std::lock_guard lock(callbacks_mutex());
  entries().push_back({owner, ::getpid(), std::move(callback)});
}

void remove_terminate_callback(const void* owner) {
  std::lock_guard lock(callbacks_mutex());
  auto& all = entries();
  all.erase(std::remove_if(all.begin(), all.end(), [&](const Entry& e) { return e.owner == owner; }), all.end());
}

}  // namespace dtensor::internal
