// Lookups into the rows of a table that one rank holds, and their gradient: what is computed for one id, the CPU
// kernels beside ATen's operators in float64, and the registered operators with autograd.
#include "ops/embedding/masked_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "comm/store_past_caches.h"
#include "ops/embedding/mask_buffer.h"
#include "ops/kernels/cpu/embedding.h"
#include "ops/kernels/embedding.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/intra_op_threads.h"

using namespace dtensor;
using namespace dtensor::internal;
using Catch::Contains;

namespace {

at::Tensor ids_of(const std::vector<int64_t>& ids) { return at::tensor(ids, at::kLong); }

// The gradient of the rows in float64, by ATen's operators.
at::Tensor expected_gradient(const at::Tensor& grad, const at::Tensor& ids, const TableRows& rows) {
  return masked_embedding_backward(grad.to(at::kDouble), ids, rows.offset, rows.size, rows.padding_idx, false);
}

at::Tensor kernel_gradient(const at::Tensor& grad, const at::Tensor& ids, const TableRows& rows) {
  return cpu::masked_embedding_backward(grad, ids, rows.offset, rows.size, rows.num_rows, rows.padding_idx);
}

// Relative to the sums of the absolute values.
double tolerance(c10::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-14 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

void check_gradient(const at::Tensor& grad, const at::Tensor& ids, const TableRows& rows) {
  CAPTURE(grad.scalar_type(), grad.sizes(), ids.sizes(), rows.offset, rows.size, rows.padding_idx);
  const at::Tensor actual = kernel_gradient(grad, ids, rows), expected = expected_gradient(grad, ids, rows);
  REQUIRE(actual.sizes() == expected.sizes());
  CHECK(actual.scalar_type() == grad.scalar_type());
  const at::Tensor bound = expected_gradient(grad.abs(), ids, rows).mul(tolerance(grad.scalar_type()));
  CHECK((actual.to(at::kDouble) - expected).abs().le(bound).all().item<bool>());
}

at::Tensor masked_embedding_op(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows,
                               int64_t padding_idx = -1) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("dtensor::masked_embedding", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t)>()
      .call(part, ids, offset, num_rows, padding_idx);
}

at::Tensor masked_embedding_backward_op(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                        int64_t num_own_rows, int64_t num_rows, int64_t padding_idx = -1) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("dtensor::masked_embedding_backward", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t, int64_t)>()
      .call(grad, ids, offset, num_own_rows, num_rows, padding_idx);
}

}  // namespace

TEST_CASE("an id in the rank's rows is counted from the first of them, another one has no row here") {
  const TableRows rows{4, 3, 10, 5};
  CHECK(own_row(3, rows) == kNotOwn);
  CHECK(own_row(4, rows) == 0);
  CHECK(own_row(6, rows) == 2);
  CHECK(own_row(7, rows) == kNotOwn);
  CHECK(own_row(5, rows) == 1);
  CHECK(gradient_row(5, rows) == kNotOwn);  // padding
  CHECK(gradient_row(6, rows) == 2);
  CHECK(own_row(0, TableRows{0, 0, 10}) == kNotOwn);
  for (int64_t wrong : {int64_t{-1}, int64_t{10}, std::numeric_limits<int64_t>::min()}) {
    CHECK_FALSE(is_in_table(wrong, rows));
    CHECK(own_row(wrong, rows) == kNotOwn);
  }
  CHECK(is_in_table(0, rows));
  CHECK(is_in_table(9, rows));
}

TEST_CASE("a row is copied in the largest chunks that divide its size and both addresses") {
  alignas(16) char memory[64];
  CHECK(chunk_bytes(memory, memory + 16, 32) == 16);
  CHECK(chunk_bytes(memory, memory + 16, 48) == 16);
  CHECK(chunk_bytes(memory + 8, memory, 32) == 8);
  CHECK(chunk_bytes(memory, memory, 12) == 4);
  CHECK(chunk_bytes(memory, memory + 2, 32) == 2);
  CHECK(chunk_bytes(memory, memory, 7) == 1);
}

TEST_CASE("the threads of a row together write all of its chunks: those of the table, or zeros") {
  std::vector<Chunk<4>> table(6), out(3);
  for (unsigned char c = 0; c < 6; ++c) table[c].bytes[0] = c + 1;
  for (int64_t row : {int64_t{0}, int64_t{1}, kNotOwn}) {
    for (Chunk<4>& chunk : out) chunk.bytes[0] = 99;
    for (int64_t thread = 0; thread < 2; ++thread) look_up_row(table.data(), row, out.data(), 3, thread, 2);
    for (int64_t c = 0; c < 3; ++c) CHECK(out[c].bytes[0] == (row == kNotOwn ? 0 : row * 3 + c + 1));
  }
}

TEST_CASE("the start of a row's ids is found among sorted keys") {
  const std::vector<int32_t> keys = {0, 0, 2, 2, 2, 5};
  const std::vector<int32_t> starts = {0, 2, 2, 5, 5, 5, 6};
  for (int32_t row = 0; row < 7; ++row) CHECK(first_not_below(keys.data(), 6, row) == starts[row]);
  CHECK(first_not_below(keys.data(), 0, 3) == 0);
}

TEST_CASE("sums over parts of a row's positions add up to the sum over all of them") {
  // Rows of two chunks of two numbers.
  const std::vector<double> grad = {1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 300, 400};
  const auto* chunks = reinterpret_cast<const Elements<double, 2>*>(grad.data());
  const std::vector<int32_t> positions = {2, 0, 1};
  double all[2] = {}, even[2] = {}, odd[2] = {}, none[2] = {};
  add_rows<double, 2>(chunks, 2, 1, positions.data(), 0, 3, 1, all);
  add_rows<double, 2>(chunks, 2, 1, positions.data(), 0, 3, 2, even);
  add_rows<double, 2>(chunks, 2, 1, positions.data(), 1, 3, 2, odd);
  add_rows<double, 2>(chunks, 2, 1, positions.data(), 3, 3, 1, none);
  CHECK((all[0] == 333 && all[1] == 444));
  CHECK((even[0] == 330 && even[1] == 440));
  CHECK((odd[0] == 3 && odd[1] == 4));
  CHECK((none[0] == 0 && none[1] == 0));
}

TEST_CASE("the lookup has the rank's rows, and zeros for other ids, in every dtype and width") {
  at::manual_seed(0);
  for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong}) {
    for (int64_t features : {0, 1, 3, 4, 7, 64, 100, 1030}) {
      CAPTURE(dtype, features);
      const at::Tensor part = at::rand({5, features}).mul(100).to(dtype), ids = at::randint(17, {6, 7}, at::kLong);
      for (const at::Tensor& typed : {ids, ids.to(at::kInt), ids.t()}) {
        CHECK(fused_masked_embedding(part, typed, 4, 17).equal(masked_embedding(part, typed, 4, 17)));
        CHECK(fused_masked_embedding(part.narrow(0, 0, 0), typed, 17, 17).eq(0).all().item<bool>());
      }
    }
  }
  // A conjugate view has not the values that its memory has.
  const at::Tensor part = at::randn({3, 2}, at::kComplexDouble).conj(), ids = ids_of({1, 0, 9});
  CHECK(fused_masked_embedding(part, ids, 0, 10).equal(masked_embedding(part.resolve_conj(), ids, 0, 10)));
}

TEST_CASE("a lookup larger than the caches equals ATen's") {
  const int64_t count = internal::kPastCaches / (1031 * 4) + 1;
  const at::Tensor part = at::rand({40, 1031}), ids = at::randint(100, {count}, at::kLong);
  CHECK(fused_masked_embedding(part, ids, 30, 100).equal(masked_embedding(part, ids, 30, 100)));
}

TEST_CASE("gradients of the rank's rows equal ATen's in float64, for every dtype, width and shard", "[kernel]") {
  at::manual_seed(0);
  for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (int64_t features : {1, 3, 7, 8, 64, 1100}) {
      for (const TableRows& rows :
           {TableRows{0, 5, 20}, TableRows{5, 6, 20, 7}, TableRows{15, 5, 20, 2}, TableRows{20, 0, 20}}) {
        for (const at::Tensor& ids :
             {at::randint(20, {40}, at::kLong), at::randint(20, {3, 4}, at::kInt), at::randint(20, {0, 2}, at::kLong),
              at::randint(12, 15, {9}, at::kLong), at::randint(20, {2, 5}, at::kLong).t()}) {
          std::vector<int64_t> sizes = ids.sizes().vec();
          sizes.push_back(features);
          check_gradient(at::randn(sizes).to(dtype), ids, rows);
        }
      }
    }
  }
}

TEST_CASE("a gradient that is not contiguous is read by its strides", "[kernel]") {
  const at::Tensor ids = at::randint(9, {12}, at::kLong);
  check_gradient(at::randn({7, 12}).t(), ids, {2, 4, 9});
  check_gradient(at::ones({1, 1}).expand({12, 7}), ids, {2, 4, 9});
}

TEST_CASE("thousands of equal ids are added up, half types in float", "[kernel]") {
  const at::Tensor ids = at::full({5000}, 3, at::kLong);
  const TableRows rows{2, 4, 10};
  check_gradient(at::rand({5000, 8}), ids, rows);
  for (auto dtype : {at::kHalf, at::kBFloat16}) {
    // Added up in the dtype itself, ones would stop at 2048 or 256.
    const at::Tensor sum = kernel_gradient(at::ones({5000, 3}).to(dtype), ids, rows);
    CHECK(sum[1].to(at::kDouble).eq(at::full({}, 5000.0, at::kDouble).to(dtype).item<double>()).all().item<bool>());
    CHECK(sum[0].eq(0).all().item<bool>());
  }
}

TEST_CASE("a gradient larger than the caches equals ATen's", "[kernel]") {
  const int64_t rows = internal::kPastCaches / (1031 * 4) + 1;
  // Most rows without an id between few that have one, and few between many.
  for (const int64_t num_ids : {300, 20000}) {
    const at::Tensor ids = at::randint(20000, {num_ids}, at::kLong);
    check_gradient(at::randn({num_ids, 1031}), ids, {3000, rows, 20000});
    if (num_ids == 300) check_gradient(at::randn({num_ids, 2062}).to(at::kBFloat16), ids, {3000, rows, 20000});
  }
}

TEST_CASE("gradients are bitwise equal every time and for any number of threads", "[kernel]") {
  at::manual_seed(0);
  const at::Tensor ids = at::randint(50, {20000}, at::kLong);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor grad = at::randn({20000, 24}).to(dtype);
    std::optional<testing::IntraOpThreads> threads(1);
    const at::Tensor one = kernel_gradient(grad, ids, {5, 30, 50});
    CHECK(kernel_gradient(grad, ids, {5, 30, 50}).equal(one));
    threads.emplace(4);
    CHECK(kernel_gradient(grad, ids, {5, 30, 50}).equal(one));
    threads.reset();
    // The parts of all ranks are those of the whole gradient.
    CHECK(at::cat({kernel_gradient(grad, ids, {0, 5, 50}), one, kernel_gradient(grad, ids, {35, 15, 50})})
              .equal(kernel_gradient(grad, ids, {0, 50, 50})));
  }
}

TEST_CASE("ids outside the table are index errors, forward and backward") {
  const at::Tensor part = at::rand({3, 2}), grad = at::rand({2, 2});
  for (int64_t wrong : {-1, 10, 1000}) {
    const at::Tensor ids = ids_of({4, wrong});
    CHECK_THROWS_AS(fused_masked_embedding(part, ids, 4, 10), c10::IndexError);
    // Next to ids of other ranks, whose rows of zeros are written together.
    CHECK_THROWS_AS(fused_masked_embedding(part, ids_of({0, wrong}), 4, 10), c10::IndexError);
    CHECK_THROWS_AS(fused_masked_embedding(part, ids_of({wrong, 0, 9}), 4, 10), c10::IndexError);
    CHECK_THROWS_AS(fused_masked_embedding(part, ids_of({0, wrong, 0}), 4, 10), c10::IndexError);
    CHECK_THROWS_AS(fused_masked_embedding_backward(grad, ids, 4, 3, 10, -1), c10::IndexError);
    CHECK_THROWS_WITH(fused_masked_embedding_backward(grad, ids, 4, 3, 10, -1), Contains("index out of range in self"));
  }
}

TEST_CASE("dtensor::masked_embedding has first and second derivatives") {
  const int64_t offset = 2, num_rows = 8, padding_idx = 3;
  const at::Tensor ids = ids_of({0, 2, 3, 4, 4, 7}).view({2, 3});
  const at::Tensor part = at::randn({3, 2}, at::kDouble).requires_grad_(), seed = at::randn({2, 3, 2}, at::kDouble);
  const at::Tensor out = masked_embedding_op(part, ids, offset, num_rows, padding_idx);
  CHECK(out.equal(masked_embedding(part.detach(), ids, offset, num_rows)));
  const at::Tensor weights = seed.clone().requires_grad_();
  const at::Tensor gradient = torch::autograd::grad({out}, {part}, {weights}, true, /*create_graph=*/true)[0];
  CHECK(gradient.detach().allclose(expected_gradient(seed, ids, {offset, 3, num_rows, padding_idx})));
  CHECK(gradient.detach()[1].eq(0).all().item<bool>());  // padding

  // Linear in `weights`: its gradient is what a lookup finds in the factors, zero for padding and other ranks' rows.
  const at::Tensor factors = at::randn({3, 2}, at::kDouble);
  const at::Tensor second = torch::autograd::grad({gradient}, {weights}, {factors})[0];
  const at::Tensor expected =
      masked_embedding(factors, ids, offset, num_rows) * ids.ne(padding_idx).unsqueeze(-1).to(at::kDouble);
  CHECK(second.equal(expected));
}

TEST_CASE("numerical derivatives of dtensor::masked_embedding equal those of its backward") {
  const at::Tensor ids = ids_of({1, 2, 2, 5}), seed = at::randn({4, 2}, at::kDouble);
  const at::Tensor part = at::randn({2, 2}, at::kDouble);
  const at::Tensor gradient = masked_embedding_backward_op(seed, ids, 1, 2, 6);
  for (int64_t i = 0; i < 4; ++i) {
    const at::Tensor step = at::zeros({4}, at::kDouble);
    step[i] = 0.5;  // the lookup is linear, so a large step is exact
    const auto value = [&](const at::Tensor& p) { return (masked_embedding_op(p, ids, 1, 6) * seed).sum(); };
    const at::Tensor difference = value(part + step.view({2, 2})) - value(part - step.view({2, 2}));
    CHECK(difference.item<double>() == Approx(gradient.view({4})[i].item<double>()));
  }
}

TEST_CASE("dtensor::masked_embedding on tensors without data has the sizes of the result") {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor ids = at::empty({2, 3}, meta.dtype(at::kLong));
  const at::Tensor out = masked_embedding_op(at::empty({4, 5}, meta), ids, 4, 10);
  CHECK((out.is_meta() && out.sizes() == at::IntArrayRef({2, 3, 5})));
  const at::Tensor gradient = masked_embedding_backward_op(at::empty({2, 3, 5}, meta), ids, 4, 4, 10);
  CHECK((gradient.is_meta() && gradient.sizes() == at::IntArrayRef({4, 5})));
}

TEST_CASE("dtensor::masked_embedding says which argument is wrong") {
  const at::Tensor ids = ids_of({1});
  CHECK_THROWS_WITH(masked_embedding_op(at::rand({4, 2}), ids, 7, 10),
                    Contains("rows [7, 11) are not all within the table's 10 rows"));
  CHECK_THROWS_WITH(masked_embedding_op(at::rand({4}), ids, 0, 10), Contains("'part' must be [rows, features]"));
  CHECK_THROWS_WITH(masked_embedding_backward_op(at::rand({2, 3}), ids, 0, 4, 10),
                    Contains("'grad' must have the sizes of 'ids' and one more dim"));
}
