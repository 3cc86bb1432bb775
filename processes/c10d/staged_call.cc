#include "processes/c10d/staged_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "comm/comm_work.h"

namespace dtensor::internal {
namespace {

// Belongs to the caller's CommWork, to the places until they begin, and to the backend's callbacks. The backend may
// keep those after the world has ended, hence the weak pointer to the world's calls.
class StagedCall : public std::enable_shared_from_this<StagedCall> {
 public:
  StagedCall(const LinkCall& call, std::vector<StartWork> stages, std::function<void()> done)
      : calls_(call.calls),
        activity_(call.activity()),
        members_(call.link.members),
        order_(call.link.order),
        places_(call.reserve(stages.size())),
        stages_(std::move(stages)),
        done_(std::move(done)) {}

  void begin() {
    fill(0);
    if (places_[0]->has_begun()) places_[0]->begun().get();  // an error now is the call's
  }

  // Waits for all stages, and writes the results.
  void finish(CallsUnderWay& calls) {
    for (const auto& place : places_) calls.finish(activity_, members_, place);
    done_();
  }

 private:
  void fill(size_t k) {
    const auto start = [self = shared_from_this(), k] { return self->start(k); };
    order_->fill(places_[k], when_its_turn(calls_, activity_, members_, start));
  }
  c10::intrusive_ptr<c10d::Work> start(size_t k);
  void fail_from(size_t k, std::exception_ptr error);

  const std::weak_ptr<CallsUnderWay> calls_;
  const Activity activity_;
  const std::vector<int64_t> members_;
  const std::shared_ptr<CallOrder> order_;
  const LinkCall::Places places_;  // one per stage
  std::vector<StartWork> stages_;  // each empty when it has begun
  const std::function<void()> done_;
};

c10::intrusive_ptr<c10d::Work> StagedCall::start(size_t k) {
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;  // a backend's thread has no such
    auto work = std::exchange(stages_[k], nullptr)();
    if (k + 1 == stages_.size()) return work;
    if (!work) {
      fill(k + 1);
      return work;
    }
    work->getFuture()->addCallback([self = shared_from_this(), k](c10::ivalue::Future& done) {
      done.hasError() ? self->fail_from(k + 1, done.exception_ptr()) : self->fill(k + 1);
    });
    return work;
  } catch (...) {
    fail_from(k + 1, std::current_exception());
    throw;
  }
}

// The stage before has failed. The others take their turns all the same, with the error: the job must know of it before
// the calls behind them begin.
void StagedCall::fail_from(size_t k, std::exception_ptr error) {
  for (; k < places_.size(); ++k) {
    order_->fill(places_[k], [weak = calls_, before = places_[k - 1], error]() -> CallOrder::Begun {
      const auto calls = weak.lock();
      if (calls == nullptr || !before->has_begun()) std::rethrow_exception(error);
      return calls->guarded([&]() -> CallOrder::Begun {
        const CallOrder::Begun begun = before->begun().get();
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& e) {
          calls->job().fail(*begun, e);
        }
      });
    });
  }
}

// The same where the caller waits: it begins each stage itself.
void run_in_turn(const LinkCall& call, std::vector<StartWork> stages) {
  const Activity activity = call.activity();
  const std::vector<int64_t>& members = call.link.members;
  LinkCall::Places places = call.reserve(stages.size());
  for (size_t k = 0; k < stages.size(); ++k) {
    try {
      call.link.order->fill(places[k], when_its_turn(call.calls, activity, members, std::exchange(stages[k], nullptr)));
      call.calls->finish(activity, members, places[k]);
      places[k].reset();  // and with it the buffers of the stage, before the next one has its own
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      while (++k < places.size()) {  // later calls must not wait for calls that never begin
        call.link.order->fill(places[k], [error]() -> CallOrder::Begun { std::rethrow_exception(error); });
      }
      throw;
    }
  }
}

}  // namespace

void run_stages(const LinkCall& call, std::vector<StartWork> stages, std::function<void()> done) {
  if (call.device.is_cuda()) {  // the stream orders them
    StartWork last;
    if (call.is_async()) last = std::move(stages.back()), stages.pop_back();
    for (StartWork& stage : stages) run(call, std::exchange(stage, nullptr));
    if (!last) return done();
    *call.call.work = wait_on_gpu(call.device, {begin_on_gpu(call, last)}, std::move(done));
    return;
  }
  if (call.is_async()) {
    const auto staged = std::make_shared<StagedCall>(call, std::move(stages), std::move(done));
    staged->begin();
    *call.call.work = std::make_shared<CommWork>([calls = call.calls, staged] { staged->finish(*calls); });
    return;
  }
  run_in_turn(call, std::move(stages));
  done();
}

}  // namespace dtensor::internal
