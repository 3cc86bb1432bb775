// Operators without a sharding rule: on replicated tensors always, on others inside a ReplicateUnsupported scope.
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/_masked_softmax.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <functional>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/line_of_ranks.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/error_text.h"

namespace {

using at::Tensor;

std::tuple<std::vector<Tensor>, Tensor, int64_t> lists(at::TensorList x, const std::optional<Tensor>& y,
                                                       std::array<bool, 2> mask) {
  std::vector<Tensor> twice;
  for (const auto& t : x) twice.push_back(t * 2);
  Tensor sum;
  if (mask[0] && y) sum = *y + 1;
  return {twice, sum, static_cast<int64_t>(x.size())};
}

Tensor& square_(Tensor& x) { return x.mul_(x); }
Tensor& square_out(const Tensor& x, Tensor& out) {
  out.resize_(x.sizes());
  return out.copy_(x * x);
}
Tensor first_half(const Tensor& x) { return x.narrow(0, 0, x.size(0) / 2); }
Tensor draw(const Tensor& x, std::optional<at::Generator> generator) {
  return at::rand(x.sizes(), generator, x.options());
}
Tensor draw_by_default(const Tensor& x) { return at::rand(x.sizes(), x.options()); }
void grow_(Tensor& x) { x.resize_({x.size(0) + 1}); }

TORCH_LIBRARY(without_rule, m) {
  const std::vector<at::Tag> random{at::Tag::nondeterministic_seeded};
  m.def("lists(Tensor[] x, Tensor? y, bool[2] mask) -> (Tensor[], Tensor, int)");
  m.def("square_(Tensor(a!) x) -> Tensor(a!)");
  m.def("square.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("first_half(Tensor(a) x) -> Tensor(a)");
  m.def("draw(Tensor x, Generator? generator) -> Tensor", random);
  m.def("draw_by_default(Tensor x) -> Tensor", random);
  m.def("grow_(Tensor(a!) x) -> ()");
}
TORCH_LIBRARY_IMPL(without_rule, CPU, m) {
  m.impl("lists", lists);
  m.impl("square_", square_);
  m.impl("square.out", square_out);
  m.impl("first_half", first_half);
  m.impl("draw", draw);
  m.impl("draw_by_default", draw_by_default);
  m.impl("grow_", grow_);
}

}  // namespace

namespace dtensor::testing {
using namespace internal;

TEST_CASE("without a rule: an operator on replicated tensors runs on every rank, without communication") {
  const auto a = at::rand({4}, at::kDouble), b = a.clone().requires_grad_();
  const auto hidden = at::arange(4).eq(2);
  const auto masked = [](const Tensor& t, const Tensor& mask) { return at::_masked_softmax(t, mask, 0, 2); };
  const auto expected = masked(b, hidden);
  expected.pow(2).sum().backward();
  for (const auto& shape : {std::vector<int64_t>{3}, {2, 1}}) {
    const DeviceMesh mesh(World::local(shape[0]), shape);
    // Sharded along a mesh dim of size one counts as replicated.
    const Placements whole = shape.size() == 1 ? Placements{Replicate()} : Placements{Replicate(), Shard(0)};
    CommDebugMode comm;
    const auto x = distribute_tensor(a, mesh, whole).requires_grad_();
    const auto m = distribute_tensor(hidden, mesh, Placements(shape.size(), Replicate()));
    comm.reset();
    const auto y = masked(x, m);
    CHECK(comm.total() == 0);
    CHECK_FALSE(difference(y, expected));
    y.pow(2).sum().backward();
    CHECK_FALSE(difference(x.grad(), b.grad(), 1e-8));
  }
  const auto mesh = line_of_ranks(2);
  const auto x = distribute_tensor(a, mesh, {Shard(0)}), m = distribute_tensor(hidden, mesh, {Replicate()});
  CHECK_THAT(error_text([&] { masked(x, m); }),
             Catch::Contains("Operator aten._masked_softmax.default does not have a sharding strategy") &&
                 Catch::Contains("f64[4](S(0))"));
}

TEST_CASE("without a rule: lists, undefined tensors and numbers") {
  const auto mesh = line_of_ranks(2);
  const auto p = at::rand({3}, at::kDouble), q = at::rand({2, 2}, at::kDouble);
  const auto run = [](const Tensor& a, const Tensor& b, bool with) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("without_rule::lists", "");
    torch::jit::Stack stack{c10::List<Tensor>({a, b}), c10::IValue(a), c10::List<bool>({with, true})};
    op.callBoxed(stack);
    return stack;
  };
  for (const auto& placement : {Replicate(), Shard(0)}) {
    std::optional<ReplicateUnsupported> guard;
    if (placement != Replicate()) guard.emplace();
    const auto a = distribute_tensor(p, mesh, {placement}), b = distribute_tensor(q, mesh, {placement});
    CommDebugMode comm;
    for (bool with : {true, false}) {
      auto out = run(a, b, with);
      REQUIRE(out.size() == 3);
      CHECK_FALSE(difference(out[0].toTensorVector()[0], p * 2));
      CHECK_FALSE(difference(out[0].toTensorVector()[1], q * 2));
      CHECK(out[1].toTensor().defined() == with);
      if (with) CHECK_FALSE(difference(out[1].toTensor(), p + 1));
      CHECK(out[2].toInt() == 2);
    }
    CHECK((comm.total() == 0) == (placement == Replicate()));
  }
}

TEST_CASE("without a rule: a written argument keeps its layout and every part is updated") {
  const auto mesh = line_of_ranks(3);
  const auto full = at::rand({5, 2}, at::kDouble);
  for (const Placement& placement : {Replicate(), Shard(0), Shard(1), Partial()}) {
    std::optional<ReplicateUnsupported> guard;
    if (placement != Replicate()) guard.emplace();
    auto x = lay_out(full, mesh, {placement});
    const auto before = meta_for_read(x).locals;
    const auto same = call_op("without_rule::square_", {x});
    CHECK(same[0].is_same(x));
    CHECK(meta_for_read(x).spec->placements() == Placements{placement});
    CHECK(meta_for_read(x).locals[0].is_alias_of(before[0]));
    CHECK_FALSE(difference(x, full * full));

    auto out = lay_out(at::zeros({5, 2}, at::kDouble), mesh, {placement});
    call_op("without_rule::square.out", {lay_out(full, mesh, {Replicate()}), out});
    CHECK(meta_for_read(out).spec->placements() == Placements{placement});
    CHECK_FALSE(difference(out, full * full));
  }
}

TEST_CASE("without a rule: resizing an argument is an error") {
  const auto mesh = line_of_ranks(2);
  auto x = distribute_tensor(at::arange(3), mesh, {Replicate()});
  CHECK_THAT(error_text([&] { call_op("without_rule::grow_", {x}); }),
             Catch::Contains("without_rule::grow_: changes the size, strides or memory of argument 'x', of shape [3] "
                             "before and [4] after"));
  CHECK_FALSE(difference(x, at::arange(3)));
  auto other = distribute_tensor(at::zeros({2}, at::kLong), mesh, {Replicate()});
  CHECK_THAT(error_text([&] {
               call_op("without_rule::square.out", {x, other});
             }),
             Catch::Contains("argument 'out', of shape [2] before"));
  CHECK(other.numel() == 2);
}

TEST_CASE("without a rule: an out= tensor without elements is resized to the result") {
  const auto mesh = line_of_ranks(2);
  const auto full = at::arange(3);
  auto out = distribute_tensor(at::empty({0}, at::kLong), mesh, {Replicate()});
  call_op("without_rule::square.out", {distribute_tensor(full, mesh, {Replicate()}), out});
  CHECK_FALSE(difference(out, full * full));
}

TEST_CASE("LibTorch's own outputs next to distributed ones are written, too") {
  const auto mesh = line_of_ranks(2);
  const auto full = at::eye(3, at::kDouble) * 2;
  ReplicateUnsupported gather;
  for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0))}) {
    auto out = distribute_tensor(at::zeros({3, 3}, at::kDouble), mesh, {placement});
    at::linalg_inv_out(out, distribute_tensor(full, mesh, {Replicate()}));  // makes an `info` tensor itself
    CHECK_FALSE(difference(out, at::linalg_inv(full)));
  }
}

TEST_CASE("composites return distributed results") {
  const auto mesh = line_of_ranks(2);
  const auto x = distribute_tensor(at::zeros({0}, at::kLong), mesh, {Replicate()});
  CHECK(is_dtensor(at::one_hot(x, 3)));
  CHECK_FALSE(difference(at::one_hot(x, 3), at::one_hot(at::zeros({0}, at::kLong), 3)));
}

TEST_CASE("without a rule: a view shares the memory of its base") {
  const auto mesh = line_of_ranks(2);
  auto x = distribute_tensor(at::zeros({4}), mesh, {Replicate()});
  auto half = call_op("without_rule::first_half", {x})[0];
  half.fill_(3);
  CHECK(at::equal(full_tensor(x), at::arange(4).lt(2) * at::ones({4}) * 3));
  x.fill_(1);
  CHECK_FALSE(difference(half, at::ones({2})));
}

TEST_CASE("without a rule: all ranks draw the same random numbers, new ones in each call") {
  const auto mesh = line_of_ranks(3);
  const auto x = distribute_tensor(at::zeros({8}), mesh, {Replicate()});
  for (const char* op : {"without_rule::draw", "without_rule::draw_by_default"}) {
    std::vector<c10::IValue> args{x};
    if (std::string(op) == "without_rule::draw") args.emplace_back();
    const auto a = call_op(op, args)[0], b = call_op(op, args)[0];
    for (const auto& y : {a, b}) {
      CHECK(at::equal(meta_for_read(y).locals[0], meta_for_read(y).locals[1]));
      CHECK(at::equal(meta_for_read(y).locals[0], meta_for_read(y).locals[2]));
    }
    CHECK_FALSE(at::equal(meta_for_read(a).locals[0], meta_for_read(b).locals[0]));
  }
}

TEST_CASE("without a rule: an abstract world uses the meta kernel") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"x"});
  const auto hash = call_op("aten::hash_tensor", {ones({6, 6}, mesh)})[0];
  CHECK(hash.dim() == 0);
  CHECK(hash.scalar_type() == at::kUInt64);
  CHECK(to_string(DTensor(hash).placements()) == "R");
  CHECK_THAT(error_text([&] { call_op("without_rule::first_half", {ones({6}, mesh)}); }),
             Catch::Contains(
                 "without_rule::first_half: has no sharding strategy, and this process owns no rank of mesh(x=4)"));
}

TEST_CASE("without a rule: gathering is counted and named") {
  const auto mesh = line_of_ranks(2);
  const auto x = distribute_tensor(at::rand({4, 4}), mesh, {Shard(0)});
  ReplicateUnsupported guard;
  CommDebugMode comm;
  call_op("aten::hash_tensor", {x});
  CHECK(comm.total() == 1);
  std::ostringstream report;
  report << comm;
  CHECK_THAT(report.str(), Catch::Contains("aten::hash_tensor"));
}

TEST_CASE("without a rule: the error names the caller") {
  const auto mesh = line_of_ranks(2);
  const auto x = distribute_tensor(at::rand({4, 4}), mesh, {Shard(0)});
  ModulePath path("encoder.whitening");
  const std::string text = error_text([&] { x.to_sparse(); });
  CHECK_THAT(text, Catch::Contains("by aten::to_sparse") && Catch::Contains("in module 'encoder.whitening'") &&
                       Catch::Contains("redistribute(t, {Replicate(), ...})"));
}

}  // namespace dtensor::testing
