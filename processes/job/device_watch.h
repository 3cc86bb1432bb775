// Watches calls that run on devices while the host does not wait: they must end in time, and the other ranks they need
// must be alive. When the job fails, the groups on devices are aborted. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "processes/job/activity.h"

namespace dtensor::internal {

class DeviceWatch {
 public:
  // Its callbacks to the job, called on its own thread.
  struct Owner {
    std::function<void(const Activity&, absl::Span<const int64_t> members, const std::string& error, bool overdue)>
        fail_activity;
    std::function<bool(const Activity&, absl::Span<const int64_t> members)> any_gone;
    std::function<void(const std::string& error)> fail;  // it cannot watch
  };
  // Work on a device that may not be done yet.
  struct Launched {
    Activity activity;
    std::vector<int64_t> members;
    std::chrono::steady_clock::time_point begin;
    std::function<bool()> done;
  };
  // As in Job::watch_group.
  struct Group {
    std::vector<int64_t> members;
    std::function<std::string()> error;
    std::function<void()> abort;
  };

  DeviceWatch(std::chrono::milliseconds timeout, Owner owner) : timeout_(timeout), owner_(std::move(owner)) {}

  void add(Launched launched);
  // The first one starts the thread, which keeps `alive`, the owner of this object, and begins with `prepare`.
  void add_group(Group group, std::function<void()> prepare, std::shared_ptr<void> alive);
  std::shared_ptr<const Launched> waits_for() const;  // the first that is not known to be done; null: none

  void job_failed();  // aborts all groups, on the thread
  // Ends the thread. Aborts that are under way get 5 s, and then end with the process.
  void stop();

 private:
  void watch(const std::function<void()>& prepare);
  void look(std::chrono::steady_clock::time_point& look_again);

  const std::chrono::milliseconds timeout_;
  const Owner owner_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool failed_ = false, stop_ = false, ended_ = false;
  std::deque<std::shared_ptr<Launched>> launched_;  // in the order in which they were
  std::vector<std::shared_ptr<Group>> groups_;
  std::thread thread_;
};

}  // namespace dtensor::internal
