#include "processes/job/device_watch.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "processes/job/find_culprit.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kIdle{100};       // how soon a broken group is noticed
constexpr Milliseconds kDevicePoll{20};  // how soon work on a device is known to be done
constexpr Milliseconds kAbort{5000};     // how long the end of a job waits for groups to be aborted

}  // namespace

void DeviceWatch::add(Launched launched) {
  std::lock_guard lock(mutex_);
  launched_.push_back(std::make_shared<Launched>(std::move(launched)));
}

void DeviceWatch::add_group(Group group, std::function<void()> prepare, std::shared_ptr<void> alive) {
  std::lock_guard lock(mutex_);
  groups_.push_back(std::make_shared<Group>(std::move(group)));
  if (thread_.joinable()) return;
  thread_ = std::thread([this, prepare = std::move(prepare), alive = std::move(alive)] {
    watch(prepare);
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  });
}

std::shared_ptr<const DeviceWatch::Launched> DeviceWatch::waits_for() const {
  std::lock_guard lock(mutex_);
  return launched_.empty() ? nullptr : launched_.front();
}

void DeviceWatch::job_failed() {
  {
    std::lock_guard lock(mutex_);
    failed_ = true;
  }
  changed_.notify_all();
}

void DeviceWatch::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    std::unique_lock lock(mutex_);
    ended = changed_.wait_for(lock, kAbort, [&] { return ended_; });
  }
  ended ? thread_.join() : thread_.detach();
}

// Takes what is done off the list, and fails the job if the first of the rest cannot end.
void DeviceWatch::look(Clock::time_point& look_again) {
  std::vector<std::shared_ptr<Group>> groups;
  std::shared_ptr<Launched> first;
  const auto next = [&] {
    std::lock_guard lock(mutex_);
    groups = groups_;
    first = launched_.empty() ? nullptr : launched_.front();
  };
  for (next(); first; next()) {
    try {
      if (!first->done()) break;
    } catch (const std::exception& e) {
      return owner_.fail_activity(first->activity, first->members, message_of(e), /*overdue=*/false);
    }
    std::lock_guard lock(mutex_);
    launched_.pop_front();
  }
  for (const auto& group : groups) {
    const std::string error = group->error();
    if (error.empty()) continue;
    const Activity none{"", 0, "a group of ranks " + absl::StrJoin(group->members, ",")};
    return owner_.fail_activity(first ? first->activity : none, group->members, error, /*overdue=*/false);
  }
  if (!first) return;
  const auto now = Clock::now();
  if (now - first->begin >= timeout_) {
    owner_.fail_activity(first->activity, first->members, absl::StrCat("not done within ", seconds_text(timeout_)),
                         /*overdue=*/true);
  } else if (now >= look_again) {
    look_again = now + Milliseconds(1000);
    if (!owner_.any_gone(first->activity, first->members)) return;
    owner_.fail_activity(first->activity, first->members, "a rank is gone", /*overdue=*/false);
  }
}

void DeviceWatch::watch(const std::function<void()>& prepare) {
  try {
    prepare();
  } catch (const std::exception& e) {
    owner_.fail(message_of(e));
  }
  auto look_again = Clock::now() + Milliseconds(1000);
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, launched_.empty() ? kIdle : kDevicePoll, [&] { return stop_ || failed_; });
      if (failed_) break;
      if (stop_) return;
    }
    try {
      look(look_again);
    } catch (const std::exception& e) {
      owner_.fail(message_of(e));
    }
  }
  std::vector<std::shared_ptr<Group>> groups;
  {
    std::lock_guard lock(mutex_);
    groups = groups_;
    launched_.clear();
  }
  // At once: to free one group's resources, CUDA may wait for another that still runs on the same device.
  std::vector<std::thread> aborts;
  for (const auto& group : groups) {
    aborts.emplace_back([group] {
      try {
        group->abort();
      } catch (const std::exception&) {
        // The failure is known already; this group's work may go on until the process ends.
      }
    });
  }
  for (std::thread& abort : aborts) abort.join();
}

}  // namespace dtensor::internal
