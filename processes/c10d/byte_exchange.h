// What this rank passes to a backend for one exchange: bytes to send and bytes to receive, in the order of the group's
// positions, for alltoall_base or, in an all-gather of equal parts between more than two ranks, _allgather_base. Any
// dtypes and numbers of blocks.
//
// `send` and `receive` are a tensor's own memory if the blocks lie there in this order without gaps; else buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_call.h"

namespace dtensor::internal {

class ByteExchange {
 public:
  // Of rank `rank`, with tensors inputs[0] and outputs[0]. `inputs_stay`: the inputs keep their values until the
  // exchange is done, so that `send` may be their memory; else they are copied here. `may_all_gather`: every rank sends
  // the same blocks to all ranks, itself included, and the backend has an all-gather.
  ByteExchange(const RankGroups& group, int64_t rank, c10::Device device, absl::Span<const Message> messages,
               const RankPieces& inputs, const RankPieces& outputs, bool inputs_stay, bool may_all_gather);

  int64_t position = 0;        // of this rank
  bool is_all_gather = false;  // the same on all ranks
  at::Tensor send, receive;
  // By position. They include this rank's messages to itself if the exchange is an all-gather (send_bytes: only those),
  // or if the buffers are smaller with them, as they lie between those of others; else the constructor has copied them.
  std::vector<int64_t> send_bytes, receive_bytes;

  // When `receive` has come: writes what is in a buffer to the outputs.
  void write_outputs() const;

 private:
  struct Arrival {
    Message message;
    int64_t offset;
    at::Tensor to;
  };
  std::vector<Arrival> arriving_;
};

}  // namespace dtensor::internal
