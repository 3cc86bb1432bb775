#include "mesh/communicator.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <chrono>

#include "mesh/scope.h"

namespace dtensor {
namespace {

void check_ranks(Collective c, const CommCall& call, size_t num_inputs) {
  TORCH_CHECK(call.group != nullptr, to_string(c), ": call.group is null; take it from DeviceMesh::group");
  TORCH_CHECK(num_inputs == call.ranks.size(), to_string(c), ": got inputs for ", num_inputs,
              " ranks but call.ranks has ", call.ranks.size(), "; pass one per owned rank");
  const auto& group_of = call.group->group_of;
  for (int64_t rank : call.ranks) {
    TORCH_CHECK(rank >= 0 && rank < static_cast<int64_t>(group_of.size()) && group_of[rank] >= 0, to_string(c),
                ": rank ", rank, " of call.ranks is in no group of ", call.group->name,
                "; pass the local_ranks() of the group's mesh");
  }
}

void check_position(Collective c, const CommCall& call, const char* argument, int64_t position) {
  TORCH_CHECK(position >= 0 && position < call.group->size, to_string(c), ": ", argument, " is ", position,
              "; it must be a position in group ", call.group->name, ", 0..", call.group->size - 1);
}

void check_defined(Collective c, int64_t rank, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), to_string(c), ": a tensor of rank ", rank,
              " is undefined; pass an empty one for no data");
}

// The pieces that call.ranks[i] sends: one per position, of one dtype.
void check_pieces(Collective c, const CommCall& call, const RankPieces& inputs, size_t i) {
  TORCH_CHECK(static_cast<int64_t>(inputs[i].size()) == call.group->size, to_string(c), ": rank ", call.ranks[i],
              " passes ", inputs[i].size(), " pieces; group ", call.group->name, " needs one per position, ",
              call.group->size);
  for (const auto& piece : inputs[i]) {
    check_defined(c, call.ranks[i], piece);
    TORCH_CHECK(piece.scalar_type() == inputs[i][0].scalar_type(), to_string(c), ": rank ", call.ranks[i],
                " passes pieces of ", inputs[i][0].scalar_type(), " and ", piece.scalar_type(), "; use one dtype");
  }
}

// The tensors that `tensor_of(i)` names for the i-th owned ranks of one group must have equal dtypes and, if `shapes`,
// sizes. Other processes' tensors cannot be seen from here.
template <typename TensorOf>
void check_agreement(Collective c, const CommCall& call, bool shapes, TensorOf tensor_of) {
  std::vector<int64_t> first(call.group->members.size(), -1);
  for (size_t i = 0; i < call.ranks.size(); ++i) {
    const at::Tensor& tensor = tensor_of(i);
    check_defined(c, call.ranks[i], tensor);
    int64_t& j = first[call.group->group_of[call.ranks[i]]];
    if (j < 0) j = static_cast<int64_t>(i);
    const at::Tensor& other = tensor_of(j);
    TORCH_CHECK(tensor.scalar_type() == other.scalar_type(), to_string(c), ": ranks ", call.ranks[j], " and ",
                call.ranks[i], " of group ", call.group->name, " pass dtypes ", other.scalar_type(), " and ",
                tensor.scalar_type(), "; they must be equal");
    TORCH_CHECK(!shapes || tensor.sizes() == other.sizes(), to_string(c), ": ranks ", call.ranks[j], " and ",
                call.ranks[i], " of group ", call.group->name, " pass shapes ", other.sizes(), " and ", tensor.sizes(),
                "; they must be equal");
  }
}

void check_reduce_op(Collective c, ReduceOp op, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(op != ReduceOp::kAvg || c10::isFloatingType(dtype) || c10::isComplexType(dtype), to_string(c),
              ": avg of dtype ", dtype, " is no ", dtype, "; use sum, or convert to a floating dtype first");
  TORCH_CHECK((op != ReduceOp::kMin && op != ReduceOp::kMax) || !c10::isComplexType(dtype), to_string(c), ": ",
              to_string(op), " of complex dtype ", dtype, " is not defined; use sum, avg or product");
}

// `count_of(i)`: how many pieces the i-th owned rank receives.
template <typename CountOf>
void check_receive_shapes(Collective c, const CommCall& call, CountOf count_of) {
  if (call.receive_shapes.empty()) return;
  TORCH_CHECK(call.receive_shapes.size() == call.ranks.size(), to_string(c), ": receive_shapes has ",
              call.receive_shapes.size(), " entries for ", call.ranks.size(), " owned ranks; give one per rank");
  for (size_t i = 0; i < call.ranks.size(); ++i) {
    const auto count = static_cast<size_t>(count_of(i));
    TORCH_CHECK(call.receive_shapes[i].size() == count, to_string(c), ": receive_shapes of rank ", call.ranks[i],
                " has ", call.receive_shapes[i].size(), " shapes; the rank receives ", count);
  }
}

template <typename Run>
auto reported(Collective c, const CommCall& call, Run run) {
  const auto counted = [&] {
    auto result = run();
    count_collective(c);
    return result;
  };
  const auto& listeners = current_scope().listeners;
  if (listeners.empty()) return counted();
  CommEvent event = call.event;
  event.collective = c;
  event.seconds = 0;
  event.backward = torch::autograd::get_current_graph_task_id() != -1;
  event.mesh_dims = call.group->name;
  event.group_size = call.group->size;
  for (CommListener* listener : listeners) listener->on_comm(event, /*before=*/true);
  const auto begin = std::chrono::steady_clock::now();
  auto result = counted();
  event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (CommListener* listener : listeners) listener->on_comm(event, /*before=*/false);
  return result;
}

}  // namespace

RankPieces Communicator::all_gather(const CommCall& call, const RankTensors& inputs) {
  constexpr auto c = Collective::kAllGather;
  check_ranks(c, call, inputs.size());
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  check_receive_shapes(c, call, [&](size_t) { return call.group->size; });
  return reported(c, call, [&] { return do_all_gather(call, inputs); });
}

RankTensors Communicator::all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op) {
  constexpr auto c = Collective::kAllReduce;
  check_ranks(c, call, inputs.size());
  check_agreement(c, call, /*shapes=*/true, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  for (const auto& input : inputs) check_reduce_op(c, op, input);
  return reported(c, call, [&] { return do_all_reduce(call, inputs, op); });
}

RankTensors Communicator::reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op) {
  constexpr auto c = Collective::kReduceScatter;
  check_ranks(c, call, inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_pieces(c, call, inputs, i);
    check_reduce_op(c, op, inputs[i][0]);
  }
  for (int64_t p = 0; p < call.group->size; ++p) {
    check_agreement(c, call, /*shapes=*/true, [&](size_t i) -> const at::Tensor& { return inputs[i][p]; });
  }
  return reported(c, call, [&] { return do_reduce_scatter(call, inputs, op); });
}

RankPieces Communicator::all_to_all(const CommCall& call, const RankPieces& inputs) {
  constexpr auto c = Collective::kAllToAll;
  check_ranks(c, call, inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) check_pieces(c, call, inputs, i);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i][0]; });
  check_receive_shapes(c, call, [&](size_t) { return call.group->size; });
  return reported(c, call, [&] { return do_all_to_all(call, inputs); });
}

RankTensors Communicator::broadcast(const CommCall& call, const RankTensors& inputs, int64_t source) {
  constexpr auto c = Collective::kBroadcast;
  check_ranks(c, call, inputs.size());
  check_position(c, call, "source", source);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (call.group->position_of[call.ranks[i]] == source) check_defined(c, call.ranks[i], inputs[i]);
  }
  check_receive_shapes(c, call, [](size_t) { return 1; });
  return reported(c, call, [&] { return do_broadcast(call, inputs, source); });
}

RankTensors Communicator::scatter(const CommCall& call, const RankPieces& inputs, int64_t source) {
  constexpr auto c = Collective::kScatter;
  check_ranks(c, call, inputs.size());
  check_position(c, call, "source", source);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (call.group->position_of[call.ranks[i]] == source) check_pieces(c, call, inputs, i);
  }
  check_receive_shapes(c, call, [](size_t) { return 1; });
  return reported(c, call, [&] { return do_scatter(call, inputs, source); });
}

RankPieces Communicator::gather(const CommCall& call, const RankTensors& inputs, int64_t target) {
  constexpr auto c = Collective::kGather;
  check_ranks(c, call, inputs.size());
  check_position(c, call, "target", target);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  check_receive_shapes(
      c, call, [&](size_t i) { return call.group->position_of[call.ranks[i]] == target ? call.group->size : 0; });
  return reported(c, call, [&] { return do_gather(call, inputs, target); });
}

RankTensors Communicator::permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources) {
  constexpr auto c = Collective::kPermute;
  check_ranks(c, call, inputs.size());
  TORCH_CHECK(static_cast<int64_t>(sources.size()) == call.group->size, "permute: sources has ", sources.size(),
              " entries; group ", call.group->name, " needs one per position, ", call.group->size);
  for (int64_t source : sources) check_position(c, call, "a source", source);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  check_receive_shapes(c, call, [](size_t) { return 1; });
  return reported(c, call, [&] { return do_permute(call, inputs, sources); });
}

void Communicator::barrier(const CommCall& call) {
  constexpr auto c = Collective::kBarrier;
  check_ranks(c, call, call.ranks.size());
  reported(c, call, [&] {
    do_barrier(call);
    return true;
  });
}

}  // namespace dtensor
