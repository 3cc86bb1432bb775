// Segment reductions, and the CTC loss: batches stay split.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/tensor.h>

#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// ------------------------------------------------------------ segments

at::Tensor lengths(const std::vector<int64_t>& shape) {
  const auto one = at::tensor(std::vector<int64_t>{2, 0, 4});
  return shape.size() == 1 ? one : one.expand(shape).contiguous();
}

TEST_CASE("Segment reductions in every layout", "[ops][sequences]") {
  const auto make = [](size_t i, const std::vector<int64_t>& shape) {
    return i == 0 ? at::rand(shape, at::kDouble) : lengths(shape);
  };
  for (const char* reduce : {"sum", "mean", "max", "min", "prod"}) {
    OpCase c{reduce, [=](auto& t) { return Tensors{at::segment_reduce(t[0], reduce, t[1])}; }, {{6, 5}, {3}}, make};
    c.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(1) && p[1] == Replicate(); };
    check_op(c, 30);
    OpCase batch{reduce, [=](auto& t) { return Tensors{at::segment_reduce(t[0], reduce, t[1], {}, {}, 1)}; }};
    batch.shapes = {{3, 6, 2}, {3, 3}};
    batch.make = make;
    batch.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(0) && p[1] == Shard(0); };
    check_op(batch, 30);
  }
  OpCase first{"initial", [](auto& t) { return Tensors{at::segment_reduce(t[0], "sum", t[1], {}, {}, 0, false, 2)}; }};
  first.shapes = {{6, 5}, {3}};
  first.make = make;
  check_op(first, 30);
  OpCase offsets{"offsets", [](auto& t) { return Tensors{at::segment_reduce(t[0], "mean", {}, {}, t[1])}; }};
  offsets.shapes = {{6, 5}, {4}};
  offsets.make = [](size_t i, const auto& shape) {
    return i == 0 ? at::rand(shape, at::kDouble) : at::tensor(std::vector<int64_t>{0, 2, 2, 6});
  };
  check_op(offsets, 30);
}

// ------------------------------------------------------------ alignments

const std::vector<int64_t> kInputs = {6, 5, 6, 4, 6}, kTargets = {2, 3, 1, 0, 2};

at::Tensor make_ctc(size_t i, const std::vector<int64_t>& shape) {
  if (i == 0) return at::rand(shape, at::kDouble);
  if (i == 1) return at::randint(1, 4, shape, at::kLong);
  return at::tensor(i == 2 ? kInputs : kTargets);
}

void check_ctc(const std::string& name, const std::vector<std::vector<int64_t>>& shapes,
               const std::function<at::Tensor(const at::Tensor&, const Tensors&)>& loss, bool silent) {
  OpCase c{name, [=](auto& t) { return Tensors{loss(at::log_softmax(t[0], -1), t)}; }, shapes, make_ctc};
  c.tolerance = 1e-8;
  if (silent) {
    c.silent = [](const std::vector<Placement>& p) {
      return p[0] == Shard(1) && p[1] == (p.size() > 1 ? Replicate() : Shard(0));
    };
  }
  check_op(c, 30);
}

TEST_CASE("The CTC loss in every layout", "[ops][sequences]") {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    check_ctc(
        "rows of targets", {{6, 5, 4}, {5, 3}},
        [=](auto& x, auto& t) { return at::ctc_loss(x, t[1], kInputs, kTargets, 0, reduction); }, false);
    check_ctc(
        "targets one after the other", {{6, 5, 4}, {8}},
        [=](auto& x, auto& t) { return at::ctc_loss(x, t[1], kInputs, kTargets, 0, reduction); },
        reduction == at::Reduction::None);
    check_ctc(
        "lengths as tensors", {{6, 5, 4}, {5, 3}, {5}, {5}},
        [=](auto& x, auto& t) { return at::ctc_loss(x, t[1], t[2], t[3], 0, reduction, true); }, false);
  }
}

TEST_CASE("CTC loss: invalid lengths are errors", "[ops][sequences]") {
  const auto x = lay_out(at::rand({6, 5, 4}, at::kDouble), test_meshes()[0], {Shard(1)});
  const auto targets = lay_out(at::randint(1, 4, {5, 3}, at::kLong), test_meshes()[0], {Shard(0)});
  CHECK_THROWS_WITH(at::ctc_loss(x, targets, std::vector<int64_t>{6, 6}, kTargets),
                    Catch::Contains("one per sequence"));
  CHECK_THROWS_WITH(at::ctc_loss(x, targets, kInputs, std::vector<int64_t>{2, 3, 1, 0, 4}),
                    Catch::Contains("as the longest"));
}

}  // namespace
}  // namespace dtensor::testing
