#include "comm/communicator_checks.h"

#include <tuple>

#include "absl/container/inlined_vector.h"

namespace dtensor::internal {
namespace {

at::IntArrayRef ref(const Shape& shape) { return {shape.data(), shape.size()}; }

bool lies_inside(at::IntArrayRef whole, const Shape& offsets, const Shape& sizes) {
  if (offsets.size() != whole.size() || sizes.size() != whole.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] + sizes[d] > whole[d]) return false;
  }
  return true;
}

// sizes_at(i): of the i-th of the `count` tensors that the rank at this end passes.
template <typename SizesAt>
void check_end(Collective c, const Message& m, bool sends, size_t count, const SizesAt& sizes_at) {
  const int64_t rank = sends ? m.sender : m.receiver;
  const int64_t index = sends ? m.input : m.output;
  const Shape& offsets = sends ? m.block.from : m.block.to;
  const char* name = sends ? "input" : "output";
  TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(count), to_string(c), ": a message from rank ", m.sender,
              " to rank ", m.receiver, " names ", name, " ", index, " of rank ", rank, ", which passes ", count);
  const at::IntArrayRef whole = sizes_at(index);
  TORCH_CHECK(lies_inside(whole, offsets, m.block.sizes), to_string(c), ": a message from rank ", m.sender, " to rank ",
              m.receiver, " has a block of shape ", ref(m.block.sizes), " at ", ref(offsets), " of ", name, " ", index,
              " of rank ", rank, ", whose shape is ", whole);
}

// The tensor that one end of a message names, null if the rank is not owned.
const at::Tensor* end_of(Collective c, const Message& m, bool sends, int64_t slot, const RankPieces& pieces) {
  if (slot < 0) return nullptr;
  const auto& list = pieces[slot];
  check_end(c, m, sends, list.size(), [&](int64_t index) {
    check_defined(c, sends ? m.sender : m.receiver, list[index]);
    return list[index].sizes();
  });
  return &list[sends ? m.input : m.output];
}

// check(m, sender's slot, receiver's slot) for every message, of which the list is in order, between ranks of one
// group.
template <typename Check>
void check_each(Collective c, const CommCall& call, const RankSlots& slots, absl::Span<const Message> messages,
                const Check& check) {
  const auto& group_of = call.group->group_of;
  const auto group = [&](int64_t rank) {
    return rank >= 0 && rank < static_cast<int64_t>(group_of.size()) ? group_of[rank] : -1;
  };
  const auto order = [](const Message& m) { return std::tie(m.sender, m.receiver, m.input); };
  const Message* previous = nullptr;
  for (const Message& m : messages) {
    TORCH_CHECK(group(m.sender) >= 0 && group(m.sender) == group(m.receiver), to_string(c),
                ": a message goes from rank ", m.sender, " to rank ", m.receiver, ", which are in no common group of ",
                call.group->name);
    TORCH_CHECK(previous == nullptr || order(*previous) <= order(m), to_string(c), ": a message from rank ", m.sender,
                " to rank ", m.receiver, " follows one from rank ", previous->sender, " to rank ", previous->receiver,
                "; order messages by sender, receiver and input");
    previous = &m;
    const int64_t from = slots[m.sender], to = slots[m.receiver];
    TORCH_CHECK(from >= 0 || to >= 0, to_string(c), ": a message goes from rank ", m.sender, " to rank ", m.receiver,
                ", and call.ranks has neither");
    check(m, from, to);
  }
}

// Messages from several senders to one owned rank must have the same destinations.
void check_addends(Collective c, const RankSlots& slots, absl::Span<const Message> messages) {
  absl::InlinedVector<absl::Span<const Message>, 16> first;  // by slot: the messages of the first sender
  for (size_t begin = 0; begin < messages.size();) {
    const auto run = run_at(messages, begin);
    begin += run.size();
    const int64_t slot = slots[run[0].receiver];
    if (slot < 0) continue;
    if (slot >= static_cast<int64_t>(first.size())) first.resize(slot + 1);
    if (first[slot].empty()) first[slot] = run;
    const auto& other = first[slot];
    bool same = run.size() == other.size();
    for (size_t k = 0; same && k < run.size(); ++k) {
      same = run[k].output == other[k].output && run[k].block.to == other[k].block.to &&
             run[k].block.sizes == other[k].block.sizes;
    }
    TORCH_CHECK(same, to_string(c), ": ranks ", other[0].sender, " and ", run[0].sender,
                " send different blocks to rank ", run[0].receiver, "; what is reduced must have one shape and place");
  }
}

}  // namespace

void check_ranks(Collective c, const CommCall& call, size_t count, const char* what) {
  TORCH_CHECK(call.group != nullptr, to_string(c), ": call.group is null; take it from DeviceMesh::group");
  TORCH_CHECK(count == call.ranks.size(), to_string(c), ": got ", what, " for ", count, " ranks but call.ranks has ",
              call.ranks.size(), "; pass one per owned rank");
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

void check_reduce_op(Collective c, ReduceOp op, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(op != ReduceOp::kNorm2, to_string(c), ": no backend knows ", to_string(op),
              "; plans add up squares and take roots");
  TORCH_CHECK(op != ReduceOp::kAvg || c10::isFloatingType(dtype) || c10::isComplexType(dtype), to_string(c),
              ": avg of dtype ", dtype, " is no ", dtype, "; use sum, or convert to a floating dtype first");
  TORCH_CHECK((op != ReduceOp::kMin && op != ReduceOp::kMax) || !c10::isComplexType(dtype), to_string(c), ": ",
              to_string(op), " of complex dtype ", dtype, " is not defined; use sum, avg or product");
}

void check_messages(Collective c, const CommCall& call, const RankSlots& slots, absl::Span<const Message> messages,
                    const RankPieces& inputs, const RankPieces& outputs) {
  check_each(c, call, slots, messages, [&](const Message& m, int64_t sender, int64_t receiver) {
    const at::Tensor* from = end_of(c, m, /*sends=*/true, sender, inputs);
    const at::Tensor* to = end_of(c, m, /*sends=*/false, receiver, outputs);
    TORCH_CHECK(from == nullptr || to == nullptr || from->scalar_type() == to->scalar_type(), to_string(c),
                ": a message goes from input ", m.input, " of rank ", m.sender, " of dtype ", from->scalar_type(),
                " to output ", m.output, " of rank ", m.receiver, " of dtype ", to->scalar_type(),
                "; they must be equal");
  });
  if (c == Collective::kReduceScatter) check_addends(c, slots, messages);
}

void check_messages(Collective c, const CommCall& call, absl::Span<const Message> messages, const SizesOfRanks& inputs,
                    const SizesOfRanks& outputs) {
  const RankSlots slots(call);
  check_each(c, call, slots, messages, [&](const Message& m, int64_t sender, int64_t receiver) {
    for (const bool sends : {true, false}) {
      const int64_t slot = sends ? sender : receiver;
      if (slot < 0) continue;
      const auto& list = sends ? inputs[slot] : outputs[slot];
      check_end(c, m, sends, list.size(), [&](int64_t index) { return ref(list[index]); });
    }
  });
  if (c == Collective::kReduceScatter) check_addends(c, slots, messages);
}

}  // namespace dtensor::internal
