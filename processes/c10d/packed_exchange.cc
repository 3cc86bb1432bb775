#include "processes/c10d/packed_exchange.h"

#include <ATen/ops/empty.h>

#include "comm/block_copy.h"
#include "comm/packed_blocks.h"

namespace dtensor::internal {

PackedExchange::PackedExchange(const RankGroups& group, int64_t rank, c10::Device device,
                               absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs)
    : send_bytes(group.size), receive_bytes(group.size) {
  std::vector<std::vector<const Message*>> sends(group.size), receives(group.size);
  int64_t send_total = 0, receive_total = 0;
  for (const Message& m : messages) {
    if (m.sender == rank && m.receiver == rank) {
      copy_block(inputs[0][m.input], outputs[0][m.output], m.block);
    } else if (m.sender == rank) {
      const int64_t p = group.position_of[m.receiver], bytes = message_bytes(m, inputs[0][m.input]);
      sends[p].push_back(&m);
      send_bytes[p] += bytes;
      send_total += bytes;
    } else if (m.receiver == rank) {
      const int64_t p = group.position_of[m.sender], bytes = message_bytes(m, outputs[0][m.output]);
      receives[p].push_back(&m);
      receive_bytes[p] += bytes;
      receive_total += bytes;
    }
  }
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  send = at::empty({send_total}, options);
  receive = at::empty({receive_total}, options);
  int64_t offset = 0;
  for (const auto& list : sends) {
    for (const Message* m : list) {
      pack(*m, inputs[0][m->input], send, offset);
      offset += message_bytes(*m, inputs[0][m->input]);
    }
  }
  offset = 0;
  for (const auto& list : receives) {
    for (const Message* m : list) {
      arriving_.push_back({*m, offset, outputs[0][m->output]});
      offset += message_bytes(*m, outputs[0][m->output]);
    }
  }
}

void PackedExchange::unpack() const {
  for (const Arrival& a : arriving_) internal::unpack(a.message, receive, a.offset, a.to);
}

}  // namespace dtensor::internal
