// The communicator of worlds whose peers do not exist: World::abstract, which owns no rank, and World::fake, which owns
// one. A call whose caller need not have the results at once is one that goes on, as in worlds of processes.
#include <ATen/ops/clone.h>

#include "comm/block_copy.h"
#include "comm/comm_work.h"
#include "comm/communicator.h"

namespace dtensor::internal {
namespace {

class DryCommunicator final : public Communicator {
 public:
  explicit DryCommunicator(c10::Device device) : Communicator({device}) {}

 protected:
  void do_exchange(const CommCall& call, Collective, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    const RankSlots slots(call);
    for (const Message& m : messages) {
      const int64_t from = slots[m.sender], to = slots[m.receiver];
      if (to < 0) continue;
      if (from >= 0) {
        copy_block(inputs[from][m.input], outputs[to][m.output], m.block);
      } else {
        // Rather than uninitialized memory, because what comes may be used as indices.
        clear_block(outputs[to][m.output], m.block);
      }
    }
    begin(call);
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp) override {
    const RankSlots slots(call);
    for (const Message& m : messages) {
      if (m.sender != m.receiver) continue;
      const int64_t i = slots[m.sender];
      copy_block(inputs[i][m.input], outputs[i][m.output], m.block);
    }
    begin(call);
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp) override {
    RankPieces results(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const auto& input : inputs[i]) results[i].push_back(input.clone(at::MemoryFormat::Contiguous));
    }
    begin(call);
    return results;
  }

  void do_barrier(const CommCall&) override {}

 private:
  static void begin(const CommCall& call) {
    if (call.work != nullptr) *call.work = std::make_shared<CommWork>([] {});
  }
};

}  // namespace

std::unique_ptr<Communicator> make_dry_communicator(c10::Device device) {
  return std::make_unique<DryCommunicator>(device);
}

}  // namespace dtensor::internal
