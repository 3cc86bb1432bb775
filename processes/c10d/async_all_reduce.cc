#include "processes/c10d/async_all_reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "comm/comm_work.h"

namespace dtensor {
namespace {

using Place = std::shared_ptr<CallOrder::Place>;

// Belongs to the caller's CommWork, to the places until they begin, and to the backend's callback. The backend may keep
// that after the world has ended, hence the weak pointer to the world's calls.
class AsyncAllReduce : public std::enable_shared_from_this<AsyncAllReduce> {
 public:
  AsyncAllReduce(const LinkCall& call, std::vector<ExchangeStep> steps)
      : calls_(call.calls),
        activity_(call.activity()),
        members_(call.link.members),
        order_(call.link.order),
        backend_(call.link.backend.get()),
        group_(*call.call.group),
        rank_(call.job().rank()),
        device_(call.device),
        steps_(std::move(steps)),
        first_(pack(steps_[0])) {}

  void begin(CallsUnderWay& calls);
  // Waits for both exchanges, and writes the results.
  void finish(CallsUnderWay& calls);

 private:
  std::shared_ptr<PackedExchange> pack(const ExchangeStep& step) const {
    return std::make_shared<PackedExchange>(group_, rank_, device_, step.messages, step.inputs, step.outputs);
  }
  c10::intrusive_ptr<c10d::Work> start_first();
  c10::intrusive_ptr<c10d::Work> start_second();
  void fill_second();
  void fail_second(std::exception_ptr error);

  const std::weak_ptr<CallsUnderWay> calls_;
  const Activity activity_;
  const std::vector<int64_t> members_;
  const std::shared_ptr<CallOrder> order_;
  c10d::Backend* const backend_;
  const Group group_;
  const int64_t rank_;
  const c10::Device device_;
  std::vector<ExchangeStep> steps_;                 // each empty when it is not needed any more
  std::shared_ptr<PackedExchange> first_, second_;  // the second is made when the first has come
  Place first_place_, second_place_;
};

void AsyncAllReduce::begin(CallsUnderWay& calls) {
  first_place_ = order_->reserve();
  second_place_ = order_->reserve();
  calls.add(first_place_);
  calls.add(second_place_);
  const auto start = [self = shared_from_this()] { return self->start_first(); };
  order_->fill(first_place_, when_its_turn(calls_, activity_, members_, start));
  if (first_place_->has_begun()) first_place_->begun().get();  // an error now is the call's
}

void AsyncAllReduce::finish(CallsUnderWay& calls) {
  calls.finish(activity_, members_, first_place_);
  calls.finish(activity_, members_, second_place_);
  second_->unpack();
  steps_[1].then();
}

c10::intrusive_ptr<c10d::Work> AsyncAllReduce::start_first() {
  try {
    auto work = start_exchange(backend_, first_)();
    work->getFuture()->addCallback([self = shared_from_this()](c10::ivalue::Future& first) {
      first.hasError() ? self->fail_second(first.exception_ptr()) : self->fill_second();
    });
    return work;
  } catch (...) {
    fail_second(std::current_exception());
    throw;
  }
}

void AsyncAllReduce::fill_second() {
  const auto start = [self = shared_from_this()] { return self->start_second(); };
  order_->fill(second_place_, when_its_turn(calls_, activity_, members_, start));
}

c10::intrusive_ptr<c10d::Work> AsyncAllReduce::start_second() {
  const at::AutoDispatchBelowADInplaceOrView guard;
  first_->unpack();
  steps_[0].then();
  first_.reset();
  steps_[0] = {};
  second_ = pack(steps_[1]);
  return start_exchange(backend_, second_)();
}

// The first has failed. The second takes its turn all the same, with the error: the job must know of it before the
// calls behind it begin.
void AsyncAllReduce::fail_second(std::exception_ptr error) {
  order_->fill(second_place_, [weak = calls_, first = first_place_, error]() -> CallOrder::Begun {
    const auto calls = weak.lock();
    if (calls == nullptr || !first->has_begun()) std::rethrow_exception(error);
    return calls->guarded([&]() -> CallOrder::Begun {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        calls->job().fail(*first->begun().get(), e);
      }
    });
  });
}

}  // namespace

void run_all_reduce_async(const LinkCall& call, AllReduceSteps plan) {
  const auto both = std::make_shared<AsyncAllReduce>(call, std::move(plan.steps));
  both->begin(*call.calls);
  *call.call.work = std::make_shared<CommWork>([calls = call.calls, both] { both->finish(*calls); });
}

}  // namespace dtensor
