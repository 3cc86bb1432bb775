#include "processes/c10d/call_order.h"

#include <exception>
#include <utility>

namespace dtensor::internal {

std::vector<std::shared_ptr<CallOrder::Place>> CallOrder::reserve(size_t count) {
  std::vector<std::shared_ptr<Place>> places(count);
  for (auto& place : places) place = std::make_shared<Place>();
  std::lock_guard lock(mutex_);
  waiting_.insert(waiting_.end(), places.begin(), places.end());
  return places;
}

void CallOrder::fill(const std::shared_ptr<Place>& place, std::function<Begun()> begin) {
  std::unique_lock lock(mutex_);
  place->begin_ = std::move(begin);
  if (beginning_) return;  // the thread that is in the loop below comes to this place, too
  beginning_ = true;
  while (!waiting_.empty() && waiting_.front()->begin_) {
    const auto next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      next->promise_.set_value(next->begin_());
    } catch (...) {
      next->promise_.set_exception(std::current_exception());
    }
    next->begin_ = nullptr;  // and its captures
    lock.lock();
  }
  beginning_ = false;
}

}  // namespace dtensor::internal
