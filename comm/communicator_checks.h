// Checks of collectives before they move anything.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>
#include <vector>

#include "comm/comm_call.h"
#include "placement/placement.h"

namespace dtensor::internal {

// `count` says for how many ranks the caller passes `what`.
void check_ranks(Collective c, const CommCall& call, size_t count, const char* what = "inputs");
void check_position(Collective c, const CommCall& call, const char* argument, int64_t position);
void check_defined(Collective c, int64_t rank, const at::Tensor& tensor);
// The pieces that call.ranks[i] sends: one per position, of one dtype.
void check_pieces(Collective c, const CommCall& call, const RankPieces& inputs, size_t i);
void check_reduce_op(Collective c, ReduceOp op, const at::Tensor& tensor);
// Messages against the tensors that this process sees. Of a kReduceScatter, those from several senders to one owned
// rank must have the same destinations.
void check_messages(Collective c, const CommCall& call, const RankSlots& slots, absl::Span<const Message> messages,
                    const RankPieces& inputs, const RankPieces& outputs);
using SizesOfRanks = std::vector<std::vector<Shape>>;  // per owned rank, those of its tensors
// The same for the sizes that tensors will have, so that a plan is checked once, before it runs: calls with messages
// that passed may set CommCall::are_messages_checked.
void check_messages(Collective c, const CommCall& call, absl::Span<const Message> messages, const SizesOfRanks& inputs,
                    const SizesOfRanks& outputs);

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

// The messages that `sender` sends to `receiver`, when begin is where they begin.
inline absl::Span<const Message> run_at(absl::Span<const Message> messages, size_t begin) {
  size_t end = begin;
  while (end < messages.size() && messages[end].sender == messages[begin].sender &&
         messages[end].receiver == messages[begin].receiver) {
    ++end;
  }
  return messages.subspan(begin, end - begin);
}

}  // namespace dtensor::internal
