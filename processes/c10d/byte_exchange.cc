#include "processes/c10d/byte_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "comm/block_copy.h"
#include "comm/packed_blocks.h"

namespace dtensor::internal {
namespace {

// A block that this rank sends or receives.
struct Part {
  int64_t peer;  // position of the rank at the other end
  const Message* message;
  const at::Tensor* tensor;  // of this rank
  const Shape* offsets;      // of the block in the tensor
  int64_t bytes;
};
using Parts = std::vector<Part>;  // in the order of their peers

// What rank `rank` sends of `tensors`, its inputs, or receives into `tensors`, its outputs.
Parts parts_of(bool are_sent, const RankGroups& group, int64_t rank, absl::Span<const Message> messages,
               const Pieces& tensors) {
  Parts parts;
  for (const Message& m : messages) {
    if ((are_sent ? m.sender : m.receiver) != rank) continue;
    const at::Tensor& t = tensors[are_sent ? m.input : m.output];
    parts.push_back({group.position_of[are_sent ? m.receiver : m.sender], &m, &t,
                     are_sent ? &m.block.from : &m.block.to, message_bytes(m, t)});
  }
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.peer < b.peer; });
  return parts;
}

Parts with_peer(Parts parts, int64_t peer) {
  parts.erase(std::remove_if(parts.begin(), parts.end(), [&](const Part& p) { return p.peer != peer; }), parts.end());
  return parts;
}

Parts without_peer(Parts parts, int64_t peer) {
  parts.erase(std::remove_if(parts.begin(), parts.end(), [&](const Part& p) { return p.peer == peer; }), parts.end());
  return parts;
}

int64_t bytes_of(const Parts& parts) {
  int64_t bytes = 0;
  for (const Part& p : parts) bytes += p.bytes;
  return bytes;
}

std::vector<int64_t> bytes_by_peer(const Parts& parts, int64_t group_size) {
  std::vector<int64_t> bytes(group_size);
  for (const Part& p : parts) bytes[p.peer] += p.bytes;
  return bytes;
}

bool are_equal(const std::vector<int64_t>& sizes) {
  return sizes[0] > 0 && std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
}

at::TensorOptions bytes_on(c10::Device device) { return at::TensorOptions().dtype(at::kByte).device(device); }

// The memory of the parts, if it is one range of a tensor in their order; else undefined.
at::Tensor memory_of(const Parts& parts, c10::Device device) {
  const at::Tensor* tensor = nullptr;
  const char *begin = nullptr, *end = nullptr;
  for (const Part& p : parts) {
    if (p.bytes == 0) continue;
    const char* const block = dense_block_on(*p.tensor, *p.offsets, p.message->block.sizes, device);
    if (block == nullptr) return {};
    if (tensor == nullptr) tensor = p.tensor, begin = end = block;
    if (block != end || !p.tensor->storage().is_alias_of(tensor->storage())) return {};
    end += p.bytes;
  }
  if (tensor == nullptr) return at::empty({0}, bytes_on(device));
  // Keeps the tensor and not its storage: a backend may have the memory a moment after its call is done, and the number
  // of a storage's users decides elsewhere whether its memory may be taken. (If the tensor is a view, it is taken for a
  // user of the storage in that moment, and the memory is copied.)
  return at::for_blob(const_cast<char*>(begin), {end - begin})
      .deleter([keep = *tensor](void*) {})
      .options(bytes_on(device))
      .target_device(device)
      .make_tensor();
}

// The parts that a backend exchanges, and their memory; undefined: it takes a buffer.
struct Exchanged {
  Parts sent, received;
  at::Tensor send, receive;
  int64_t buffer_bytes = 0;
};

Exchanged exchanged(Parts sent, Parts received, c10::Device device, bool inputs_stay) {
  Exchanged e{std::move(sent), std::move(received), {}, {}};
  if (inputs_stay) e.send = memory_of(e.sent, device);
  e.receive = memory_of(e.received, device);
  if (!e.send.defined()) e.buffer_bytes += bytes_of(e.sent);
  if (!e.receive.defined()) e.buffer_bytes += bytes_of(e.received);
  return e;
}

}  // namespace

ByteExchange::ByteExchange(const RankGroups& group, int64_t rank, c10::Device device,
                           absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs,
                           bool inputs_stay, bool may_all_gather)
    : position(group.position_of[rank]) {
  const Parts sent = parts_of(/*are_sent=*/true, group, rank, messages, inputs[0]);
  const Parts received = parts_of(/*are_sent=*/false, group, rank, messages, outputs[0]);
  // Between two ranks alltoall_base needs one copy of a part, too, and plans count no other.
  is_all_gather = may_all_gather && group.size > 2 && are_equal(bytes_by_peer(received, group.size));
  Exchanged e;
  if (is_all_gather) {
    e = exchanged(with_peer(sent, position), received, device, inputs_stay);
  } else {
    e = exchanged(without_peer(sent, position), without_peer(received, position), device, inputs_stay);
    Exchanged all;
    if (e.buffer_bytes > 0) all = exchanged(sent, received, device, inputs_stay);
    if (all.buffer_bytes < e.buffer_bytes) {
      e = std::move(all);
    } else {
      for (const Part& p : with_peer(sent, position)) {
        copy_block(*p.tensor, outputs[0][p.message->output], p.message->block);
      }
    }
  }
  send_bytes = bytes_by_peer(e.sent, group.size);
  receive_bytes = bytes_by_peer(e.received, group.size);
  send = e.send.defined() ? e.send : at::empty({bytes_of(e.sent)}, bytes_on(device));
  receive = e.receive.defined() ? e.receive : at::empty({bytes_of(e.received)}, bytes_on(device));
  int64_t offset = 0;
  for (const Part& p : e.sent) {
    if (!e.send.defined()) pack(*p.message, *p.tensor, send, offset);
    offset += p.bytes;
  }
  offset = 0;
  for (const Part& p : e.received) {
    if (!e.receive.defined()) arriving_.push_back({*p.message, offset, *p.tensor});
    offset += p.bytes;
  }
}

void ByteExchange::write_outputs() const {
  for (const Arrival& a : arriving_) unpack(a.message, receive, a.offset, a.to);
}

}  // namespace dtensor::internal
