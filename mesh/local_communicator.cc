// The communicator of World::local: every rank of every group is in this process.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "mesh/block_copy.h"
#include "mesh/communicator_checks.h"
#include "mesh/reduce_in_order.h"

namespace dtensor {
namespace {

void check_whole_groups(const CommCall& call, const RankSlots& slots) {
  for (int64_t rank : call.ranks) {
    for (int64_t member : call.group->members[call.group->group_of[rank]]) {
      TORCH_CHECK(slots[member] >= 0, "in-process communicator: call.ranks has rank ", rank, " but not rank ", member,
                  " of the same group ", call.group->name, "; pass all ranks of a group");
    }
  }
}

Block whole_block(const at::Tensor& t) {
  const Shape origin(t.dim(), 0);
  return {origin, origin, Shape(t.sizes().begin(), t.sizes().end())};
}

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(std::vector<c10::Device> devices) : Communicator(std::move(devices)) {}

 protected:
  void do_exchange(const CommCall& call, Collective, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    const RankSlots slots(call);
    for (const Message& m : messages) {
      for (int64_t rank : {m.sender, m.receiver}) {
        TORCH_CHECK(slots[rank] >= 0, "in-process communicator: a message goes from rank ", m.sender, " to rank ", m.receiver,
                    ", but call.ranks has no rank ", rank, "; pass all ranks of a group");
      }
    }
    for (const Message& m : messages) copy_block(inputs[slots[m.sender]][m.input], outputs[slots[m.receiver]][m.output], m.block);
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    const RankSlots slots(call);
    check_whole_groups(call, slots);
    const Group& group = *call.group;
    // By receiver, then by the sender's position.
    std::vector<absl::Span<const Message>> runs(call.ranks.size() * group.size);
    for (size_t begin = 0; begin < messages.size();) {
      const auto run = run_at(messages, begin);
      runs[slots[run[0].receiver] * group.size + group.position_of[run[0].sender]] = run;
      begin += run.size();
    }
    std::vector<absl::Span<const Message>> addends;
    for (size_t i = 0; i < call.ranks.size(); ++i) {
      addends.clear();
      for (int64_t p = 0; p < group.size; ++p) {
        if (const auto& run = runs[i * group.size + p]; !run.empty()) addends.push_back(run);
      }
      for (size_t k = 0; !addends.empty() && k < addends[0].size(); ++k) {
        const Message& first = addends[0][k];
        reduce_in_order(block_view(outputs[i][first.output], first.block.to, first.block.sizes), addends.size(), op,
                        [&](size_t a) {
                          const Message& m = addends[a][k];
                          return block_view(inputs[slots[m.sender]][m.input], m.block.from, m.block.sizes);
                        });
      }
    }
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    const RankSlots slots(call);
    check_whole_groups(call, slots);
    RankPieces results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& members = call.group->members[call.group->group_of[call.ranks[i]]];
      if (members[0] != call.ranks[i]) continue;
      for (size_t k = 0; k < inputs[i].size(); ++k) {
        for (int64_t member : members) {
          results[slots[member]].push_back(at::empty(inputs[i][k].sizes(), inputs[i][k].options().device(device(member))));
        }
        const at::Tensor& sum = results[i][k];
        reduce_in_order(sum, members.size(), op, [&](size_t a) { return inputs[slots[members[a]]][k]; });
        for (size_t a = 1; a < members.size(); ++a) copy_block(sum, results[slots[members[a]]][k], whole_block(sum));
      }
    }
    return results;
  }

  void do_barrier(const CommCall&) override {}
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(std::vector<c10::Device> devices) {
  return std::make_unique<LocalCommunicator>(std::move(devices));
}

}  // namespace dtensor
