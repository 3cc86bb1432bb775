#include "comm/packed_blocks.h"

#include <ATen/ops/empty.h>

#include "comm/block_copy.h"

namespace dtensor::internal {
namespace {

// The tensor of a message at `offset` of a buffer of bytes. Undefined where that is no place for its dtype, which only
// happens after the block of another one.
at::Tensor slot(const at::Tensor& buffer, int64_t offset, int64_t bytes, const Shape& sizes, const at::Tensor& end) {
  if ((buffer.storage_offset() + offset) % static_cast<int64_t>(end.element_size()) != 0) return {};
  return buffer.narrow(0, offset, bytes).view(end.scalar_type()).view(c10::IntArrayRef(sizes.data(), sizes.size()));
}

}  // namespace

int64_t message_bytes(const Message& m, const at::Tensor& end) {
  return numel_of(m.block.sizes) * static_cast<int64_t>(end.element_size());
}

void pack(const Message& m, const at::Tensor& from, const at::Tensor& buffer, int64_t offset) {
  const Block block{m.block.from, Shape(m.block.sizes.size(), 0), m.block.sizes};
  const int64_t bytes = message_bytes(m, from);
  at::Tensor to = slot(buffer, offset, bytes, m.block.sizes, from);
  if (to.defined()) return copy_block(from, to, block);
  to = at::empty(c10::IntArrayRef(m.block.sizes.data(), m.block.sizes.size()), from.options());
  copy_block(from, to, block);
  buffer.narrow(0, offset, bytes).copy_(to.view(-1).view(at::kByte));
}

void unpack(const Message& m, const at::Tensor& buffer, int64_t offset, const at::Tensor& to) {
  const Block block{Shape(m.block.sizes.size(), 0), m.block.to, m.block.sizes};
  const int64_t bytes = message_bytes(m, to);
  at::Tensor from = slot(buffer, offset, bytes, m.block.sizes, to);
  if (!from.defined()) {
    from = at::empty(c10::IntArrayRef(m.block.sizes.data(), m.block.sizes.size()), to.options());
    from.view(-1).view(at::kByte).copy_(buffer.narrow(0, offset, bytes));
  }
  copy_block(from, to, block);
}

}  // namespace dtensor::internal
