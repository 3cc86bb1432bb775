// Operators whose ATen code runs on distributed tensors, and low-precision matrix products.
#include <ATen/TensorOperators.h>
#include <ATen/ops/block_diag.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

void check(const std::string& name, const std::vector<std::vector<int64_t>>& shapes,
           const std::function<Tensors(const Tensors&)>& fn) {
  check_op({name, fn, shapes}, 30);
}

TEST_CASE("composite operators by ATen's own code", "[ops][decomposed]") {
  check("block_diag", {{5, 2}, {3}, {1, 4}}, [](auto& t) { return Tensors{at::block_diag(t)}; });
  check("_chunk_cat", {{5, 2}, {7, 2}}, [](auto& t) {
    return call_op("aten::_chunk_cat", {Tensors{t[0].detach(), t[1].detach()}, 0, 3});
  });
  check("_stack", {{5, 2}, {5, 2}}, [](auto& t) {
    return call_op("aten::_stack", {Tensors{t[0].detach(), t[1].detach()}, 1});
  });
  {
    const DeviceMesh& mesh = test_meshes()[0];
    CommDebugMode comm;
    const at::Tensor t = lay_out(at::rand({5, 2}, at::kDouble), mesh, {Shard(0)});
    CHECK(spec_of(call_op("aten::_stack", {Tensors{t, t}, 1})[0])->placements() == Placements{Shard(0)});
    CHECK(comm.total() == 0);
  }
  check("as_strided_copy", {{5, 3}}, [](auto& t) {
    return call_op("aten::as_strided_copy", {t[0], std::vector<int64_t>{2, 4}, std::vector<int64_t>{5, 2}, 1});
  });
  check("as_strided_scatter", {{5, 3}, {2, 4}}, [](auto& t) {
    return call_op("aten::as_strided_scatter", {t[0], t[1], std::vector<int64_t>{2, 4}, std::vector<int64_t>{7, 2}, 1});
  });
  for (const char* op : {"linspace", "logspace"}) {
    const std::string name = std::string("aten::") + op;
    check(op, {{}, {}}, [=](auto& t) { return call_op(name + ".Tensor_Tensor", {t[0].detach(), t[1].detach(), 5}); });
    check(op, {{}}, [=](auto& t) { return call_op(name + ".Tensor_Scalar", {t[0].detach(), 2, 5}); });
    check(op, {{}}, [=](auto& t) { return call_op(name + ".Scalar_Tensor", {2, t[0].detach(), 5}); });
  }
}

TEST_CASE("Masked indices", "[ops][decomposed]") {
  const auto make = [](size_t i, const std::vector<int64_t>& shape) {
    if (i == 1) return at::rand(shape, at::kDouble).lt(0.6);
    return i == 2 ? at::randint(-2, 8, shape, at::kLong) : at::rand(shape, at::kDouble);
  };
  const auto indices = [](const at::Tensor& t) { return c10::List<std::optional<at::Tensor>>({t}); };
  OpCase read{"_unsafe_masked_index", [=](auto& t) {
                return call_op("aten::_unsafe_masked_index", {t[0], t[1], indices(t[2]), 7});
              }};
  read.shapes = {{5}, {4}, {4}};
  read.make = make;
  check_op(read, 30);
  OpCase write{"_unsafe_masked_index_put_accumulate", [=](auto& t) {
                 return call_op("aten::_unsafe_masked_index_put_accumulate", {t[0], t[1], indices(t[2]), t[3]});
               }};
  write.shapes = {{5}, {4}, {4}, {4}};
  write.make = make;
  check_op(write, 30);
}

TEST_CASE("Results of composite operators in out= tensors", "[ops][decomposed]") {
  const auto a = at::rand({3, 2}, at::kDouble), b = at::rand({2, 2}, at::kDouble);
  const auto& mesh = test_meshes()[0];
  auto out = lay_out(at::ones({5, 4}, at::kDouble), mesh, {Shard(0)});
  at::block_diag_out(out, {lay_out(a, mesh, {Shard(0)}), lay_out(b, mesh, {Replicate()})});
  CHECK(spec_of(out)->placements()[0] == Shard(0));
  CHECK(full_tensor(out).equal(at::block_diag({a, b})));
}

TEST_CASE("Low-precision matrix products", "[ops][decomposed]") {
  OpCase whole{"_int_mm", [](auto& t) { return call_op("aten::_int_mm", {t[0], t[1]}); }, {{5, 6}, {6, 3}}};
  whole.make = [](size_t, const auto& shape) { return at::randint(-100, 100, shape, at::kChar); };
  whole.silent = [](const std::vector<Placement>& p) {
    return p == std::vector<Placement>{Shard(1), Shard(0)} || p == std::vector<Placement>{Shard(0), Replicate()};
  };
  check_op(whole, 30);

  OpCase activated{"_addmm_activation", [](auto& t) {
                     return call_op("aten::_addmm_activation", {t[0].detach(), t[1].detach(), t[2].detach(), 2, 3});
                   }};
  activated.shapes = {{3}, {5, 6}, {6, 3}};
  check_op(activated, 30);

  OpCase bytes{"_weight_int8pack_mm", [](auto& t) { return call_op("aten::_weight_int8pack_mm", {t[0], t[1], t[2]}); }};
  bytes.shapes = {{5, 32}, {16, 32}, {16}};
  bytes.make = [](size_t i, const auto& shape) {
    return i == 1 ? at::randint(-100, 100, shape, at::kChar) : at::rand(shape, at::kBFloat16);
  };
  bytes.grad = {false, false, false};
  bytes.partial_inputs = false;
  bytes.tolerance = 1e-2;
  check_op(bytes, 30);

  OpCase scaled{"_scaled_mm", [](auto& t) {
                  return call_op("aten::_scaled_mm",
                                 {t[0], t[1].t(), t[2], t[3], c10::IValue(), c10::IValue(), c10::ScalarType::Float});
                }};
  scaled.shapes = {{5, 16}, {64, 16}, {}, {}};
  scaled.make = [](size_t i, const auto& shape) {
    return i < 2 ? at::rand(shape).to(at::kFloat8_e4m3fn) : at::rand(shape);
  };
  scaled.grad = {false, false, false, false};
  scaled.partial_inputs = false;
  scaled.tolerance = 1e-2;
  scaled.silent = [](const std::vector<Placement>& p) {
    return (p[0] == Replicate() || p[0] == Shard(0)) && p[1] == Replicate();
  };
  check_op(scaled, 30);
}

}  // namespace
}  // namespace dtensor::testing
