#include "processes/c10d/run_exchange.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "processes/c10d/byte_exchange.h"
#include "processes/c10d/first_messages.h"
#include "processes/c10d/staged_call.h"

namespace dtensor::internal {
namespace {

// Shared state of the stages of one exchange. The backend outlives calls that are under way or unfinished, hence the
// pointer: a backend must not be destroyed on one of its own threads, which may hold the last reference.
struct Exchange {
  c10d::Backend* backend;
  std::weak_ptr<CallsUnderWay> calls;
  std::optional<CallMark> mark;
  std::shared_ptr<ByteExchange> bytes;
  std::optional<FirstMessages> first;
};
using ExchangePtr = std::shared_ptr<Exchange>;

c10::intrusive_ptr<c10d::Work> start_exchange(const ExchangePtr& exchange) {
  ByteExchange& bytes = *exchange->bytes;
  auto work = start_alone([&] {
    if (bytes.is_all_gather) return exchange->backend->_allgather_base(bytes.receive, bytes.send);
    return exchange->backend->alltoall_base(bytes.receive, bytes.send, bytes.receive_bytes, bytes.send_bytes);
  });
  if (bytes.send.is_cpu()) bytes.send = at::Tensor();  // the work has it
  return work;
}

c10::intrusive_ptr<c10d::Work> start_first_messages(const ExchangePtr& exchange) {
  FirstMessages& first = exchange->first.emplace(*exchange->mark, *exchange->bytes);
  std::vector<int64_t> even;
  return start_alone([&] { return exchange->backend->alltoall_base(first.receive, first.send, even, even); });
}

// Null where the first messages held all.
c10::intrusive_ptr<c10d::Work> start_rest(const ExchangePtr& exchange) {
  const auto calls = exchange->calls.lock();
  TORCH_CHECK(calls != nullptr, "the world has ended");
  ByteExchange& bytes = *exchange->bytes;
  exchange->first->check(calls->job(), *exchange->mark, bytes);
  const bool all = exchange->first->hold_all();
  if (all) exchange->first->copy_to(bytes);
  exchange->first.reset();
  if (!all) return start_exchange(exchange);
  bytes.send = at::Tensor();
  return {};
}

ExchangePtr make_exchange(const LinkCall& call) {
  auto exchange = std::make_shared<Exchange>();
  exchange->backend = call.link.backend.get();
  exchange->calls = call.calls;
  if (call.fingerprint) exchange->mark = call.mark();
  return exchange;
}

// `before`: makes exchange->bytes.
void add_stages(
    std::vector<StartWork>& stages, const ExchangePtr& exchange, std::function<void()> before = [] {}) {
  const bool checked = exchange->mark.has_value();
  stages.push_back([exchange, checked, before = std::move(before)] {
    before();
    return checked ? start_first_messages(exchange) : start_exchange(exchange);
  });
  if (checked) stages.push_back([exchange] { return start_rest(exchange); });
}

}  // namespace

void run_exchange(const LinkCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                  const RankPieces& outputs, bool may_all_gather, std::function<void()> then) {
  const ExchangePtr exchange = make_exchange(call);
  exchange->bytes =
      std::make_shared<ByteExchange>(*call.call.group, call.job().rank(), call.device, messages, inputs, outputs,
                                     /*inputs_stay=*/!call.is_async(), may_all_gather && !call.fingerprint);
  if (call.link.members.size() == 1) return then();
  std::vector<StartWork> stages;
  add_stages(stages, exchange);
  run_stages(call, std::move(stages), [exchange, then = std::move(then)] {
    exchange->bytes->write_outputs();
    exchange->bytes.reset();  // its messages are not needed any more
    then();
  });
}

void run_all_reduce(const LinkCall& call, AllReduceSteps plan) {
  if (plan.steps.size() == 1 || call.link.members.size() == 1) {
    for (ExchangeStep& step : plan.steps)
      run_exchange(call, step.messages, step.inputs, step.outputs, /*may_all_gather=*/false, step.then);
    return;
  }
  const auto steps = std::make_shared<std::vector<ExchangeStep>>(std::move(plan.steps));
  const auto as_bytes = [group = *call.call.group, rank = call.job().rank(), device = call.device](
                            const ExchangeStep& s, bool inputs_stay) {
    return std::make_shared<ByteExchange>(group, rank, device, s.messages, s.inputs, s.outputs, inputs_stay,
                                          /*may_all_gather=*/false);
  };
  const ExchangePtr first = make_exchange(call), second = make_exchange(call);
  first->bytes = as_bytes((*steps)[0], !call.is_async());
  // The first has compared the call and the size of every part. A sender of the second got a part of that size from
  // each receiver in the first.
  second->mark.reset();
  std::vector<StartWork> stages;
  add_stages(stages, first);
  add_stages(stages, second, [first, second, steps, as_bytes] {
    first->bytes->write_outputs();
    first->bytes.reset();
    (*steps)[0].then();
    (*steps)[0] = {};                                             // its addends are not needed any more
    second->bytes = as_bytes((*steps)[1], /*inputs_stay=*/true);  // no program has the sums yet
  });
  run_stages(call, std::move(stages), [second, steps] {
    second->bytes->write_outputs();
    (*steps)[1].then();
  });
}

}  // namespace dtensor::internal
