#include "processes/c10d/calls_under_way.h"

#include <algorithm>
#include <chrono>

namespace dtensor::internal {
namespace {

constexpr std::chrono::milliseconds kLook(
    100);  // how often a call that waits for its turn looks whether the job has failed

}  // namespace

void CallsUnderWay::add(Place place, const Activity& activity) {
  std::lock_guard lock(mutex_);
  added_.erase(std::remove_if(added_.begin(), added_.end(), [&](const auto& a) { return is_done(a.first); }),
               added_.end());
  added_.emplace_back(std::move(place), activity.what);
}

std::optional<std::string> CallsUnderWay::pending() {
  std::lock_guard lock(mutex_);
  for (const auto& [place, what] : added_) {
    if (!is_done(place)) return what;
  }
  return std::nullopt;
}

void CallsUnderWay::finish(const Activity& activity, absl::Span<const int64_t> members, const Place& place) {
  guarded([&] {
    const auto has_begun = [&] { return place->begun().wait_for(kLook) == std::future_status::ready; };
    if (!place->has_begun()) job_->wait_until(activity, members, has_begun);
    job_->finish(*place->begun().get());
  });
  std::lock_guard lock(mutex_);
  added_.erase(std::remove_if(added_.begin(), added_.end(), [&](const auto& a) { return a.first == place; }),
               added_.end());
}

bool CallsUnderWay::is_done(const Place& place) const {
  if (!place->has_begun()) return false;
  try {
    return job_->is_done(*place->begun().get());
  } catch (const std::exception&) {  // it never began
    return true;
  }
}

}  // namespace dtensor::internal
