// Operators that write to an out= tensor, compared with plain ATen.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

struct OutCase {
  std::string op;
  std::vector<c10::IValue> args;  // all arguments except out
  c10::ScalarType out = at::kDouble;
  bool whole_rows = false;  // it computes along dim 0, so it cannot write to an out= tensor that is cut there
};

c10::IValue distribute(const c10::IValue& value, const DeviceMesh& mesh, const Placement& placement) {
  const auto one = [&](const at::Tensor& t) {
    return lay_out(t, mesh, {placement.is_sharded() && t.dim() == 0 ? Replicate() : placement});
  };
  if (value.isTensor()) return one(value.toTensor());
  if (!value.isOptionalTensorList()) return value;
  OptionalTensors result;
  for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
    result.push_back(t ? std::optional(one(*t)) : std::nullopt);
  }
  return result;
}

std::vector<OutCase> like_another() {
  const auto x = at::rand({6, 5}, at::kDouble);
  const c10::IValue none;
  const std::vector<int64_t> same = {6, 5}, other = {3, 2};
  return {
      {"aten::zeros_like.out", {x, none}},      {"aten::zeros_like.out", {x, none}, at::kInt},
      {"aten::ones_like.out", {x, none}},       {"aten::full_like.out", {x, 2.5, none}},
      {"aten::new_zeros.out", {x, same}},       {"aten::new_ones.out", {x, other}},
      {"aten::new_full.out", {x, same, 2.5}},   {"aten::new_full.out", {x, other, 3}, at::kLong},
      {"aten::_to_copy.out", {x, false, none}}, {"aten::_to_copy.out", {x, false, none}, at::kFloat},
      {"aten::clone.out", {x, none}},
  };
}

std::vector<OutCase> by_index() {
  const auto x = at::rand({6, 5}, at::kDouble), source = at::rand({3, 5}, at::kDouble);
  const auto columns = at::rand({6, 2}, at::kDouble);
  const auto rows = at::tensor({4, 0, 2}, at::kLong), two = at::tensor({3, 1}, at::kLong);
  const OptionalTensors first({rows}), second({std::optional<at::Tensor>(), two});
  return {
      {"aten::index_add.out", {x, 0, rows, source, 2}},
      {"aten::index_add.out", {x, 1, two, columns, 1}},
      {"aten::index_add.out", {x.to(at::kInt), 0, rows, source.to(at::kInt), 2}, at::kInt},
      {"aten::index_copy.out", {x, 0, rows, source}},
      {"aten::index_copy.out", {x.to(at::kByte), -1, two, columns.to(at::kByte)}, at::kByte},
      {"aten::index_reduce.out", {x, 0, rows, source, "prod", true}},
      {"aten::index_reduce.out", {x, 1, two, columns, "amax", false}},
      {"aten::index_fill.int_Scalar_out", {x, 0, rows, 2.5}},
      {"aten::index.Tensor_out", {x, first}},
      {"aten::index.Tensor_out", {x, second}},
      {"aten::index.Tensor_out", {x, OptionalTensors({x.gt(0.5)})}},
      {"aten::index_select.out", {x, 0, rows}},
      {"aten::narrow_copy.out", {x, 1, 1, 3}},
      {"aten::narrow_copy.out", {x, 0, 2, 3}, at::kDouble, true},
      {"aten::select_copy.int_out", {x, 0, 2}},
  };
}

std::vector<OutCase> elementwise() {
  const auto x = at::rand({6, 5}, at::kDouble).sub(0.5), y = at::rand({6, 5}, at::kDouble).add(0.5);
  const auto whole = at::arange(30, at::kLong).reshape({6, 5}), few = whole.remainder(4);
  auto odd = x.clone();
  odd[1][2] = NAN;
  odd[3][4] = INFINITY;
  return {
      {"aten::relu.out", {x}},
      {"aten::hardtanh.out", {x, -0.25, 0.25}},
      {"aten::where.self_out", {x.gt(0), x, y}},
      {"aten::where.self_out", {x.gt(0), x, y.select(0, 0).contiguous()}},
      {"aten::isnan.out", {odd}, at::kBool},
      {"aten::isinf.out", {odd}, at::kBool},
      {"aten::__lshift__.Tensor_out", {whole, few}, at::kLong},
      {"aten::__lshift__.Scalar_out", {whole, 2}, at::kLong},
      {"aten::__rshift__.Tensor_out", {whole, few}, at::kLong},
      {"aten::__rshift__.Scalar_out", {whole, 1}, at::kLong},
      {"aten::remainder.Scalar_Tensor_out", {7, y}},
      {"aten::masked_fill.Scalar_out", {x, x.gt(0), 2}},
      {"aten::celu.out", {x, 1.5}},
      {"aten::threshold.out", {x, 0.1, 3}},
  };
}

std::vector<OutCase> reductions_and_moves() {
  const auto x = at::rand({6, 5}, at::kDouble), y = at::rand({6, 5}, at::kDouble);
  const std::vector<int64_t> rows = {0}, twice = {2, 1}, one = {1};
  return {
      {"aten::dist.out", {x, y, 2}},
      {"aten::dist.out", {x, y, 1.5}},
      {"aten::sum.IntList_out", {x, rows, true, c10::IValue()}, at::kDouble, true},
      {"aten::cumsum.out", {x, 0, c10::IValue()}},
      {"aten::roll.out", {x, one, rows}},
      {"aten::flip.out", {x, rows}},
      {"aten::repeat.out", {x, twice}, at::kDouble, true},
  };
}

// Composite operators, whose own code accesses the memory of the written tensor.
std::vector<OutCase> of_composites() {
  const auto x = at::rand({6, 5}, at::kDouble), y = at::rand({5, 4}, at::kDouble);
  const auto scores = at::rand({6, 5}, at::kDouble).log(), target = at::tensor({4, 0, 2, 1, 1, 3}, at::kLong);
  const c10::IValue none;
  return {
      {"aten::matmul.out", {x, y}},
      {"aten::linalg_matmul.out", {x, y}},
      {"aten::msort.out", {x}},
      {"aten::log_sigmoid.out", {x}},
      {"aten::nll_loss.out", {scores, target, none, at::Reduction::Mean, -100}},
      {"aten::nll_loss.out", {scores, target, none, at::Reduction::None, -100}},
      {"aten::argsort.stable_out", {x, false, 0, true}, at::kLong},
      {"aten::ldexp.out", {x, at::tensor({2, 1, 0, -1, 3}, at::kLong)}},
      {"aten::linalg_norm.out", {x, none, none, false, none}},
      {"aten::norm.out", {x, 3, std::vector<int64_t>{1}, false}},
  };
}

void check_empty(const OutCase& row, const at::Tensor& expected) {
  const DeviceMesh& mesh = test_meshes()[0];
  for (const Placement& given : {Placement(Replicate()), Placement(Shard(0))}) {
    CAPTURE(row.op, to_string(Placements{given}));
    std::vector<c10::IValue> distributed;
    for (const auto& value : row.args) distributed.push_back(distribute(value, mesh, given));
    const at::Tensor out = lay_out(at::empty({0}, row.out), mesh, {Replicate()});
    distributed.emplace_back(out);
    CHECK(call_op(row.op, distributed).at(0).is_same(out));
    CHECK(difference(out, expected) == std::nullopt);
  }
}

void check(const OutCase& row) {
  auto args = row.args;
  args.emplace_back(at::empty({0}, row.out));
  const at::Tensor expected = call_op(row.op, args).at(0);
  check_empty(row, expected);
  const DeviceMesh& mesh = test_meshes()[0];
  for (const Placement& given : {Placement(Replicate()), Placement(Shard(0))}) {
    for (const Placement& written : {Placement(Replicate()), Placement(Shard(0))}) {
      CAPTURE(row.op, to_string(Placements{given}), to_string(Placements{written}));
      std::vector<c10::IValue> distributed;
      for (const auto& value : row.args) distributed.push_back(distribute(value, mesh, given));
      const at::Tensor out = distribute(at::zeros(expected.sizes(), row.out), mesh, written).toTensor();
      const auto layout = meta_for_read(out).spec;
      distributed.emplace_back(out);
      if (row.whole_rows && written.is_sharded()) {
        CHECK_THROWS_WITH(call_op(row.op, distributed), Catch::Contains("redistribute it first"));
        continue;
      }
      CHECK(call_op(row.op, distributed).at(0).is_same(out));
      CHECK(meta_for_read(out).spec == layout);
      CHECK(difference(out, expected) == std::nullopt);
    }
  }
}

}  // namespace

TEST_CASE("out= of tensors like another", "[out]") {
  for (const OutCase& row : like_another()) check(row);
}

TEST_CASE("out= of writes by index", "[out]") {
  for (const OutCase& row : by_index()) check(row);
}

TEST_CASE("out= of elementwise operators", "[out]") {
  for (const OutCase& row : elementwise()) check(row);
}

TEST_CASE("out= of reductions and moves", "[out]") {
  for (const OutCase& row : reductions_and_moves()) check(row);
}

// Reductions of split dims have handlers, which return new tensors.
TEST_CASE("out= of reductions along split dims", "[out]") {
  const at::Tensor x = at::rand({3, 7}, at::kDouble);
  for (const DeviceMesh& mesh : test_meshes()) {
    const auto split = lay_out(x, mesh, Placements(mesh.ndim(), Shard(1)));
    const auto out = [&](c10::ScalarType dtype) {
      return lay_out(at::zeros({3}, dtype), mesh, Placements(mesh.ndim(), Replicate()));
    };
    for (const std::string op : {"aten::argmax.out", "aten::argmin.out"}) {
      CAPTURE(op, mesh.to_string());
      const auto index = out(at::kLong);
      call_op(op, {split, 1, false, index});
      CHECK(difference(index, call_op(op, {x, 1, false, at::zeros({3}, at::kLong)}).at(0)) == std::nullopt);
    }
    const auto sums = out(at::kDouble), values = out(at::kDouble), indices = out(at::kLong);
    call_op("aten::logsumexp.out", {split, std::vector<int64_t>{1}, false, sums});
    CHECK(difference(sums, x.logsumexp(std::vector<int64_t>{1})) == std::nullopt);
    call_op("aten::max.dim_max", {split, 1, false, values, indices});
    CHECK(difference(values, x.amax(1)) == std::nullopt);
    CHECK(difference(indices, x.argmax(1)) == std::nullopt);
    // A plain tensor gives the usual error.
    CHECK_THROWS_WITH(call_op("aten::argmax.out", {split, 1, false, at::zeros({3}, at::kLong)}),
                      Catch::Contains("writes to a plain tensor"));
  }
}

TEST_CASE("out= of composites", "[out]") {
  for (const OutCase& row : of_composites()) check(row);
}

TEST_CASE("out= of composites: rejected like in LibTorch", "[out]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({6, 5}, at::kDouble), mesh, {Shard(0)});
  const auto y = lay_out(at::rand({5, 4}, at::kDouble), mesh, {Replicate()});
  const auto out = [&](at::IntArrayRef sizes, c10::ScalarType dtype) {
    return lay_out(at::zeros(sizes, dtype), mesh, {Replicate()});
  };
  CHECK_THROWS_WITH(call_op("aten::matmul.out", {x, y, out({6, 4}, at::kLong)}),
                    Catch::Contains("cannot be cast to that of the out= argument, Long"));
  CHECK_THROWS_WITH(call_op("aten::matmul.out", {x, y, out({6, 3}, at::kDouble)}),
                    Catch::Contains("of shape [6, 3] cannot hold the result, of shape [6, 4]"));
  CHECK_THROWS_WITH(call_op("aten::dist.out", {x, x, 2, out({3}, at::kDouble)}),
                    Catch::Contains("of shape [3] cannot hold the result, of shape []"));
  const auto trained = x.detach().clone().requires_grad_();
  const auto list = c10::List<at::Tensor>({x, trained});
  CHECK_THROWS_WITH(call_op("aten::hstack.out", {list, out({0}, at::kDouble)}),
                    Catch::Contains("do not support automatic differentiation"));
  // All are checked before one is written.
  const auto values = out({0}, at::kDouble);
  CHECK_THROWS(call_op("aten::max.dim_max", {x, 0, false, values, out({7}, at::kLong)}));
  CHECK(values.numel() == 0);
  CHECK_THROWS_WITH(call_op("aten::matmul.out", {trained, y, out({6, 4}, at::kDouble)}),
                    Catch::Contains("do not support automatic differentiation"));
}

TEST_CASE("out= without elements: reductions compute in its dtype", "[out]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto full = at::zeros({1000}, at::kHalf).add(100);
  const auto x = lay_out(full, mesh, {Replicate()});
  const auto out = lay_out(at::empty({0}, at::kDouble), mesh, {Replicate()});
  call_op("aten::sum.IntList_out", {x, c10::List<int64_t>({0}), false, c10::IValue(), out});
  CHECK(difference(out, full.to(at::kDouble).sum()) == std::nullopt);
}

TEST_CASE("out= of another shape is an error that names it", "[out]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({6, 5}, at::kDouble), mesh, {Shard(0)});
  const auto small = lay_out(at::zeros({2, 5}, at::kDouble), mesh, {Replicate()});
  for (const char* op : {"aten::relu.out", "aten::isnan.out"}) {
    CHECK_THROWS_WITH(call_op(op, {x, small}),
                      Catch::Contains("argument 'out' of shape [2, 5] cannot hold the result"));
  }
}

}  // namespace dtensor::testing
