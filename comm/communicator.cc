#include "comm/communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "comm/call_recorder.h"
#include "comm/comm_work.h"
#include "comm/communicator_checks.h"
#include "comm/packed_blocks.h"
#include "comm/reduce_by_exchange.h"
#include "comm/scope.h"

namespace dtensor::internal {
namespace {

// On the owned rank that receives most.
int64_t exchanged_bytes(const CommCall& call, const RankSlots& slots, absl::Span<const Message> messages,
                        const RankPieces& outputs) {
  std::vector<int64_t> received(call.ranks.size());
  for (const Message& m : messages) {
    const int64_t slot = slots[m.receiver];
    if (slot >= 0 && m.sender != m.receiver) received[slot] += message_bytes(m, outputs[slot][m.output]);
  }
  return received.empty() ? -1 : *std::max_element(received.begin(), received.end());
}

// Bytes that a rank receives in a reduction of `bytes` per rank, by the convention of CommEvent::received_bytes.
int64_t reduced_bytes(int64_t bytes, int64_t group_size, int64_t passes) {
  return passes * bytes * (group_size - 1) / group_size;
}

// The listeners of the scope, followed by the process's listener, which so sees only collectives that run.
class Listeners {
 public:
  Listeners() : of_scope_(current_scope().listeners), of_process_(process_listener()) {}
  size_t size() const { return of_scope_.size() + (of_process_ != nullptr ? 1 : 0); }
  CommListener& operator[](size_t i) const { return i < of_scope_.size() ? *of_scope_[i] : *of_process_; }

 private:
  const std::vector<CommListener*>& of_scope_;
  CommListener* const of_process_;
};

// Of a collective that was begun. One that an exception drops has failed, as far as its rank knows.
struct BegunRecord {
  explicit BegunRecord(std::shared_ptr<CallRecord> record) : call(std::move(record)) {}
  ~BegunRecord() {
    if (!is_awaited && std::uncaught_exceptions() == 0) call->not_awaited();
  }
  BegunRecord(const BegunRecord&) = delete;
  BegunRecord& operator=(const BegunRecord&) = delete;

  const std::shared_ptr<CallRecord> call;
  bool is_awaited = false;
};

// Tells the listeners of the scope that waits first. Returns the number for them.
uint64_t report_wait(std::shared_ptr<CommWork>& work) {
  static std::atomic<uint64_t> last{0};
  const uint64_t begun = ++last;
  work = std::make_shared<CommWork>([begun, inner = std::move(work)] {
    inner->wait();
    for (CommListener* listener : current_scope().listeners) listener->on_wait(begun);
  });
  return begun;
}

template <typename Received, typename Fn>
auto reported(CallRecorder* recorder, CommView view, Received received, Fn run) {
  const Listeners listeners;
  const bool backward = in_backward();
  const std::shared_ptr<CallRecord> record =
      recorder != nullptr ? recorder->record(view, backward, /*runs=*/listeners.size() == 0) : nullptr;
  const auto counted = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;  // results have no history
    auto result = run();
    std::shared_ptr<CommWork>* const work = view.call.work;
    if (work == nullptr || *work == nullptr) {
      if (record) record->completed();
    } else if (record) {  // when it is
      *work = std::make_shared<CommWork>([begun = *work, record = std::make_shared<BegunRecord>(record)] {
        record->is_awaited = true;
        begun->wait();
        record->call->completed();
      });
    }
    count_collective(view.collective);
    return result;
  };
  if (listeners.size() == 0) return counted();
  view.sequence = record ? record->sequence() : 0;
  CommEvent event = view.call.event;
  event.collective = view.collective;
  event.seconds = 0;
  event.received_bytes = -1;
  event.backward = backward;
  event.mesh_dims = view.call.group->name;
  event.group_size = view.call.group->size;
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  auto result = [&] {
    size_t notified = 0;
    try {
      for (; notified < listeners.size(); ++notified) listeners[notified].on_call(event, view, /*before=*/true);
      if (record) record->started();
      begin = Clock::now();
      return counted();
    } catch (...) {
      if (begin != Clock::time_point()) event.seconds = seconds();
      for (size_t i = 0; i < notified; ++i) listeners[i].on_failed(event, view);
      throw;
    }
  }();
  event.seconds = seconds();
  event.received_bytes = received();
  if (view.call.work != nullptr && *view.call.work != nullptr) view.begun = report_wait(*view.call.work);
  for (size_t i = 0; i < listeners.size(); ++i) listeners[i].on_call(event, view, /*before=*/false);
  return result;
}

}  // namespace

Communicator::Communicator(std::vector<c10::Device> devices)
    : devices_(std::move(devices)), recorder_(make_call_recorder()) {}

Communicator::~Communicator() = default;

int64_t Communicator::scratch_bytes(Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                                    int64_t group_size) const {
  return reduction_scratch_bytes(CommBackend::kNccl, c, dtype, op, bytes, group_size);
}

void Communicator::exchange(const CommCall& call, Collective c, absl::Span<const Message> messages,
                            const RankPieces& inputs, const RankPieces& outputs) {
  check_ranks(c, call, inputs.size());
  check_ranks(c, call, outputs.size(), "outputs");
  const RankSlots slots(call);
  if (!call.are_messages_checked) check_messages(c, call, slots, messages, inputs, outputs);
  reported(
      recorder_.get(), {c, call, messages, inputs, outputs},
      [&] { return exchanged_bytes(call, slots, messages, outputs); },
      [&] {
        do_exchange(call, c, messages, inputs, outputs);
        return true;
      });
}

void Communicator::reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                                  const RankPieces& outputs, ReduceOp op) {
  constexpr auto c = Collective::kReduceScatter;
  check_ranks(c, call, inputs.size());
  check_ranks(c, call, outputs.size(), "outputs");
  const RankSlots slots(call);
  if (!call.are_messages_checked) check_messages(c, call, slots, messages, inputs, outputs);
  for (const Message& m : messages) {
    const int64_t slot = slots[m.receiver];
    if (slot < 0) continue;
    check_reduce_op(c, op, outputs[slot][m.output]);
    if (call.are_messages_checked) break;  // all have its dtype
  }
  const auto received = [&] {
    std::vector<std::vector<int64_t>> addends(call.ranks.size());
    for (size_t i = 0; i < inputs.size(); ++i) addends[i].resize(inputs[i].size());
    for (const Message& m : messages) {
      const int64_t slot = slots[m.sender];
      if (slot >= 0) addends[slot][m.input] += message_bytes(m, inputs[slot][m.input]);
    }
    int64_t most = -1;
    for (const auto& of_rank : addends) {
      int64_t bytes = 0;
      for (int64_t addend : of_rank) bytes += reduced_bytes(addend, call.group->size, 1);
      most = std::max(most, bytes);
    }
    return most;
  };
  reported(recorder_.get(), {c, call, messages, inputs, outputs}, received, [&] {
    do_reduce_scatter(call, messages, inputs, outputs, op);
    return true;
  });
}

RankPieces Communicator::all_reduce_many(const CommCall& call, const RankPieces& inputs, ReduceOp op) {
  constexpr auto c = Collective::kAllReduce;
  check_ranks(c, call, inputs.size());
  for (size_t i = 1; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].size() == inputs[0].size(), to_string(c), ": rank ", call.ranks[0], " passes ",
                inputs[0].size(), " tensors and rank ", call.ranks[i], " passes ", inputs[i].size(),
                "; pass as many on every rank");
  }
  for (size_t k = 0; !inputs.empty() && k < inputs[0].size(); ++k) {
    check_agreement(c, call, /*shapes=*/true, [&](size_t i) -> const at::Tensor& { return inputs[i][k]; });
    for (const auto& of_rank : inputs) check_reduce_op(c, op, of_rank[k]);
  }
  const auto received = [&] {
    int64_t most = -1;
    for (const auto& of_rank : inputs) {
      int64_t bytes = 0;
      for (const auto& t : of_rank) bytes += reduced_bytes(static_cast<int64_t>(t.nbytes()), call.group->size, 2);
      most = std::max(most, bytes);
    }
    return most;
  };
  return reported(recorder_.get(), {c, call, {}, inputs, inputs}, received,
                  [&] { return do_all_reduce(call, inputs, op); });
}

void Communicator::barrier(const CommCall& call) {
  constexpr auto c = Collective::kBarrier;
  check_ranks(c, call, call.ranks.size());
  const RankPieces nothing;
  reported(
      recorder_.get(), {c, call, {}, nothing, nothing}, [&] { return call.ranks.empty() ? int64_t{-1} : int64_t{0}; },
      [&] {
        do_barrier(call);
        return true;
      });
}

}  // namespace dtensor::internal
