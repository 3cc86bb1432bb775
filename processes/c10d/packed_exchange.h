// An exchange of this rank as an alltoall_base takes it: memory to send and memory to receive into, cut by the
// positions of the group. Any dtypes and any number of blocks travel together.
//
// On a CPU, blocks that lie one right after the other in a tensor are sent from there, and received there; others are
// copied to and from a buffer of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_call.h"

namespace dtensor::internal {

class PackedExchange {
 public:
  // For rank `rank`, with tensors inputs[0] and outputs[0]. `inputs_stay`: no program writes to the inputs before the
  // exchange is done; else they are not needed any more when this is made.
  PackedExchange(const RankGroups& group, int64_t rank, c10::Device device, absl::Span<const Message> messages,
                 const RankPieces& inputs, const RankPieces& outputs, bool inputs_stay);

  int64_t position = 0;      // of this rank
  at::Tensor send, receive;  // bytes
  // By position. This rank's own messages are among them only where the buffers are smaller with them, because they lie
  // between those of others in a tensor; else they are copied at once.
  std::vector<int64_t> send_bytes, receive_bytes;

  // When `receive` has come: writes what was received into a buffer to the outputs.
  void unpack() const;

 private:
  struct Arrival {
    Message message;
    int64_t offset;
    at::Tensor to;
  };
  std::vector<Arrival> arriving_;
};

}  // namespace dtensor::internal
