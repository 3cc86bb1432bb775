#include "processes/c10d/packed_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <numeric>
#include <utility>

#include "comm/block_copy.h"
#include "comm/packed_blocks.h"

namespace dtensor::internal {
namespace {

// This rank's ends of messages: the blocks that it sends, or those that it receives.
class Ends {
 public:
  Ends(bool are_sent, int64_t group_size, const Pieces& tensors)
      : are_sent_(are_sent), tensors_(tensors), messages_(group_size) {}

  // `other`: position of the other end.
  void add(int64_t other, const Message& m) { messages_[other].push_back(&m); }

  const at::Tensor& tensor(const Message& m) const { return tensors_[are_sent_ ? m.input : m.output]; }
  int64_t bytes(const Message& m) const { return message_bytes(m, tensor(m)); }

  // In the order of the other ends' positions, without those of position `without`.
  template <typename Visit>
  void visit(int64_t without, Visit visit) const {
    for (size_t p = 0; p < messages_.size(); ++p) {
      if (static_cast<int64_t>(p) == without) continue;
      for (const Message* m : messages_[p]) visit(static_cast<int64_t>(p), *m);
    }
  }

  std::vector<int64_t> bytes_by_position(int64_t without) const {
    std::vector<int64_t> sums(messages_.size());
    visit(without, [&](int64_t p, const Message& m) { sums[p] += bytes(m); });
    return sums;
  }

  // The memory of the blocks, if it is one range of a tensor in their order; else undefined.
  at::Tensor memory(int64_t without) const {
    const char* begin = nullptr;
    const char* end = nullptr;
    at::Tensor of;
    bool is_one_range = true;
    visit(without, [&](int64_t, const Message& m) {
      const int64_t size = bytes(m);
      if (size == 0 || !is_one_range) return;
      const at::Tensor& t = tensor(m);
      const char* block = dense_block(t, are_sent_ ? m.block.from : m.block.to, m.block.sizes);
      is_one_range = block != nullptr && (end == nullptr || (block == end && t.storage().is_alias_of(of.storage())));
      if (end == nullptr) begin = block, of = t;
      end = block + size;
    });
    if (!is_one_range) return {};
    if (begin == nullptr) return at::empty({0}, at::kByte);
    return at::from_blob(
        const_cast<char*>(begin), {end - begin}, [of](void*) {}, at::kByte);
  }

 private:
  const bool are_sent_;
  const Pieces& tensors_;
  std::vector<std::vector<const Message*>> messages_;  // by position of the other end
};

constexpr int64_t kNone = -1;  // no position

int64_t sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

// Where messages are sent from and received: a tensor's memory, or undefined, which takes a buffer.
struct Memory {
  int64_t without;  // a position whose messages do not take part, or kNone
  at::Tensor send, receive;
  int64_t buffer_bytes;
};

Memory memory_without(int64_t without, const Ends& sends, const Ends& receives, bool inputs_stay) {
  Memory memory{without, inputs_stay ? sends.memory(without) : at::Tensor(), receives.memory(without), 0};
  if (!memory.send.defined()) memory.buffer_bytes += sum(sends.bytes_by_position(without));
  if (!memory.receive.defined()) memory.buffer_bytes += sum(receives.bytes_by_position(without));
  return memory;
}

// With or without this rank's own messages, whichever needs smaller buffers.
Memory memory_of(const Ends& sends, const Ends& receives, int64_t own, bool inputs_stay) {
  Memory others = memory_without(own, sends, receives, inputs_stay);
  if (others.buffer_bytes == 0) return others;
  Memory all = memory_without(kNone, sends, receives, inputs_stay);
  return all.buffer_bytes < others.buffer_bytes ? all : others;
}

}  // namespace

PackedExchange::PackedExchange(const RankGroups& group, int64_t rank, c10::Device device,
                               absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs,
                               bool inputs_stay)
    : position(group.position_of[rank]) {
  Ends sends(true, group.size, inputs[0]), receives(false, group.size, outputs[0]);
  for (const Message& m : messages) {
    if (m.sender == rank) sends.add(group.position_of[m.receiver], m);
    if (m.receiver == rank) receives.add(group.position_of[m.sender], m);
  }
  Memory memory = memory_of(sends, receives, position, inputs_stay);
  send_bytes = sends.bytes_by_position(memory.without);
  receive_bytes = receives.bytes_by_position(memory.without);
  if (memory.without == position) {
    for (const Message& m : messages) {
      if (m.sender == rank && m.receiver == rank) copy_block(inputs[0][m.input], outputs[0][m.output], m.block);
    }
  }
  const auto buffer = [&](const std::vector<int64_t>& bytes) {
    return at::empty({sum(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  };
  send = std::move(memory.send);
  receive = std::move(memory.receive);
  int64_t offset = 0;
  if (!send.defined()) {
    send = buffer(send_bytes);
    sends.visit(memory.without, [&](int64_t, const Message& m) {
      pack(m, sends.tensor(m), send, offset);
      offset += sends.bytes(m);
    });
  }
  offset = 0;
  if (!receive.defined()) {
    receive = buffer(receive_bytes);
    receives.visit(memory.without, [&](int64_t, const Message& m) {
      arriving_.push_back({m, offset, receives.tensor(m)});
      offset += receives.bytes(m);
    });
  }
}

void PackedExchange::unpack() const {
  for (const Arrival& a : arriving_) internal::unpack(a.message, receive, a.offset, a.to);
}

}  // namespace dtensor::internal
