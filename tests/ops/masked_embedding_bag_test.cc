// Embedding bags over the rows of a table that one rank holds, and their gradients: what is computed for one bag or one
// id, the CPU kernels compared with ATen's operators in float64, and the registered operators with autograd.
#include "ops/embedding/masked_embedding_bag.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "tests/testing/catch_torch.h"
#include "tests/testing/intra_op_threads.h"

using namespace dtensor;
using namespace dtensor::internal;
using Catch::Contains;

namespace {

constexpr int64_t kTableRows = 20;

at::Tensor numbers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Five bags of 30 ids in all; one bag is empty, and one has a single id.
Bags make_bags(int64_t mode, c10::ScalarType type = at::kLong, bool include_last_offset = false) {
  std::vector<int64_t> offsets = {0, 7, 7, 8, 20};
  if (include_last_offset) offsets.push_back(30);
  return {at::randint(kTableRows, {30}, type), numbers(offsets).to(type), {}, mode, include_last_offset};
}

Bags in_float64(Bags bags) {
  if (bags.weights.defined()) bags.weights = bags.weights.to(at::kDouble);
  return bags;
}

// Relative to the sums of the absolute values.
double tolerance_of(c10::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

bool is_close(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& of_absolute_values) {
  // The smallest half numbers have fewer digits.
  const double smallest = actual.scalar_type() == at::kHalf ? 1e-7 : 0;
  const at::Tensor bound = of_absolute_values.mul(tolerance_of(actual.scalar_type())).add(smallest);
  const at::Tensor difference = (actual.to(at::kDouble) - expected).abs();
  return actual.sizes() == expected.sizes() &&
         difference.le(bound).logical_or(actual.to(at::kDouble).eq(expected)).all().item<bool>();
}

// The lookup of the kernel and that of ATen's operators in float64 agree; the kernel's results.
BagResults check_lookup(const at::Tensor& part, const Bags& bags, const TableRows& rows) {
  CAPTURE(part.scalar_type(), part.sizes(), bags.mode, bags.weights.defined(), rows.offset, rows.padding_idx);
  const BagResults actual = fused_masked_embedding_bag(part, bags, rows);
  const BagResults expected = masked_embedding_bag(part.to(at::kDouble), in_float64(bags), rows);
  Bags absolute = in_float64(bags);
  if (absolute.weights.defined()) absolute.weights = absolute.weights.abs();
  const at::Tensor bound = masked_embedding_bag(part.to(at::kDouble).abs(), absolute, rows).result;
  CHECK(actual.result.scalar_type() == part.scalar_type());
  CHECK(is_close(actual.result, expected.result, bound));
  CHECK(actual.bag_of_id.equal(expected.bag_of_id));
  CHECK(actual.bag_size.equal(expected.bag_size));
  CHECK(actual.max_ids.equal(expected.max_ids));
  return actual;
}

void check_gradients(const at::Tensor& part, const Bags& bags, const TableRows& rows, const BagResults& r) {
  CAPTURE(part.scalar_type(), part.sizes(), bags.mode, bags.weights.defined(), rows.offset, rows.padding_idx);
  const at::Tensor grad = at::randn(r.result.sizes()).to(part.scalar_type());
  const BagsOfIds of_ids{bags.ids, r.bag_of_id, bags.weights, r.bag_size, r.max_ids, bags.mode};
  BagsOfIds expected = of_ids, absolute = of_ids;
  expected.weights = in_float64(bags).weights;
  absolute.weights = expected.weights.defined() ? expected.weights.abs() : expected.weights;
  CHECK(is_close(fused_masked_embedding_bag_backward(grad, of_ids, rows),
                 masked_embedding_bag_backward(grad.to(at::kDouble), expected, rows),
                 masked_embedding_bag_backward(grad.to(at::kDouble).abs(), absolute, rows)));
  const auto of_weights = [&](const at::Tensor& g, const at::Tensor& p) {
    return masked_embedding_bag_weights_backward(g.to(at::kDouble), p.to(at::kDouble), bags.ids, r.bag_of_id, rows);
  };
  CHECK(is_close(fused_masked_embedding_bag_weights_backward(grad, part, bags.ids, r.bag_of_id, rows),
                 of_weights(grad, part), of_weights(grad.abs(), part.abs())));
}

using Tensors = std::vector<at::Tensor>;

Tensors bag_op(const at::Tensor& part, const Bags& bags, int64_t offset, int64_t num_rows, int64_t padding_idx = -1) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("dtensor::masked_embedding_bag", "");
  torch::jit::Stack stack = {
      part, bags.ids, bags.offsets, offset, num_rows, bags.mode, c10::IValue(), bags.include_last_offset, padding_idx};
  if (bags.weights.defined()) stack[6] = bags.weights;
  op.callBoxed(stack);
  Tensors results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

}  // namespace

TEST_CASE("a bag's ids go from its offset to the next one, those of the last bag to the end") {
  const std::vector<int32_t> offsets = {0, 3, 3, 4};
  const BagOffsets<int32_t> bags{offsets.data(), 4, 9};
  CHECK((bags.begin(0) == 0 && bags.end(0) == 3));
  CHECK((bags.begin(1) == 3 && bags.end(1) == 3));
  CHECK((bags.begin(3) == 4 && bags.end(3) == 9));
  for (int64_t bag = 0; bag < 4; ++bag) CHECK(bags.is_valid(bag));
  CHECK_FALSE(BagOffsets<int32_t>{offsets.data(), 4, 3}.is_valid(3));      // begins after the ids
  CHECK_FALSE(BagOffsets<int32_t>{offsets.data() + 1, 3, 9}.is_valid(0));  // does not begin with 0
  const std::vector<int32_t> descending = {0, 5, 2, -1};
  CHECK_FALSE(BagOffsets<int32_t>{descending.data(), 3, 9}.is_valid(1));
  CHECK_FALSE(BagOffsets<int32_t>{descending.data(), 4, 9}.is_valid(3));
}

TEST_CASE("a chunk of a bag is the weighted sum, or the largest, of its rows here without padding") {
  const std::vector<double> part = {1, 20, 3, 40, 5, 6};  // rows 4, 5, 6 of two features
  const std::vector<int32_t> ids = {5, 9, 4, 6, 5};
  const std::vector<double> weights = {1, 1, 2, 1, 10};
  const WeightedIds<double, int32_t> of_bag{ids.data(), weights.data(), {4, 3, 10, 6}};
  double sum[2] = {}, largest[2] = {};
  add_bag<Elements<double, 2>>(part.data(), 2, 0, of_bag, 0, 5, sum);
  CHECK((sum[0] == 35 && sum[1] == 480));
  double second[1] = {};
  add_bag<Elements<double, 1>>(part.data(), 2, 1, of_bag, 2, 4, second);
  CHECK(second[0] == 40);
  int64_t rows[2] = {kNotOwn, kNotOwn};
  take_largest<Elements<double, 2>>(part.data(), 2, 0, of_bag, 3, 4, largest, rows);
  CHECK((rows[0] == kNotOwn && rows[1] == kNotOwn));  // padding alone
  take_largest<Elements<double, 2>>(part.data(), 2, 0, of_bag, 0, 4, largest, rows);
  CHECK((largest[0] == 3 && largest[1] == 40 && rows[0] == 1 && rows[1] == 1));
}

TEST_CASE("bags and their gradients equal ATen's in float64, for every mode, dtype, width and shard") {
  at::manual_seed(0);
  for (auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (int64_t features : {1, 7, 8, 45, 100}) {
      for (const TableRows& rows : {TableRows{0, 5, kTableRows}, TableRows{5, 6, kTableRows, 7},
                                    TableRows{15, 5, kTableRows, 2}, TableRows{0, 20, kTableRows, 0}}) {
        const at::Tensor part = at::randn({rows.size, features}).to(dtype);
        for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
          for (auto type : {at::kLong, at::kInt}) {
            const Bags bags = make_bags(mode, type, /*include_last_offset=*/features == 7);
            check_gradients(part, bags, rows, check_lookup(part, bags, rows));
          }
        }
        Bags weighted = make_bags(kBagSum);
        weighted.weights = at::randn({30}).to(dtype);
        check_gradients(part, weighted, rows, check_lookup(part, weighted, rows));
      }
    }
  }
}

TEST_CASE("a rank without rows, or a table without features, gives zeros, and -infinity as maxima") {
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    const Bags bags = make_bags(mode);
    const TableRows none{20, 0, kTableRows};
    const BagResults r = check_lookup(at::rand({0, 3}), bags, none);
    CHECK(r.result.eq(mode == kBagMax ? -std::numeric_limits<double>::infinity() : 0).all().item<bool>());
    check_gradients(at::rand({0, 3}), bags, none, r);
    check_lookup(at::rand({6, 0}), bags, {5, 6, kTableRows});
  }
}

TEST_CASE("sums and means of all ranks add up to those of the whole table, the largest maximum is that of the table") {
  at::manual_seed(0);
  const at::Tensor table = at::randn({kTableRows, 5}, at::kDouble);
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    const Bags bags = make_bags(mode);
    const auto of_rank = [&](int64_t rank) {
      const TableRows rows{rank * 5, 5, kTableRows, 4};
      return fused_masked_embedding_bag(table.narrow(0, rows.offset, rows.size), bags, rows).result;
    };
    at::Tensor all = of_rank(0);
    for (int64_t rank = 1; rank < 4; ++rank)
      all = mode == kBagMax ? at::maximum(all, of_rank(rank)) : all + of_rank(rank);
    if (mode == kBagMax) all = all.masked_fill(all.eq(-std::numeric_limits<double>::infinity()), 0);  // the empty bag
    const at::Tensor expected =
        std::get<0>(at::_embedding_bag(table, bags.ids, bags.offsets, false, mode, false, {}, false, 4));
    CHECK(all.allclose(expected));
  }
}

TEST_CASE("bags of thousands of ids equal ATen's, as do rows with thousands of them") {
  at::manual_seed(0);
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    const Bags bags{at::randint(6, 11, {12000}, at::kLong), numbers({0, 2, 9000, 9100}), {}, mode, false};
    const TableRows rows{5, 4, kTableRows};
    const at::Tensor part = at::randn({4, 40}, at::kDouble);  // of so many equal floats rounding errors add up
    check_gradients(part, bags, rows, check_lookup(part, bags, rows));
  }
}

TEST_CASE("tables, gradients and ids that are not contiguous are read by their strides") {
  Bags bags = make_bags(kBagSum);
  bags.ids = at::randint(kTableRows, {30, 2}, at::kLong).select(1, 0);
  bags.weights = at::randn({30, 2}).select(1, 1);
  const TableRows rows{5, 6, kTableRows};
  const at::Tensor part = at::randn({9, 6}).t();
  const BagResults r = check_lookup(part, bags, rows);
  check_gradients(part, bags, rows, r);
  const BagsOfIds of_ids{bags.ids, r.bag_of_id, bags.weights, r.bag_size, r.max_ids};
  const at::Tensor grad = at::ones({1, 1}).expand({5, 9});
  CHECK(fused_masked_embedding_bag_backward(grad, of_ids, rows)
            .equal(fused_masked_embedding_bag_backward(grad.contiguous(), of_ids, rows)));
}

TEST_CASE("ids and offsets of different integer types give integers of the wider type, and gradients") {
  const at::Tensor part = at::rand({6, 3});
  const TableRows rows{5, 6, kTableRows};
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    for (auto type : {at::kInt, at::kLong}) {
      Bags bags = make_bags(mode, type);
      bags.offsets = bags.offsets.to(type == at::kInt ? at::kLong : at::kInt);
      const BagResults r = check_lookup(part, bags, rows);
      CHECK((r.bag_of_id.scalar_type() == at::kLong && r.bag_size.scalar_type() == at::kLong));
      CHECK((mode != kBagMax || r.max_ids.scalar_type() == at::kLong));
      check_gradients(part, bags, rows, r);
    }
  }
}

TEST_CASE("half types are added up in float") {
  // Added up in the dtype itself, ones would stop at 2048 or 256.
  const Bags bags{at::ones({5000}, at::kLong), numbers({0}), {}, kBagSum, false};
  const TableRows rows{1, 1, 2};
  for (auto dtype : {at::kHalf, at::kBFloat16}) {
    const BagResults r = fused_masked_embedding_bag(at::ones({1, 3}).to(dtype), bags, rows);
    const double expected = at::tensor(5000.0).to(dtype).item<double>();
    CHECK(r.result.to(at::kDouble).eq(expected).all().item<bool>());
    const at::Tensor gradient = fused_masked_embedding_bag_backward(
        at::ones({1, 3}).to(dtype), {bags.ids, r.bag_of_id, {}, r.bag_size, r.max_ids, kBagSum}, rows);
    CHECK(gradient.to(at::kDouble).eq(expected).all().item<bool>());
  }
}

TEST_CASE("bags and their gradients are bitwise equal for any number of threads") {
  at::manual_seed(0);
  const at::Tensor part = at::randn({30, 24}), grad = at::randn({2000, 24});
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    const Bags bags{at::randint(50, {20000}, at::kLong), numbers({}).new_empty({2000}), {}, mode, false};
    for (int64_t bag = 0; bag < 2000; ++bag) bags.offsets.data_ptr<int64_t>()[bag] = bag * 10;
    const TableRows rows{5, 30, 50};
    const auto run = [&](int threads) {
      const testing::IntraOpThreads scope(threads);
      const BagResults r = fused_masked_embedding_bag(part, bags, rows);
      const BagsOfIds of_ids{bags.ids, r.bag_of_id, {}, r.bag_size, r.max_ids, mode};
      return Tensors{r.result, r.bag_of_id, fused_masked_embedding_bag_backward(grad, of_ids, rows)};
    };
    const Tensors one = run(1), again = run(1), four = run(4);
    for (size_t i = 0; i < one.size(); ++i) CHECK((again[i].equal(one[i]) && four[i].equal(one[i])));
  }
}

TEST_CASE("ids outside the table and wrong offsets are index errors") {
  const at::Tensor part = at::rand({6, 2}), grad = at::rand({1, 2});
  const TableRows rows{5, 6, kTableRows};
  for (int64_t wrong : {int64_t{-1}, kTableRows, int64_t{1000}}) {
    const Bags bags{numbers({6, wrong}), numbers({0}), {}, kBagSum, false};
    CHECK_THROWS_AS(fused_masked_embedding_bag(part, bags, rows), c10::IndexError);
    CHECK_THROWS_WITH(fused_masked_embedding_bag(part, bags, rows), Contains("but found idx to be"));
    const at::Tensor zeros = numbers({0, 0});
    CHECK_THROWS_AS(fused_masked_embedding_bag_backward(grad, {bags.ids, zeros, {}, {}, {}}, rows), c10::IndexError);
    CHECK_THROWS_AS(fused_masked_embedding_bag_weights_backward(grad, part, bags.ids, zeros, rows), c10::IndexError);
  }
  for (const auto& offsets : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 2, 1}, {0, -1}}) {
    const Bags bags{numbers({6, 7}), numbers(offsets), {}, kBagSum, false};
    CHECK_THROWS_WITH(fused_masked_embedding_bag(part, bags, rows), Contains("offsets must begin with 0"));
  }
}

TEST_CASE("dtensor::masked_embedding_bag has the derivatives of the composite") {
  at::manual_seed(0);
  const TableRows rows{5, 6, kTableRows, 7};
  for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
    const at::Tensor part = at::randn({6, 3}, at::kDouble).requires_grad_();
    Bags bags = make_bags(mode);
    if (mode == kBagSum) bags.weights = at::randn({30}, at::kDouble).requires_grad_();
    const Tensors r = bag_op(part, bags, rows.offset, rows.num_rows, rows.padding_idx);
    const at::Tensor seed = at::randn({5, 3}, at::kDouble);
    Tensors of = {part};
    if (mode == kBagSum) of.push_back(bags.weights);
    const Tensors gradients = torch::autograd::grad({r[0]}, of, {seed});
    const at::Tensor weights = bags.weights.defined() ? bags.weights.detach() : at::Tensor();
    CHECK(
        gradients[0].allclose(masked_embedding_bag_backward(seed, {bags.ids, r[1], weights, r[2], r[3], mode}, rows)));
    if (mode == kBagSum)
      CHECK(gradients[1].allclose(masked_embedding_bag_weights_backward(seed, part.detach(), bags.ids, r[1], rows)));
    CHECK_FALSE((r[1].requires_grad() || r[2].requires_grad() || r[3].requires_grad()));
  }
}

TEST_CASE("second derivatives of dtensor::masked_embedding_bag are rejected") {
  const at::Tensor part = at::randn({6, 3}).requires_grad_(), seed = at::randn({5, 3}).requires_grad_();
  const at::Tensor result = bag_op(part, make_bags(kBagSum), 5, kTableRows)[0];
  CHECK_THROWS_WITH(torch::autograd::grad({result}, {part}, {seed}, true, /*create_graph=*/true),
                    Contains("second derivatives are not implemented"));
}

TEST_CASE("dtensor::masked_embedding_bag on tensors without data has the sizes of the results") {
  const auto meta = at::TensorOptions().device(at::kMeta);
  for (int64_t mode : {kBagSum, kBagMax}) {
    const Bags bags{at::empty({30}, meta.dtype(at::kInt)), at::empty({6}, meta.dtype(at::kLong)), {}, mode, true};
    const Tensors r = bag_op(at::empty({6, 3}, meta), bags, 5, kTableRows);
    CHECK((r[0].is_meta() && r[0].sizes() == at::IntArrayRef({5, 3})));
    CHECK((r[1].sizes() == at::IntArrayRef({30}) && r[1].scalar_type() == at::kLong));
    CHECK(r[2].sizes() == at::IntArrayRef({5}));
    CHECK(r[3].numel() == (mode == kBagMax ? 15 : 0));
  }
}

TEST_CASE("dtensor::masked_embedding_bag says which argument is wrong") {
  Bags bags = make_bags(kBagSum);
  CHECK_THROWS_WITH(bag_op(at::rand({4, 2}), bags, 17, kTableRows),
                    Contains("rows [17, 21) are not all within the table's 20 rows"));
  CHECK_THROWS_WITH(bag_op(at::rand({4}), bags, 0, kTableRows), Contains("'part' must be [rows, features]"));
  bags.mode = 3;
  CHECK_THROWS_WITH(bag_op(at::rand({4, 2}), bags, 0, kTableRows), Contains("'mode' must be 0 (sum)"));
  bags.mode = kBagMean;
  bags.weights = at::rand({30});
  CHECK_THROWS_WITH(bag_op(at::rand({4, 2}), bags, 0, kTableRows), Contains("'per_sample_weights' must be"));
}
