#include "tests/testing/faulty_communicator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/block_copy.h"
#include "comm/communicator.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Kind = Fault::Kind;

constexpr std::pair<std::string_view, Kind> kKinds[] = {
    {"none", Kind::kNone},       {"shape", Kind::kShape}, {"dtype", Kind::kDtype}, {"collective", Kind::kCollective},
    {"missing", Kind::kMissing}, {"slow", Kind::kSlow},   {"throw", Kind::kThrow}, {"terminate", Kind::kTerminate},
    {"kill", Kind::kKill},       {"stop", Kind::kStop},   {"exit", Kind::kExit},
};

constexpr char kMessage[] = "the disk is full";

// The transport of a communicator, without its reporting: the faulty one reports itself.
struct Carrier : Communicator {
  using Communicator::do_all_reduce;
  using Communicator::do_barrier;
  using Communicator::do_exchange;
  using Communicator::do_reduce_scatter;
};

// Integers for floats, of the same width, so that sizes are equal.
at::ScalarType other_dtype(at::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 1:
      return dtype == at::kByte ? at::kChar : at::kByte;
    case 2:
      return dtype == at::kShort ? at::kHalf : at::kShort;
    case 4:
      return dtype == at::kInt ? at::kFloat : at::kInt;
    default:
      return dtype == at::kLong ? at::kDouble : at::kLong;
  }
}

Shape doubled(Shape sizes) {
  if (sizes.empty()) sizes.push_back(1);
  sizes[0] *= 2;
  return sizes;
}
Shape doubled_origin(Shape origin) {
  if (origin.empty()) origin.push_back(0);
  origin[0] *= 2;
  return origin;
}

at::Tensor twice(const at::Tensor& t) {
  const at::Tensor rows = t.dim() == 0 ? t.reshape({1}) : t;
  return at::cat({rows, rows});
}
// Undoes twice() for a tensor of these sizes.
at::Tensor half(const at::Tensor& t, at::IntArrayRef sizes) { return t.narrow(0, 0, t.size(0) / 2).reshape(sizes); }

class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(const World& world, Fault fault)
      : Communicator({world.device(world.owned_ranks()[0])}),
        world_(world),
        inner_(world_.communicator()),
        fault_(std::move(fault)) {}

  int64_t scratch_bytes(Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                        int64_t group_size) const override {
    return inner_.scratch_bytes(c, dtype, op, bytes, group_size);
  }

 protected:
  void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    move(call, messages, inputs, outputs,
         [&](const CommCall& as, absl::Span<const Message> what, const RankPieces& from, const RankPieces& to) {
           (inner_.*(&Carrier::do_exchange))(as, c, what, from, to);
         });
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    move(call, messages, inputs, outputs,
         [&](const CommCall& as, absl::Span<const Message> what, const RankPieces& from, const RankPieces& to) {
           (inner_.*(&Carrier::do_reduce_scatter))(as, what, from, to, op);
         });
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    RankPieces own(1);
    switch (fires()) {
      case Kind::kShape:
        for (const at::Tensor& t : inputs[0]) own[0].push_back(twice(t));
        own = (inner_.*(&Carrier::do_all_reduce))(with_shape(call, own[0][0]), own, op);
        for (size_t k = 0; k < inputs[0].size(); ++k) own[0][k] = half(own[0][k], inputs[0][k].sizes());
        return own;
      case Kind::kDtype:
        for (const at::Tensor& t : inputs[0]) own[0].push_back(t.to(other_dtype(t.scalar_type())));
        own = (inner_.*(&Carrier::do_all_reduce))(with_dtype(call, own[0][0]), own, op);
        for (size_t k = 0; k < inputs[0].size(); ++k) own[0][k] = own[0][k].to(inputs[0][k].scalar_type());
        return own;
      case Kind::kCollective:
        gather(call, inputs[0][0]);
        [[fallthrough]];
      case Kind::kMissing:
        for (const at::Tensor& t : inputs[0]) own[0].push_back(t.clone());
        return own;
      default:
        return (inner_.*(&Carrier::do_all_reduce))(call, inputs, op);
    }
  }

  // Carries nothing that could have another shape or dtype.
  void do_barrier(const CommCall& call) override {
    switch (fires()) {
      case Kind::kShape:
      case Kind::kDtype:
      case Kind::kCollective:
        return reduce(call);
      case Kind::kMissing:
        return;
      default:
        (inner_.*(&Carrier::do_barrier))(call);
    }
  }

 private:
  // The fault of this call; kNone for calls without.
  Kind fires() {
    if (++calls_ != fault_.call || fault_.kind == Kind::kNone) return Kind::kNone;
    if (fault_.on_fire) fault_.on_fire();
    switch (fault_.kind) {
      case Kind::kSlow:
        std::this_thread::sleep_for(fault_.delay);
        break;
      case Kind::kThrow:
        throw std::runtime_error(kMessage);
      case Kind::kTerminate:
        std::thread([] { throw std::runtime_error(kMessage); }).join();
        break;
      case Kind::kKill:
        ::raise(SIGKILL);
        break;
      case Kind::kStop:
        ::raise(SIGSTOP);
        break;
      case Kind::kExit:
        ::_exit(0);
      default:
        break;
    }
    return fault_.kind;
  }

  // The call as a program would report it that passes `instead`.
  static CommCall reported_as(const CommCall& call, const at::Tensor& instead, int64_t bytes) {
    CommCall other = call;
    other.event.dtype = instead.scalar_type();
    other.event.bytes = bytes;
    const LayoutChange::Side unknown{std::nullopt, "a layout that its rank alone knows"};
    const LayoutChange* own = call.event.layout_change.get();
    other.event.layout_change = std::make_shared<const LayoutChange>(
        instead.scalar_type(), Shape(instead.sizes().begin(), instead.sizes().end()), own ? own->from() : unknown,
        own ? own->to() : unknown);
    return other;
  }
  static CommCall with_shape(const CommCall& call, const at::Tensor& instead) {
    return reported_as(call, instead, 2 * call.event.bytes);
  }
  static CommCall with_dtype(const CommCall& call, const at::Tensor& instead) {
    return reported_as(call, instead, call.event.bytes);
  }

  // For calls that move blocks, with or without a reduction.
  template <typename Fn>
  void move(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
            const RankPieces& outputs, Fn run) {
    RankPieces from(1), to(1);
    const auto first = [&]() -> const at::Tensor& { return from[0].empty() ? to[0].at(0) : from[0][0]; };
    switch (fires()) {
      case Kind::kShape: {
        for (const at::Tensor& t : inputs[0]) from[0].push_back(twice(t));
        for (const at::Tensor& t : outputs[0]) to[0].push_back(twice(t));
        std::vector<Message> larger(messages.begin(), messages.end());
        for (Message& m : larger) {
          m.block = {doubled_origin(m.block.from), doubled_origin(m.block.to), doubled(m.block.sizes)};
        }
        run(with_shape(call, first()), larger, from, to);
        for (size_t k = 0; k < to[0].size(); ++k) outputs[0][k].copy_(half(to[0][k], outputs[0][k].sizes()));
        return;
      }
      case Kind::kDtype:
        for (const at::Tensor& t : inputs[0]) from[0].push_back(t.to(other_dtype(t.scalar_type())));
        for (const at::Tensor& t : outputs[0]) to[0].push_back(t.to(other_dtype(t.scalar_type())));
        run(with_dtype(call, first()), messages, from, to);
        for (size_t k = 0; k < to[0].size(); ++k) outputs[0][k].copy_(to[0][k]);
        return;
      case Kind::kCollective:
        reduce(call);
        [[fallthrough]];
      case Kind::kMissing:
        for (const at::Tensor& t : outputs[0]) t.zero_();
        for (const Message& m : messages) {
          if (m.sender == m.receiver) copy_block(inputs[0][m.input], outputs[0][m.output], m.block);
        }
        return;
      default:
        return run(call, messages, inputs, outputs);
    }
  }

  void reduce(const CommCall& call) {
    const at::Tensor one =
        at::ones({1}, at::TensorOptions().dtype(call.event.dtype).device(world_.device(call.ranks[0])));
    (inner_.*(&Carrier::do_all_reduce))(call, {{one}}, ReduceOp::kSum);
  }

  // An all_gather instead of a reduction.
  void gather(const CommCall& call, const at::Tensor& mine) {
    const int64_t rank = call.ranks[0];
    const auto& members = call.group->members[call.group->group_of[rank]];
    const Shape shape(mine.sizes().begin(), mine.sizes().end()), origin(shape.size(), 0);
    RankPieces all(1);
    std::vector<Message> messages;
    for (size_t p = 0; p < members.size(); ++p) all[0].push_back(at::empty(mine.sizes(), mine.options()));
    for (int64_t sender : members) {
      for (int64_t receiver : members) {
        if (sender != rank && receiver != rank) continue;
        messages.push_back({sender, receiver, 0, call.group->position_of[sender], {origin, origin, shape}});
      }
    }
    (inner_.*(&Carrier::do_exchange))(call, Collective::kAllGather, messages, {{mine}}, all);
  }

  const World world_;
  Communicator& inner_;
  const Fault fault_;
  std::atomic<int64_t> calls_{0};
};

}  // namespace

std::optional<Fault::Kind> fault_kind(std::string_view word) {
  for (const auto& [name, kind] : kKinds) {
    if (name == word) return kind;
  }
  return std::nullopt;
}

World faulty_world(const World& world, Fault fault) {
  TORCH_CHECK(world.owned_ranks().size() == 1, "faulty_world: ", world.name(), " has ", world.owned_ranks().size(),
              " ranks in this process; a fault is one of a single rank, as in World::from_env()");
  const int64_t rank = world.owned_ranks()[0];
  return World::of_process(world.size(), rank, world.device(rank), world.name(),
                           std::make_unique<FaultyCommunicator>(world, std::move(fault)));
}

}  // namespace dtensor::testing
