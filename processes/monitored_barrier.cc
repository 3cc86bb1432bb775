#include "processes/monitored_barrier.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group.h"
#include "processes/job/bounded_store.h"
#include "processes/job/find_culprit.h"
#include "processes/job/job_board.h"
#include "processes/job/world_job.h"

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr char kPassed[] = "passed";
constexpr Milliseconds kBarrierStoreTimeout{2000};  // of single calls of the store

// A barrier that may wait as long as the job is decided before the job's own deadline, also by a rank that the system
// lets wait a while.
Milliseconds before_deadline(const Job& job) {
  return job.timeout() - std::min(job.timeout() / 10, kBarrierStoreTimeout);
}

// The n-th barrier of some ranks, at the store.
class Barrier {
 public:
  Barrier(Job& job, std::vector<int64_t> ranks, int64_t n, Milliseconds timeout)
      : job_(job), ranks_(std::move(ranks)), n_(n), timeout_(timeout) {
    // The job's own store waits as long as the job's deadline.
    store_ = c10::make_intrusive<BoundedStore>(job.store(), kBarrierStoreTimeout);
  }

  // Waits until it is decided. Returns kPassed or the error's text, the same on all ranks.
  std::string wait() {
    job_.come_to(activity());
    const auto until = Clock::now() + timeout_;
    std::string decision;
    job_.wait_until(activity(), ranks_, [&] {
      try {
        decision = look(Clock::now() >= until);
      } catch (const c10::DistStoreError& e) {
        // It may answer again. If not, wait_until() finds the rank at fault, without the store, and fails the job.
        TORCH_CHECK(Clock::now() < until, e.what_without_backtrace());
      }
      return !decision.empty();
    });
    return decision;
  }

  // Removes the keys of the previous barrier: all ranks have left it.
  void tidy() {
    if (n_ == 1) return;
    try {
      store().deleteKey(here(n_ - 1, job_.rank()));
      if (job_.rank() == ranks_[0]) store().deleteKey(key(n_ - 1, "decision"));
    } catch (const c10::DistError&) {  // it has passed all the same
    }
  }

 private:
  c10d::Store& store() const { return *store_; }
  std::string name() const { return absl::StrCat("monitored_barrier/", absl::StrJoin(ranks_, ",")); }
  std::string what() const { return absl::StrCat("monitored_barrier ", n_, " of ranks ", ranks_text(ranks_)); }
  Activity activity() const { return {name(), n_, what()}; }
  std::string key(int64_t n, const std::string& of) const { return absl::StrCat(name(), "/", n, "/", of); }
  std::string here(int64_t n, int64_t rank) const { return key(n, absl::StrCat("here/", rank)); }
  // The first to decide does so for all.
  std::string decide(const std::string& text) const {
    return store().compareSet(key(n_, "decision"), std::string(), text);
  }

  // The decision, "" if there is none yet; one is made if `late`.
  std::string look(bool late) {
    if (!is_posted_) store().set(here(n_, job_.rank()), "1");
    is_posted_ = true;
    if (store().check({key(n_, "decision")})) return store().get_to_str(key(n_, "decision"));
    if (all_here()) return decide(kPassed);
    return late ? decide(missing_text()) : "";
  }

  bool all_here() {
    while (came_ < ranks_.size() && store().check({here(n_, ranks_[came_])})) ++came_;
    return came_ == ranks_.size();
  }

  // kPassed if the last has come just now.
  std::string missing_text() const {
    std::vector<int64_t> missing;
    for (int64_t rank : ranks_) {
      if (!store().check({here(n_, rank)})) missing.push_back(rank);
    }
    if (missing.empty()) return kPassed;
    JobBoard board(*store_, job_.rank());
    std::vector<std::string> why;  // known reasons for some of them
    for (int64_t rank : missing) {
      const std::string fault = find_fault(board, rank, activity(), /*only_final=*/false);
      if (!fault.empty()) why.push_back(absl::StrCat("rank ", rank, ": ", fault));
    }
    return absl::StrCat(what(), ": ", missing.size() == 1 ? "rank " : "ranks ", ranks_text(missing),
                        missing.size() == 1 ? " has" : " have", " not come within ", seconds_text(timeout_),
                        why.empty() ? "" : "; ", absl::StrJoin(why, "; "),
                        ". The job has not failed by this: the ranks may call the barrier again, go on, or end");
  }

  Job& job_;
  const std::vector<int64_t> ranks_;  // sorted
  const int64_t n_;
  const Milliseconds timeout_;
  c10::intrusive_ptr<BoundedStore> store_;
  bool is_posted_ = false;  // that this rank is here
  size_t came_ = 0;         // of ranks_, the first that have
};

}  // namespace

void monitored_barrier(const DeviceMesh& mesh, Milliseconds timeout) {
  TORCH_CHECK_VALUE(mesh.defined(), "monitored_barrier: `mesh` is not defined");
  WorldJob& world = mesh.world().attachment<WorldJob>();
  const std::shared_ptr<Job> job = world.job.lock();
  if (job == nullptr || !mesh.contains(job->rank())) return;
  TORCH_CHECK_VALUE(timeout.count() >= 0 && timeout <= job->timeout(), "monitored_barrier: `timeout` is ",
                    timeout.count(), " ms; it must be 0, for the deadline of the job, or up to that, ",
                    job->timeout().count(), " ms (DTENSOR_TIMEOUT)");
  job->check();
  std::vector<int64_t> ranks = mesh.ranks();
  std::sort(ranks.begin(), ranks.end());
  int64_t n = 0;
  {
    std::lock_guard lock(world.mutex);
    n = ++world.barriers[absl::StrJoin(ranks, ",")];
  }
  Barrier barrier(*job, std::move(ranks), n,
                  timeout.count() > 0 ? std::min(timeout, before_deadline(*job)) : before_deadline(*job));
  const std::string decision = barrier.wait();
  if (decision != kPassed) C10_THROW_ERROR(DistError, decision);
  barrier.tidy();
}

}  // namespace dtensor
