#include "comm/block_copy.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "absl/container/inlined_vector.h"

namespace dtensor::internal {
namespace {

// From so many bytes on, copies are shared out to ATen's threads, if it has any.
constexpr int64_t kManyBytes = int64_t{1} << 20;
// From so many elements on, ATen's transposing copy is faster than single elements in a row.
constexpr int64_t kManyElements = int64_t{1} << 11;

struct Dim {
  int64_t size, from, to;  // strides in bytes
};
using Dims = absl::InlinedVector<Dim, 6>;

// Without dims of size 1, neighbours as one where both sides allow it.
Dims collapsed(const at::Tensor& from, const at::Tensor& to, const Shape& sizes) {
  const int64_t item = static_cast<int64_t>(to.element_size());
  const auto from_strides = from.strides(), to_strides = to.strides();
  Dims dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    const Dim dim{sizes[d], from_strides[d] * item, to_strides[d] * item};
    if (!dims.empty() && dims.back().from == dim.size * dim.from && dims.back().to == dim.size * dim.to) {
      dims.back() = {dims.back().size * dim.size, dim.from, dim.to};
    } else {
      dims.push_back(dim);
    }
  }
  return dims;
}

template <int64_t kBytes>
void copy_items(const char* from, char* to, int64_t n, const Dim& dim) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * dim.to, from + i * dim.from, kBytes);
}

void copy_row(const char* from, char* to, int64_t n, const Dim& dim, int64_t run) {
  switch (run) {  // a call of memcpy for 4 bytes costs more than they do
    case 1:
      return copy_items<1>(from, to, n, dim);
    case 2:
      return copy_items<2>(from, to, n, dim);
    case 4:
      return copy_items<4>(from, to, n, dim);
    case 8:
      return copy_items<8>(from, to, n, dim);
    case 16:
      return copy_items<16>(from, to, n, dim);
    default:
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * dim.to, from + i * dim.from, run);
  }
}

// All `count` runs that `dims` (at least one) enumerate, the last dim fastest.
void copy_rows(const char* from, char* to, const Dims& dims, int64_t run, int64_t count) {
  absl::InlinedVector<int64_t, 6> index(dims.size());
  const Dim& last = dims.back();
  for (int64_t done = 0; done < count; done += last.size) {
    copy_row(from, to, last.size, last, run);
    for (size_t d = dims.size() - 1; d-- > 0;) {
      from += dims[d].from;
      to += dims[d].to;
      if (++index[d] < dims[d].size) break;
      from -= dims[d].size * dims[d].from;
      to -= dims[d].size * dims[d].to;
      index[d] = 0;
    }
  }
}

int64_t offset_of(const at::Tensor& t, const Shape& offsets) {
  const auto strides = t.strides();
  int64_t offset = 0;
  for (size_t d = 0; d < offsets.size(); ++d) offset += offsets[d] * strides[d];
  return offset;
}

// Of a block in plain memory: its first element, null if it is not row-major without gaps.
const char* first_if_dense(const at::Tensor& t, const Shape& offsets, const Shape& sizes) {
  const auto strides = t.strides();
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != stride) return nullptr;
    stride *= sizes[d];
  }
  return static_cast<const char*>(t.const_data_ptr()) + offset_of(t, offsets) * static_cast<int64_t>(t.element_size());
}

}  // namespace

int64_t numel_of(const Shape& sizes) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return numel;
}

const char* dense_block(const at::Tensor& t, const Shape& offsets, const Shape& sizes) {
  return is_plain_memory(t) ? first_if_dense(t, offsets, sizes) : nullptr;
}

const char* dense_block_on(const at::Tensor& t, const Shape& offsets, const Shape& sizes, c10::Device device) {
  const bool is_plain =
      t.device() == device && t.layout() == at::kStrided && !t.is_conj() && !t.is_neg() && !t._is_zerotensor();
  return is_plain ? first_if_dense(t, offsets, sizes) : nullptr;
}

at::Tensor block_view(const at::Tensor& t, const Shape& offsets, const Shape& sizes) {
  if (t.sizes().equals({sizes.data(), sizes.size()})) return t;
  return t.as_strided({sizes.data(), sizes.size()}, t.strides(), t.storage_offset() + offset_of(t, offsets));
}

void copy_block(const at::Tensor& from, const at::Tensor& to, const Block& block) {
  int64_t count = numel_of(block.sizes);
  if (count == 0) return;
  const auto by_aten = [&] { block_view(to, block.to, block.sizes).copy_(block_view(from, block.from, block.sizes)); };
  if (!is_plain_memory(from) || !is_plain_memory(to)) return by_aten();

  Dims dims = collapsed(from, to, block.sizes);
  const int64_t item = static_cast<int64_t>(to.element_size());
  int64_t run = item;  // bytes that lie in a row on both sides
  if (!dims.empty() && dims.back().from == item && dims.back().to == item) {
    count /= dims.back().size;
    run *= dims.back().size;
    dims.pop_back();
  } else if (count >= kManyElements) {
    return by_aten();
  }
  if (count * run >= kManyBytes && at::get_num_threads() > 1) return by_aten();
  const char* source = static_cast<const char*>(from.const_data_ptr()) + offset_of(from, block.from) * item;
  char* target = static_cast<char*>(to.mutable_data_ptr()) + offset_of(to, block.to) * item;
  if (dims.empty()) {
    std::memcpy(target, source, run);
  } else {
    copy_rows(source, target, dims, run, count);
  }
}

void clear_block(const at::Tensor& to, const Block& block) {
  if (numel_of(block.sizes) > 0) block_view(to, block.to, block.sizes).zero_();
}

}  // namespace dtensor::internal
