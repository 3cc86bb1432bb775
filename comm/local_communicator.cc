// The communicator of World::local: every rank of every group is in this process.
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/communicator.h"
#include "comm/empty_part.h"
#include "comm/local_collectives.h"
#include "comm/reduce_in_order.h"

namespace dtensor::internal {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(std::vector<c10::Device> devices) : Communicator(std::move(devices)) {}

  bool uses_staging_buffers() const override { return false; }

 protected:
  void do_exchange(const CommCall& call, Collective, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    exchange_by_copies(call, messages, inputs, outputs);
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    reduce_scatter_by_copies(call, messages, inputs, outputs, op);
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    const RankSlots slots(call);
    check_whole_groups(call, slots);
    RankPieces results(call.ranks.size());
    absl::InlinedVector<at::Tensor, 8> addends, outputs;
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& members = call.group->members[call.group->group_of[call.ranks[i]]];
      if (members[0] != call.ranks[i]) continue;
      for (int64_t member : members) results[slots[member]].reserve(inputs[i].size());
      for (size_t k = 0; k < inputs[i].size(); ++k) {
        addends.clear();
        outputs.clear();
        const at::Tensor& first = inputs[i][k];
        for (int64_t member : members) {
          addends.push_back(inputs[slots[member]][k]);
          outputs.push_back(empty_part(first.sizes(), first.scalar_type(), device(member)));
          results[slots[member]].push_back(outputs.back());
        }
        reduce_in_order(outputs, addends, op);
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

}  // namespace dtensor::internal
