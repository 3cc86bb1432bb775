// The processes that run one program together, from one's point of view.
//
// They communicate through a store (c10d::Store). A failing rank writes its failure there, and every other rank sees it
// within a fraction of a second, also inside a collective that would never end. A rank that waits too long asks the
// others for their activity, so that the error names the missing rank instead of the waiting one.
//
// Nothing here waits without a deadline. Thread-safe.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "processes/job/activity.h"

namespace c10d {
class Store;
class Work;
}  // namespace c10d

namespace dtensor::internal {

class BoundedStore;  // bounded_store.h
class JobState;      // job_state.h
struct GroupCalls;   // job_end.h

class Job {
 public:
  // `store`: shared by all ranks of this job only, under this prefix. Announces this rank to the others, without
  // waiting for them. Starts a thread that watches for their failures.
  Job(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, std::chrono::milliseconds timeout);
  // Announces that this rank has left; during stack unwinding, that it failed. Does not throw, and waits no longer than
  // the threads need to notice; for calls of `abort` that are under way, a few seconds. Where the process ends before
  // that, the rank leaves as exit() begins, and check() throws from then on. In a fork's child nothing is done.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int64_t rank() const;
  int64_t size() const;
  std::chrono::milliseconds timeout() const;
  const c10::intrusive_ptr<BoundedStore>& store() const;  // no call waits longer than timeout()
  // Whether all ranks are on this host. Waits for their host names. Errors: the deadline, naming the missing ranks; at
  // once, that this rank was started with another world size, DTENSOR_DEBUG or version than the first to come.
  bool one_host() const;

  // Error (c10::DistError) "rank 2 failed: ..." if some rank has failed, this one included. Error (c10::Error) in a
  // process that was forked from the job's. Costs a system call that does not wait.
  void check() const;
  bool failed() const noexcept;
  bool is_here() const noexcept;  // false in a process that was forked from the job's: it has none of its threads
  // Makes every other rank fail with `message`. The first to fail counts; what comes later changes nothing. `culprit`:
  // another rank whose fault it is.
  void fail(const std::string& message) noexcept { fail_as(rank(), message); }
  void fail_as(int64_t culprit, const std::string& message) noexcept;

  // Runs `start`, which begins something that needs the other `members`, and waits for it to end.
  // Errors: what `start` and the work throw, a rank's failure, the deadline; each with the rank to blame where one can
  // be found, and the same on all ranks.
  void run(Activity activity, absl::Span<const int64_t> members,
           const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  // The same in two halves: the result of begin() goes to finish(), or is dropped.
  struct Begun;
  std::shared_ptr<Begun> begin(Activity activity, absl::Span<const int64_t> members,
                               const std::function<c10::intrusive_ptr<c10d::Work>()>& start);
  void finish(const Begun& begun);
  // Like finish() of a call that ended with `error`, for ranks that the backend notifies first.
  [[noreturn]] void fail(const Begun& begun, const std::exception& error);
  bool is_done(const Begun& begun) const;  // finish() would not wait
  // The same for work on a device, without waiting for it: `start` begins it, orders the current stream behind it, and
  // returns a function that says, without waiting, whether the device has done it. That is asked on another thread,
  // which fails the job if the deadline passes, a member is gone or the function throws.
  // Errors: what `start` throws and a rank's failure, as above.
  void launch(Activity activity, absl::Span<const int64_t> members,
              const std::function<std::function<bool()>()>& start);
  // When the job fails, `abort` is called, once and on another thread, so that work on the device ends that waits for
  // ranks which will not come. `error`, asked many times a second on that thread, says what is wrong with the group, ""
  // for nothing: that fails the job. `prepare` of the first group is called on that thread, before all else. All three
  // are kept as long as the Job.
  void watch_group(
      std::vector<int64_t> members, std::function<std::string()> error, std::function<void()> abort,
      std::function<void()> prepare = [] {});
  // Announces that this rank has reached `activity`, for ranks that wait for it there.
  void come_to(const Activity& activity);
  // Waits until `ready()` is true, asking again and again. Errors: as of run().
  void wait_until(const Activity& activity, absl::Span<const int64_t> members, const std::function<bool()>& ready);
  // Announces that this rank makes no more calls, and waits until the members of `groups` do so, too: see end_calls().
  // Does nothing where the process is ending with another status than 0. Does not throw.
  void end(const std::vector<GroupCalls>& groups) noexcept;
  // Declares that this process is this rank only: if the job has failed by the end of end(), and no call has reported
  // that to the program, the failure is written to stderr, and the process does not end with 0.
  void decide_exit_status() noexcept { decides_exit_status_ = true; }

 private:
  void check_process() const;
  void leave() noexcept;

  const int64_t process_;
  std::atomic<bool> left_{false}, decides_exit_status_{false};
  std::shared_ptr<JobState> state_;
};

}  // namespace dtensor::internal
