// Reductions by exchanges: every addend goes to a tensor of its own, where they are reduced in the order of the group,
// so that the result is that of one process bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/backend_capabilities.h"
#include "comm/comm_call.h"

namespace dtensor::internal {

// One exchange, as Communicator::exchange() takes it for one rank, and what is to be done when its outputs have come.
struct ExchangeStep {
  std::vector<Message> messages;
  RankPieces inputs, outputs;
  std::function<void()> then;
};

// For rank `rank`: arguments as of Communicator::reduce_scatter(). `inputs_stay`: the program cannot write to the
// inputs before the step is done, so that the rank's own addends may be reduced where they are; else they are copied.
ExchangeStep reduce_scatter_by_exchange(const RankGroups& group, int64_t rank, absl::Span<const Message> messages,
                                        const RankPieces& inputs, const RankPieces& outputs, ReduceOp op,
                                        bool inputs_stay);

// Up to this many bytes over all members, every member gets all addends at once. Above it, every member reduces one
// part (first step), and then all get all parts (second step, whose inputs the first step's `then` makes).
inline constexpr int64_t kSmallAllReduceBytes = 128 << 10;
struct AllReduceSteps {
  std::vector<at::Tensor> results;
  std::vector<ExchangeStep> steps;
};
// For the member at `position`. `inputs_stay`: as above.
AllReduceSteps all_reduce_by_exchange(absl::Span<const int64_t> members, int64_t position,
                                      const std::vector<at::Tensor>& inputs, ReduceOp op, bool inputs_stay);
// Upper bound of the bytes that this holds at once on any rank, if the inputs stay, besides inputs and results:
// addends, buffers of messages, and the memory of reduce_in_order(). `bytes`: of the inputs of a rank.
int64_t all_reduce_by_exchange_bytes(at::ScalarType dtype, ReduceOp op, int64_t bytes, int64_t group_size);

// Communicator::scratch_bytes() of processes that reduce as backend_capabilities.h says of `backend`, and by exchanges
// what it does not reduce.
int64_t reduction_scratch_bytes(CommBackend backend, Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                                int64_t group_size);

}  // namespace dtensor::internal
