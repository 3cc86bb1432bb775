// The order in which the collectives of one group begin: on every rank the same, that in which they took their places.
// One whose data is still to come holds up those behind it, but not the thread that makes the calls.
//
//   auto places = order->reserve(2);
//   order->fill(places[0], [] { return job->begin(...); });  // called now or, if it must wait for its turn, by a later
//   job->finish(*places[0]->begun().get());                  // fill()
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "processes/job/job.h"

namespace dtensor::internal {

class CallOrder {
 public:
  using Begun = std::shared_ptr<Job::Begun>;

  class Place {
   public:
    // The function's result or error, as soon as its turn has come.
    const std::shared_future<Begun>& begun() const { return begun_; }
    bool has_begun() const { return begun_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

   private:
    friend class CallOrder;
    std::function<Begun()> begin_;
    std::promise<Begun> promise_;
    const std::shared_future<Begun> begun_ = promise_.get_future().share();
  };

  // The last `count` places, one after the other: no other thread gets a place between them.
  std::vector<std::shared_ptr<Place>> reserve(size_t count);
  // Once per place. Calls one function at a time, without a lock, so that it may fill another place. This must stay
  // alive until it returns.
  void fill(const std::shared_ptr<Place>& place, std::function<Begun()> begin);

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<Place>> waiting_;  // guarded by mutex_
  bool beginning_ = false;                      // guarded by mutex_
};

}  // namespace dtensor::internal
