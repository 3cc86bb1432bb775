// Copying blocks, against at::Tensor::copy_ on views.
#include "comm/block_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  const auto t = at::arange(n, at::kLong).reshape(sizes);
  return dtype == at::kBool ? t.remainder(3).eq(0) : t.remainder(251).to(dtype);
}

at::Tensor narrowed(at::Tensor t, const Shape& offsets, const Shape& sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) t = t.narrow(static_cast<int64_t>(d), offsets[d], sizes[d]);
  return t;
}

// Copies by copy_block and by ATen into equal tensors; true if all of both is equal, what lies around the block, too.
bool copies_alike(const at::Tensor& from, const at::Tensor& to, const Block& block) {
  const at::Tensor expected = to.clone();
  narrowed(expected, block.to, block.sizes).copy_(narrowed(from, block.from, block.sizes));
  copy_block(from, to, block);
  return at::equal(to, expected);
}

// Tensors of `sizes` whose memory lies in other ways.
std::vector<at::Tensor> strided(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> reversed(sizes.rbegin(), sizes.rend()), wide(sizes.begin(), sizes.end()),
      one(sizes.begin(), sizes.end());
  std::vector<int64_t> order;
  for (size_t d = 0; d < sizes.size(); ++d) order.push_back(static_cast<int64_t>(sizes.size() - 1 - d));
  std::vector<at::Tensor> all = {numbers(sizes, dtype), numbers(reversed, dtype).permute(order)};
  if (sizes.empty()) return all;
  wide.back() = 2 * sizes.back() + 1;
  one[0] = 1;
  const auto last = static_cast<int64_t>(sizes.size()) - 1;
  all.push_back(numbers(wide, dtype).narrow(last, 1, sizes.back()));        // gaps between rows
  all.push_back(numbers(wide, dtype).slice(last, 0, 2 * sizes.back(), 2));  // gaps between elements
  all.push_back(numbers(one, dtype).expand(sizes));                         // one row many times
  all.push_back(
      numbers(wide, dtype).slice(last, 1, 1 + sizes.back()).transpose(0, last).contiguous().transpose(0, last));
  return all;
}

TEST_CASE("blocks of tensors with any strides", "[mesh][block_copy]") {
  std::mt19937 random(3);
  const auto draw = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  for (const auto dtype : {at::kBool, at::kByte, at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble}) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {7}, {5, 6}, {1, 9}, {4, 1, 6}, {3, 5, 2, 4}}) {
      for (const at::Tensor& from : strided(sizes, dtype)) {
        for (const at::Tensor& target : strided(sizes, dtype)) {
          for (int k = 0; k < 4; ++k) {
            Block block;
            for (int64_t size : sizes) {
              block.sizes.push_back(k == 0 ? size : draw(0, size));
              block.from.push_back(draw(0, size - block.sizes.back()));
              block.to.push_back(draw(0, size - block.sizes.back()));
            }
            at::Tensor to = target.clone();  // keeps the strides, if they do not overlap
            if (to.strides() != target.strides()) to = at::zeros(sizes, target.options());
            CAPTURE(dtype, sizes, from.strides(), to.strides(), k);
            CHECK(copies_alike(from, to, block));
          }
        }
      }
    }
  }
}

TEST_CASE("large blocks", "[mesh][block_copy]") {
  const auto from = numbers({600, 1100}, at::kFloat);
  CHECK(copies_alike(from, at::zeros({600, 1100}), {{0, 0}, {0, 0}, {600, 1100}}));      // one run
  CHECK(copies_alike(from, at::zeros({600, 1100}), {{1, 1}, {2, 3}, {598, 1001}}));      // long runs
  CHECK(copies_alike(from, at::zeros({600, 1100}), {{1, 1}, {2, 3}, {598, 2}}));         // short runs
  CHECK(copies_alike(from, at::zeros({600, 1100}), {{1, 1}, {2, 3}, {598, 1}}));         // elements
  CHECK(copies_alike(from.t(), at::zeros({1100, 600}), {{1, 1}, {2, 3}, {1000, 590}}));  // transposed
  CHECK(copies_alike(from.view({60, 10, 1100}), at::zeros({61, 11, 1101}), {{0, 1, 2}, {1, 2, 3}, {60, 9, 1098}}));
}

TEST_CASE("tensors without plain memory are copied by ATen", "[mesh][block_copy]") {
  const auto real = numbers({4, 3}, at::kDouble);
  const auto z = at::complex(real, real + 1);
  CHECK(copies_alike(z.conj(), at::zeros({4, 3}, at::kComplexDouble), {{1, 0}, {0, 1}, {3, 2}}));
  CHECK(copies_alike(at::imag(z.conj()), at::zeros({4, 3}, at::kDouble), {{1, 0}, {0, 1}, {3, 2}}));  // a negative view
}

TEST_CASE("a block is cleared and viewed", "[mesh][block_copy]") {
  auto t = at::full_like(numbers({4, 5}, at::kLong), 3);
  clear_block(t, {{0, 0}, {1, 2}, {2, 3}});
  CHECK(t.sum().item<int64_t>() == 3 * (20 - 6));
  CHECK(block_view(t, {1, 2}, {2, 3}).sum().item<int64_t>() == 0);
  CHECK(block_view(t, {1, 2}, {2, 3}).is_alias_of(t));
  clear_block(t, {{0, 0}, {0, 0}, {4, 0}});
  CHECK(t.sum().item<int64_t>() == 3 * (20 - 6));
}

}  // namespace
}  // namespace dtensor
