#include "processes/job/process_end.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace dtensor::internal {
namespace {

// How long exit() may take once a thread has failed: more than a rank lingers that serves the store.
constexpr std::chrono::seconds kExit(60);

// One per process. Never destroyed: threads continue after main.
struct Callbacks {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::vector<std::pair<const void*, std::function<void()>>> list;  // guarded by mutex
};

// A fork's child gets new ones: those of its parent may be locked for ever.
std::atomic<Callbacks*> callbacks{nullptr};
Callbacks* callbacks_of_process() {
  Callbacks* all = callbacks.load();
  return all != nullptr && all->process == ::getpid() ? all : nullptr;
}

constexpr int kUnknown = -1;
std::atomic<pid_t> ending_process{0};
std::atomic<int> ending_status{kUnknown};
std::atomic<std::thread::id> ending_thread;
std::atomic<bool> is_0_denied{false};

void call_all(Callbacks& callbacks) {
  std::lock_guard lock(callbacks.mutex);
  while (!callbacks.list.empty()) {
    const auto callback = std::move(callbacks.list.back().second);
    callbacks.list.pop_back();
    callback();
  }
}

void on_end(int status) {
  Callbacks* all = callbacks_of_process();
  if (all == nullptr) return;
  ending_status = status;
  ending_thread = std::this_thread::get_id();
  ending_process = ::getpid();
  call_all(*all);
  if (status != 0 || !is_0_denied) return;
  ending_status = 1;
  ::exit(1);  // glibc goes on with the handlers that are left
}

}  // namespace

void add_end_callback(const void* owner, std::function<void()> callback) {
  static std::mutex mutex;
  Callbacks* all = callbacks_of_process();
  if (all == nullptr) {
    std::lock_guard lock(mutex);
    all = callbacks_of_process();
    if (all == nullptr) callbacks = all = new Callbacks;
    static const bool registered = [] {
      ::at_quick_exit([] { on_end(kUnknown); });
      return ::on_exit([](int status, void*) { on_end(status); }, nullptr) == 0;  // as atexit(), but with the status
    }();
    static_cast<void>(registered);
  }
  std::lock_guard lock(all->mutex);
  all->list.emplace_back(owner, std::move(callback));
}

void remove_end_callback(const void* owner) {
  Callbacks* all = callbacks_of_process();
  if (all == nullptr) return;
  std::lock_guard lock(all->mutex);
  all->list.erase(std::remove_if(all->list.begin(), all->list.end(), [&](const auto& c) { return c.first == owner; }),
                  all->list.end());
}

void yield_to_exit() {
  if (ending_process.load() != ::getpid() || ending_thread.load() == std::this_thread::get_id()) return;
  std::this_thread::sleep_for(kExit);
  ::_exit(ending_status != kUnknown ? ending_status.load() : 1);
}

bool may_exit_with_0() { return ending_process.load() != ::getpid() || ending_status == 0; }

void deny_exit_with_0() { is_0_denied = true; }

}  // namespace dtensor::internal
