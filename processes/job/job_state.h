// The state of one rank of a job: its activity, and whether the job has failed. Thread-safe.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "processes/job/activity.h"
#include "processes/job/bounded_store.h"
#include "processes/job/device_watch.h"
#include "processes/job/job_board.h"
#include "processes/job/status_server.h"

namespace dtensor::internal {

// Error (c10::DistError) with `text`.
[[noreturn]] void throw_failure(const std::string& text);

class JobState {
 public:
  JobState(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, std::chrono::milliseconds timeout);

  // Starts and ends the threads that watch for the others' failures and answer their questions, and those of this
  // user's tools. `id`: of the job, from agree_on_id(); `answer`: the answer to the tools.
  void start_listening(const std::string& id, std::function<std::string()> answer);
  void stop_listening();

  bool failed() const noexcept { return failure_->is_set.load(std::memory_order_acquire); }
  std::string failure_text() const { return failed() ? failure_->text : ""; }
  // Whether a call has reported the failure to the program.
  bool is_told() const noexcept { return told_; }
  [[noreturn]] void throw_known_failure() {  // REQUIRES: failed()
    told_ = true;
    throw_failure(failure_text());
  }
  void close(const std::string& text);  // as if the job had failed so, for this process alone
  // Posts to all ranks that `culprit` failed. The first failure counts: returns its text.
  std::string post_failure(int64_t culprit, const std::string& message);
  // Fails the job for an error in `activity`, which needs `members`, and blames the rank whose fault it is. Returns the
  // failure's text. `overdue`: the error is that it took too long.
  std::string fail_activity(const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                            bool overdue);
  [[noreturn]] void throw_activity_failure(const Activity& activity, absl::Span<const int64_t> members,
                                           const std::string& error, bool overdue) {
    const std::string text = fail_activity(activity, members, error, overdue);
    told_ = true;
    throw_failure(text);
  }
  // Whether a member will certainly not come to `activity`.
  bool any_gone(const Activity& activity, absl::Span<const int64_t> members);

  void record_begin(const Activity& activity);  // this rank has come to it
  RankStatus status() const;

  // While this exists, its thread waits in `activity`; the others get that when they ask.
  class Waiting {
   public:
    Waiting(JobState& state, const Activity& activity);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    JobState& state_;
    std::list<std::pair<Activity, std::chrono::steady_clock::time_point>>::iterator position_;
  };

  const c10::intrusive_ptr<BoundedStore>& store() const { return store_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  JobBoard& board() { return board_; }
  DeviceWatch& devices() { return devices_; }

 private:
  void listen();
  void listen_once();
  bool set_failure_text(std::string text);  // false: the job has failed before
  void set_failure(std::string text);
  std::vector<int64_t> others(absl::Span<const int64_t> members) const;

  struct Failure {
    std::atomic<bool> is_set{false};
    std::string text;  // written once, before `is_set`; `mutex_` orders the writers
  };
  // The job's. Shared with `store_`, which backends may keep.
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::atomic<bool> told_{false};
  const c10::intrusive_ptr<BoundedStore> world_store_;  // also serves the others until this ends
  const c10::intrusive_ptr<BoundedStore> store_;        // the same; no wait there goes on when the job has failed
  const int64_t rank_, size_;
  const std::chrono::milliseconds timeout_;
  JobBoard listener_board_;  // of the listening thread, so that it never waits for the others
  JobBoard board_;           // of all other threads

  mutable std::mutex mutex_;  // of all below, but for `listener_` and `devices_`
  std::condition_variable stopping_;
  bool stop_ = false;
  std::list<std::pair<Activity, std::chrono::steady_clock::time_point>>
      waiting_;           // the activities that threads wait in, since when
  RankStatus begun_;      // begun calls; `active` and `what` are those of `waiting_`
  int64_t answered_ = 0;  // the last question
  std::thread listener_;
  DeviceWatch devices_;
  std::unique_ptr<StatusServer> status_server_;
};

}  // namespace dtensor::internal
