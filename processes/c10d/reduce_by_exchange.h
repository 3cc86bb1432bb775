// Reductions by exchanges: every addend goes to a tensor of its own, where they are reduced in the order of the group,
// so that the result is that of one process bit for bit. Internal to the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace dtensor {

// One exchange, as Communicator::exchange() takes it for one rank, and what is to be done when its outputs have come.
struct ExchangeStep {
  std::vector<Message> messages;
  RankPieces inputs, outputs;
  std::function<void()> then;
};

// Of rank `rank`: arguments as of Communicator::reduce_scatter().
ExchangeStep reduce_scatter_by_exchange(const Group& group, int64_t rank, absl::Span<const Message> messages,
                                        const RankPieces& inputs, const RankPieces& outputs, ReduceOp op);

// Little data (kSmallAllReduceBytes) goes to everybody at once. Of more, everybody reduces one part (first step),
// and then all get all parts (second step, whose inputs the first step's `then` makes).
struct AllReduceSteps {
  std::vector<at::Tensor> results;
  std::vector<ExchangeStep> steps;
};
// Of the member at `position`.
AllReduceSteps all_reduce_by_exchange(absl::Span<const int64_t> members, int64_t position,
                                      const std::vector<at::Tensor>& inputs, ReduceOp op);

}  // namespace dtensor
