// A job's calls that need several ranks: begins them, and waits no longer than the deadline.
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/error_message.h"
#include "processes/job/find_culprit.h"
#include "processes/job/job.h"
#include "processes/job/job_state.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPoll{100};           // how soon a wait notices that the job has failed
constexpr Milliseconds kCheckMembers{1000};  // how often a wait looks whether the other members are alive

std::string overdue_text(Milliseconds timeout) { return absl::StrCat("not done within ", seconds_text(timeout)); }

// Takes the scope off this thread while a backend starts its work. The work keeps the thread's debug info, which holds
// the scope with its mesh; a backend's thread keeps its last work; so the mesh would keep the world alive, and the
// world the backend.
class WithoutScope {
 public:
  WithoutScope() { c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr); }
  ~WithoutScope() { c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(info_); }
  WithoutScope(const WithoutScope&) = delete;
  WithoutScope& operator=(const WithoutScope&) = delete;

 private:
  const std::shared_ptr<c10::ThreadLocalDebugInfo> info_ = c10::ThreadLocalDebugInfo::current();
};

}  // namespace

void Job::wait_until(const Activity& activity, absl::Span<const int64_t> members, const std::function<bool()>& ready) {
  const auto begin = Clock::now();
  auto look_again = begin + kCheckMembers;
  auto pause = std::chrono::microseconds(200);
  check_process();
  const JobState::Waiting waiting(*state_, activity);
  try {
    while (!ready()) {
      check();
      if (Clock::now() - begin >= timeout()) {
        state_->throw_activity_failure(activity, members, overdue_text(timeout()), /*overdue=*/true);
      }
      if (Clock::now() >= look_again) {
        look_again = Clock::now() + kCheckMembers;
        if (state_->any_gone(activity, members)) {
          state_->throw_activity_failure(activity, members, "another rank is gone", /*overdue=*/false);
        }
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(20000));
    }
  } catch (const c10::DistError&) {
    if (state_->failed()) state_->throw_known_failure();
    throw;
  } catch (const std::exception& e) {
    state_->throw_activity_failure(activity, members, message_of(e), /*overdue=*/false);
  }
}

void Job::come_to(const Activity& activity) { state_->record_begin(activity); }

struct Job::Begun {
  Activity activity;
  std::vector<int64_t> members;
  c10::intrusive_ptr<c10d::Work> work;  // null: it is done
  Clock::time_point since;              // the deadline counts from here, as the backend's own does
};

std::shared_ptr<Job::Begun> Job::begin(Activity activity, absl::Span<const int64_t> members,
                                       const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  check();
  auto begun = std::make_shared<Begun>();
  begun->activity = std::move(activity);
  begun->members.assign(members.begin(), members.end());
  state_->record_begin(begun->activity);
  const JobState::Waiting waiting(*state_, begun->activity);
  begun->since = Clock::now();
  try {
    const WithoutScope without;
    begun->work = start();
  } catch (const std::exception& e) {
    state_->throw_activity_failure(begun->activity, members, message_of(e),
                                   /*overdue=*/Clock::now() - begun->since >= timeout());
  }
  return begun;
}

bool Job::is_done(const Begun& begun) const { return !begun.work || begun.work->isCompleted(); }

void Job::finish(const Begun& begun) {
  const c10::intrusive_ptr<c10d::Work>& work = begun.work;
  check_process();
  if (!work) return;
  const JobState::Waiting waiting(*state_, begun.activity);
  const auto since = begun.since;
  auto look_again = Clock::now() + kCheckMembers;
  try {
    for (;;) {
      const auto left = std::chrono::duration_cast<Milliseconds>(since + timeout() - Clock::now());
      try {
        work->wait(std::max(Milliseconds(1), std::min(kPoll, left)));
        return;
      } catch (const std::exception&) {
        if (work->isCompleted()) {  // else it is only not ready yet
          work->wait();             // if it has failed, throws why; it may have ended just after the wait above
          return;
        }
      }
      if (state_->failed() || Clock::now() - since >= timeout()) break;
      if (Clock::now() < look_again) continue;
      look_again += kCheckMembers;
      if (state_->any_gone(begun.activity, begun.members)) break;
    }
  } catch (const std::exception& e) {
    fail(begun, e);
  }
  state_->throw_activity_failure(begun.activity, begun.members, overdue_text(timeout()),
                                 /*overdue=*/Clock::now() - since >= timeout());
}

void Job::fail(const Begun& begun, const std::exception& error) {
  state_->throw_activity_failure(begun.activity, begun.members, message_of(error),
                                 /*overdue=*/Clock::now() - begun.since >= timeout());
}

void Job::run(Activity activity, absl::Span<const int64_t> members,
              const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  finish(*begin(std::move(activity), members, start));
}

void Job::launch(Activity activity, absl::Span<const int64_t> members,
                 const std::function<std::function<bool()>()>& start) {
  check();
  state_->record_begin(activity);
  DeviceWatch::Launched launched{std::move(activity), {members.begin(), members.end()}, Clock::now(), {}};
  try {
    const WithoutScope without;
    launched.done = start();
  } catch (const std::exception& e) {
    state_->throw_activity_failure(launched.activity, members, message_of(e),
                                   /*overdue=*/Clock::now() - launched.begin >= timeout());
  }
  state_->devices().add(std::move(launched));
}

void Job::watch_group(std::vector<int64_t> members, std::function<std::string()> error, std::function<void()> abort,
                      std::function<void()> prepare) {
  state_->devices().add_group({std::move(members), std::move(error), std::move(abort)}, std::move(prepare), state_);
}

}  // namespace dtensor::internal
