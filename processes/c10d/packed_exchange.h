// An exchange of this rank as an alltoall_base takes it: one buffer of bytes to send and one to receive, cut by the
// positions of the group. Any dtypes and any number of blocks travel together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_call.h"

namespace dtensor::internal {

class PackedExchange {
 public:
  // For rank `rank`, with tensors inputs[0] and outputs[0]. Its messages to itself are copied at once, and `inputs` are
  // not needed any more.
  PackedExchange(const RankGroups& group, int64_t rank, c10::Device device, absl::Span<const Message> messages,
                 const RankPieces& inputs, const RankPieces& outputs);

  at::Tensor send, receive;
  std::vector<int64_t> send_bytes, receive_bytes;  // by position

  // When `receive` has come: writes it into the outputs.
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
