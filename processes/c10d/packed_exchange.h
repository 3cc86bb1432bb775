// An exchange of this rank as a backend takes it, by an alltoall_base: memory to send and memory to receive into, cut
// by the positions of the group. Any dtypes and any number of blocks travel together.
//
// Blocks that lie one right after the other in a tensor are sent from there, and received there; others are copied to
// and from a buffer of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_call.h"

namespace dtensor::internal {

class PackedExchange {
 public:
  // For rank `rank`, with tensors inputs[0] and outputs[0]. `inputs_stay`: no program writes to the inputs before the
  // exchange is done; else they are not needed any more when this is made. `gathers`: every rank sends the same blocks
  // to all ranks, itself among them, and is_gather may become true.
  PackedExchange(const RankGroups& group, int64_t rank, c10::Device device, absl::Span<const Message> messages,
                 const RankPieces& inputs, const RankPieces& outputs, bool inputs_stay, bool gathers);

  int64_t position = 0;  // of this rank
  // Every rank sends as many bytes as the others, so that an all-gather takes the place of the alltoall_base. The same
  // on all ranks.
  bool is_gather = false;
  at::Tensor send, receive;  // bytes; of an all-gather, `send` is what goes to each rank
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
