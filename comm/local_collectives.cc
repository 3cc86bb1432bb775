#include "comm/local_collectives.h"

#include <c10/util/Exception.h>

#include "absl/container/inlined_vector.h"
#include "comm/block_copy.h"
#include "comm/communicator_checks.h"
#include "comm/reduce_in_order.h"

namespace dtensor::internal {

void check_whole_groups(const CommCall& call, const RankSlots& slots) {
  for (int64_t rank : call.ranks) {
    for (int64_t member : call.group->members[call.group->group_of[rank]]) {
      TORCH_CHECK(slots[member] >= 0, "in-process communicator: call.ranks has rank ", rank, " but not rank ", member,
                  " of the same group ", call.group->name, "; pass all ranks of a group");
    }
  }
}

void check_both_ends(const RankSlots& slots, absl::Span<const Message> messages) {
  for (const Message& m : messages) {
    for (int64_t rank : {m.sender, m.receiver}) {
      TORCH_CHECK(slots[rank] >= 0, "in-process communicator: a message goes from rank ", m.sender, " to rank ",
                  m.receiver, ", but call.ranks has no rank ", rank, "; pass all ranks of a group");
    }
  }
}

void exchange_by_copies(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                        const RankPieces& outputs) {
  const RankSlots slots(call);
  check_both_ends(slots, messages);
  for (const Message& m : messages)
    copy_block(inputs[slots[m.sender]][m.input], outputs[slots[m.receiver]][m.output], m.block);
}

void reduce_scatter_by_copies(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                              const RankPieces& outputs, ReduceOp op) {
  const RankSlots slots(call);
  check_whole_groups(call, slots);
  const RankGroups& group = *call.group;
  // By receiver, then by the sender's position.
  absl::InlinedVector<absl::Span<const Message>, 16> runs(call.ranks.size() * group.size);
  for (size_t begin = 0; begin < messages.size();) {
    const auto run = run_at(messages, begin);
    runs[slots[run[0].receiver] * group.size + group.position_of[run[0].sender]] = run;
    begin += run.size();
  }
  absl::InlinedVector<absl::Span<const Message>, 16> senders;
  absl::InlinedVector<TensorBlock, 16> addends;
  for (size_t i = 0; i < call.ranks.size(); ++i) {
    senders.clear();
    for (int64_t p = 0; p < group.size; ++p) {
      if (const auto& run = runs[i * group.size + p]; !run.empty()) senders.push_back(run);
    }
    for (size_t k = 0; !senders.empty() && k < senders[0].size(); ++k) {
      addends.clear();
      for (const auto& sender : senders) {
        const Message& m = sender[k];
        addends.push_back({&inputs[slots[m.sender]][m.input], &m.block.from});
      }
      const Message& first = senders[0][k];
      reduce_blocks_in_order({&outputs[i][first.output], &first.block.to}, addends, first.block.sizes, op);
    }
  }
}

}  // namespace dtensor::internal
