// Embedding bags in every layout of table, ids and offsets; batches, columns and rows stay split.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/functional/embedding.h>

#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 7, kSum = 0, kMean = 1, kMax = 2;

// A table, ids, offsets of 5 bags (one of them empty, one with one id), and weights.
at::Tensor make(size_t i, const std::vector<int64_t>& shape) {
  if (i == 1) return at::randint(kRows, shape, at::kLong);
  if (i == 2) return at::tensor(std::vector<int64_t>{0, 3, 3, 4, 8});
  return at::rand(shape, at::kDouble);
}

OpCase bags(const std::string& name, int64_t mode, int64_t padding, bool weighted, bool by_frequency = false) {
  OpCase c{name, [=](const Tensors& t) {
             const auto weights = weighted ? std::optional(t[3]) : std::nullopt;
             const auto padding_idx = padding < 0 ? std::nullopt : std::optional(padding);
             const auto [result, bag, size, max] =
                 at::embedding_bag(t[0], t[1], t[2], by_frequency, mode, false, weights, false, padding_idx);
             return Tensors{result, bag, size, max};
           }};
  c.shapes = {{kRows, 3}, {11}, {5}};
  if (weighted) c.shapes.push_back({11});
  c.make = make;
  return c;
}

const DeviceMesh& mesh4() { return test_meshes()[0]; }

TEST_CASE("Embedding bags match ATen in every layout", "[ops][embedding_bag]") {
  for (const int64_t mode : {kSum, kMean, kMax}) {
    for (const int64_t padding : {-1, 2}) {
      const std::string name = "mode " + std::to_string(mode) + ", padding " + std::to_string(padding);
      DYNAMIC_SECTION(name) {
        OpCase c = bags(name, mode, padding, false);
        c.silent = [mode](const std::vector<Placement>& p) {
          const bool rows = p[0] == Shard(0) && mode != kMax;
          return p[1] == Replicate() && p[2] == Replicate() && (p[0] == Replicate() || p[0] == Shard(1) || rows);
        };
        check_op(c, 60);
      }
    }
  }
  check_op(bags("by frequency", kSum, -1, false, true), 40);
  check_op(bags("by frequency, mean", kMean, 1, false, true), 40);
}

TEST_CASE("Embedding bags with a weight for each id", "[ops][embedding_bag]") {
  check_op(bags("weighted", kSum, -1, true), 60);
  check_op(bags("weighted, padding", kSum, 2, true), 60);
}

TEST_CASE("Embedding bags of int32 ids and int64 offsets", "[ops][embedding_bag]") {
  for (const int64_t mode : {kSum, kMean, kMax}) {
    OpCase c = bags("mode " + std::to_string(mode), mode, -1, /*weighted=*/mode == kSum);
    c.make = [](size_t i, const auto& shape) { return i == 1 ? make(i, shape).to(at::kInt) : make(i, shape); };
    check_op(c, 20);
  }
}

TEST_CASE("Embedding bags in single precision, of no bags and in other forms", "[ops][embedding_bag]") {
  OpCase single = bags("float", kSum, -1, true);
  single.make = [](size_t i, const auto& shape) { return i == 0 || i == 3 ? at::rand(shape) : make(i, shape); };
  single.tolerance = 1e-5;
  single.partial_inputs = false;
  check_op(single, 40);

  OpCase forward = bags("without gradient", kSum, -1, false);
  forward.grad = {false, false, false};
  check_op(forward, 40);

  OpCase last{"last offset", [](const Tensors& t) {
                const auto [result, bag, size, max] =
                    at::embedding_bag(t[0], t[1], t[2], false, kMean, false, {}, true, std::nullopt);
                return Tensors{result, size};
              }};
  last.shapes = {{kRows, 3}, {8}, {5}};
  last.make = make;
  check_op(last, 40);

  OpCase none = bags("no ids", kMean, -1, false);
  none.shapes = {{kRows, 3}, {0}, {5}};
  none.make = [](size_t i, const auto& shape) { return i == 2 ? at::full(shape, 0, at::kLong) : make(i, shape); };
  check_op(none, 30);

  OpCase narrow = bags("fewer rows and columns than ranks", kSum, -1, false);
  narrow.shapes = {{2, 1}, {11}, {5}};
  narrow.make = [](size_t i, const auto& shape) { return i == 1 ? at::randint(2, shape, at::kLong) : make(i, shape); };
  check_op(narrow, 30);
}

// Bags of three ids each, as torch::nn makes them from 2-d ids.
at::Tensor pooled(const at::Tensor& table, const at::Tensor& ids, int64_t mode) {
  namespace F = torch::nn::functional;
  F::EmbeddingBagFuncOptions options;
  if (mode == kSum) options.mode(torch::kSum);
  if (mode == kMean) options.mode(torch::kMean);
  if (mode == kMax) options.mode(torch::kMax);
  return F::embedding_bag(ids, table, options);
}

TEST_CASE("A batch of bags stays split, forward and backward", "[ops][embedding_bag]") {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const int64_t mode : {kSum, kMean, kMax}) {
      for (const int64_t batch : {8, 6}) {
        CAPTURE(dtype, mode, batch);
        const auto plain_table = at::rand({kRows, 4}, dtype).requires_grad_();
        const auto plain_ids = at::randint(kRows, {batch, 3}, at::kLong);
        const auto expected = pooled(plain_table, plain_ids, mode);
        const auto seed = at::rand(expected.sizes(), dtype);
        expected.backward(seed);

        const auto table = lay_out(plain_table.detach(), mesh4(), {Replicate()}).requires_grad_();
        const auto ids = lay_out(plain_ids, mesh4(), {Shard(0)});
        CommDebugMode forward;
        const auto result = pooled(table, ids, mode);
        if (batch % 4 == 0) {
          CHECK(forward.total() == 0);
          CHECK(spec_of(result)->placements()[0] == Shard(0));
        }
        CHECK_FALSE(difference(result, expected, 1e-5));
        CommDebugMode backward;
        result.backward(lay_out(seed, mesh4(), {Shard(0)}));
        if (batch % 4 == 0) {
          CHECK(backward.total() == 1);  // the gradient's all-reduce
          CHECK(backward.count("all_reduce") == 1);
        }
        CHECK_FALSE(difference(table.grad(), plain_table.grad(), 1e-5));
      }
    }
  }
}

TEST_CASE("A row-sharded table gets its gradient without communication", "[ops][embedding_bag]") {
  const auto table = lay_out(at::rand({kRows, 4}, at::kDouble), mesh4(), {Shard(0)}).requires_grad_();
  const auto ids = lay_out(at::randint(kRows, {6, 3}, at::kLong), mesh4(), {Replicate()});
  const auto result = pooled(table, ids, kSum);
  CHECK(spec_of(result)->placements()[0] == Partial());
  CommDebugMode comm;
  result.backward(lay_out(at::rand({6, 4}, at::kDouble), mesh4(), {Replicate()}));
  CHECK(comm.total() == 0);
  CHECK(spec_of(table.grad())->placements()[0] == Shard(0));
}

TEST_CASE("Embedding bags: rejected arguments", "[ops][embedding_bag]") {
  const auto table = lay_out(at::rand({kRows, 4}, at::kDouble), mesh4(), {Shard(0)}).requires_grad_();
  const auto ids = lay_out(at::tensor(std::vector<int64_t>{1, 2, kRows}), mesh4(), {Replicate()});
  const auto offsets = lay_out(at::tensor(std::vector<int64_t>{0, 1}), mesh4(), {Replicate()});
  CHECK_THROWS_WITH(at::embedding_bag(table, ids, offsets), Catch::Contains("num_embeddings"));
  // Plain offsets that do not follow from shapes may differ between ranks.
  CHECK_THROWS_WITH(at::embedding_bag(table, ids, at::tensor(std::vector<int64_t>{0, 1})),
                    Catch::Contains("plain tensor"));
  const auto good = lay_out(at::tensor(std::vector<int64_t>{1, 2, 3}), mesh4(), {Replicate()});
  const auto [result, bag, size, max] = at::embedding_bag(table, good, offsets, false, kSum, /*sparse=*/true);
  CHECK_THROWS_WITH(result.sum().backward(), Catch::Contains("sparse = false"));
}

}  // namespace
}  // namespace dtensor::testing
