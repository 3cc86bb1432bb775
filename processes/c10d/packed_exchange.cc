#include "processes/c10d/packed_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/block_copy.h"
#include "comm/packed_blocks.h"

namespace dtensor::internal {
namespace {

// Whether the backend can read and write the elements of `t` where they lie.
bool is_stored_on(const at::Tensor& t, c10::Device device) {
  return t.device() == device && t.layout() == at::kStrided && !t.is_conj() && !t.is_neg() && !t._is_zerotensor();
}

at::Tensor empty_bytes(int64_t size, c10::Device device) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device));
}

int64_t sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

// Messages by their other end.
enum class Which { kAll, kOfOthers, kOwn };

// This rank's ends of messages: the blocks that it sends, or those that it receives.
class Ends {
 public:
  Ends(bool are_sent, int64_t position, int64_t group_size, c10::Device device, const Pieces& tensors)
      : are_sent_(are_sent), position_(position), device_(device), tensors_(tensors), messages_(group_size) {}

  // `other`: position of the other end.
  void add(int64_t other, const Message& m) { messages_[other].push_back(&m); }

  const at::Tensor& tensor(const Message& m) const { return tensors_[are_sent_ ? m.input : m.output]; }
  int64_t bytes(const Message& m) const { return message_bytes(m, tensor(m)); }

  // In the order of the other ends' positions.
  template <typename Visit>
  void visit(Which which, Visit visit) const {
    for (size_t p = 0; p < messages_.size(); ++p) {
      const bool is_own = static_cast<int64_t>(p) == position_;
      if (which == (is_own ? Which::kOfOthers : Which::kOwn)) continue;
      for (const Message* m : messages_[p]) visit(static_cast<int64_t>(p), *m);
    }
  }

  std::vector<int64_t> bytes_by_position(Which which) const {
    std::vector<int64_t> sums(messages_.size());
    visit(which, [&](int64_t p, const Message& m) { sums[p] += bytes(m); });
    return sums;
  }

  // The memory of the blocks, if it is one range of a tensor in their order; else undefined.
  at::Tensor memory(Which which) const {
    const at::Tensor* of = nullptr;
    int64_t begin = 0, end = 0;  // in bytes of its storage
    bool is_one_range = true;
    visit(which, [&](int64_t, const Message& m) {
      const int64_t size = bytes(m);
      if (size == 0 || !is_one_range) return;
      const at::Tensor& t = tensor(m);
      const auto offset = dense_offset(t, are_sent_ ? m.block.from : m.block.to, m.block.sizes);
      is_one_range = offset && is_stored_on(t, device_);
      if (!is_one_range) return;
      const int64_t block = (t.storage_offset() + *offset) * static_cast<int64_t>(t.element_size());
      if (of == nullptr) of = &t, begin = end = block;
      is_one_range = block == end && t.storage().is_alias_of(of->storage());
      end += size;
    });
    if (!is_one_range) return {};
    at::Tensor memory = empty_bytes(0, device_);
    return of == nullptr ? memory : memory.set_(of->storage(), begin, {end - begin}, {1});
  }

 private:
  const bool are_sent_;
  const int64_t position_;  // of this rank
  const c10::Device device_;
  const Pieces& tensors_;
  std::vector<std::vector<const Message*>> messages_;  // by position of the other end
};

// Which messages are exchanged, and their memory: a tensor's, or undefined, which takes a buffer.
struct Memory {
  Which sent, received;
  at::Tensor send, receive;
  int64_t buffer_bytes = 0;

  Memory(Which which_sent, const Ends& sends, Which which_received, const Ends& receives, bool inputs_stay)
      : sent(which_sent),
        received(which_received),
        send(inputs_stay ? sends.memory(sent) : at::Tensor()),
        receive(receives.memory(received)) {
    if (!send.defined()) buffer_bytes += sum(sends.bytes_by_position(sent));
    if (!receive.defined()) buffer_bytes += sum(receives.bytes_by_position(received));
  }
};

// With or without this rank's own messages, whichever needs smaller buffers.
Memory memory_of(const Ends& sends, const Ends& receives, bool inputs_stay) {
  Memory others(Which::kOfOthers, sends, Which::kOfOthers, receives, inputs_stay);
  if (others.buffer_bytes == 0) return others;
  Memory all(Which::kAll, sends, Which::kAll, receives, inputs_stay);
  return all.buffer_bytes < others.buffer_bytes ? all : others;
}

bool are_equal(const std::vector<int64_t>& parts) {
  return parts[0] > 0 && std::all_of(parts.begin(), parts.end(), [&](int64_t bytes) { return bytes == parts[0]; });
}

}  // namespace

PackedExchange::PackedExchange(const RankGroups& group, int64_t rank, c10::Device device,
                               absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs,
                               bool inputs_stay, bool gathers)
    : position(group.position_of[rank]) {
  Ends sends(true, position, group.size, device, inputs[0]), receives(false, position, group.size, device, outputs[0]);
  for (const Message& m : messages) {
    if (m.sender == rank) sends.add(group.position_of[m.receiver], m);
    if (m.receiver == rank) receives.add(group.position_of[m.sender], m);
  }
  is_gather = gathers && group.size > 1 && are_equal(receives.bytes_by_position(Which::kAll));
  Memory memory = is_gather ? Memory(Which::kOwn, sends, Which::kAll, receives, inputs_stay)
                            : memory_of(sends, receives, inputs_stay);
  send_bytes = sends.bytes_by_position(memory.sent);
  receive_bytes = receives.bytes_by_position(memory.received);
  if (memory.sent == Which::kOfOthers) {
    sends.visit(Which::kOwn,
                [&](int64_t, const Message& m) { copy_block(inputs[0][m.input], outputs[0][m.output], m.block); });
  }
  send = std::move(memory.send);
  receive = std::move(memory.receive);
  int64_t offset = 0;
  if (!send.defined()) {
    send = empty_bytes(sum(send_bytes), device);
    sends.visit(memory.sent, [&](int64_t, const Message& m) {
      pack(m, sends.tensor(m), send, offset);
      offset += sends.bytes(m);
    });
  }
  offset = 0;
  if (!receive.defined()) {
    receive = empty_bytes(sum(receive_bytes), device);
    receives.visit(memory.received, [&](int64_t, const Message& m) {
      arriving_.push_back({m, offset, receives.tensor(m)});
      offset += receives.bytes(m);
    });
  }
}

void PackedExchange::unpack() const {
  for (const Arrival& a : arriving_) internal::unpack(a.message, receive, a.offset, a.to);
}

}  // namespace dtensor::internal
