// The collectives of a communicator on CPU, and whether its ranks still know where it stands. Thread-safe.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "processes/c10d/call_order.h"
#include "processes/job/job.h"

namespace dtensor::internal {

class CallsUnderWay {
 public:
  using Place = std::shared_ptr<CallOrder::Place>;

  explicit CallsUnderWay(std::shared_ptr<Job> job) : job_(std::move(job)) {}

  Job& job() const { return *job_; }

  // After an error in `body` nothing is sent any more: the others do not know where this rank stands.
  template <typename Body>
  auto guarded(Body body) {
    try {
      return body();
    } catch (const std::exception& e) {
      broken_ = true;
      throw;
    }
  }
  bool broken() const { return broken_; }

  // One that is under way until finish(), which its caller may never call.
  void add(Place place, const Activity& activity);
  // Description of the first of them that is neither done nor will never begin.
  std::optional<std::string> pending();

  // Waits until the turn of `place` comes and what begins then is done. Errors: as of Job::finish.
  void finish(const Activity& activity, absl::Span<const int64_t> members, const Place& place);

 private:
  bool is_done(const Place& place) const;

  const std::shared_ptr<Job> job_;
  std::atomic<bool> broken_{false};
  std::mutex mutex_;
  std::vector<std::pair<Place, std::string>> added_;  // with a description each. Guarded by mutex_
};

}  // namespace dtensor::internal
