#include "mesh/packed_blocks.h"

#include "mesh/block_copy.h"

namespace dtensor {
namespace {

constexpr int64_t kAlign = 16;  // no dtype is wider

// The tensor of a message at `offset` of a buffer of bytes.
at::Tensor slot(const at::Tensor& buffer, int64_t offset, const Shape& sizes, at::ScalarType dtype) {
  const int64_t bytes = numel_of(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  return buffer.narrow(0, offset, bytes).view(dtype).view(c10::IntArrayRef(sizes.data(), sizes.size()));
}

}  // namespace

int64_t numel_of(const Shape& sizes) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return numel;
}

int64_t packed_bytes(const Message& m, const at::Tensor& end) {
  const int64_t bytes = numel_of(m.block.sizes) * static_cast<int64_t>(end.element_size());
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

void pack(const Message& m, const at::Tensor& from, const at::Tensor& buffer, int64_t offset) {
  const Block block{m.block.from, Shape(m.block.sizes.size(), 0), m.block.sizes};
  copy_block(from, slot(buffer, offset, m.block.sizes, from.scalar_type()), block);
}

void unpack(const Message& m, const at::Tensor& buffer, int64_t offset, const at::Tensor& to) {
  const Block block{Shape(m.block.sizes.size(), 0), m.block.to, m.block.sizes};
  copy_block(slot(buffer, offset, m.block.sizes, to.scalar_type()), to, block);
}

}  // namespace dtensor
