// Operators that LibTorch 2.11 did not have yet, called through the dispatcher. Operators that the present release
// lacks are skipped.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/rand.h>
#include <c10/core/MemoryFormat.h>

#include <string>
#include <vector>

#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::jit::Stack;

bool has(const char* op) { return c10::Dispatcher::singleton().findSchema({op, ""}).has_value(); }

Tensors call(const char* op, Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
  Tensors results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) results.push_back(t);
    }
  }
  return results;
}

at::Tensor positive_definite(const at::Tensor& a) { return a.matmul(a.mT()) + 1; }

}  // namespace

TEST_CASE("newer operators: polar decomposition and square root of matrices", "[ops][newer]") {
  if (has("aten::linalg_polar")) {
    for (const auto& shape : {std::vector<int64_t>{4, 4}, {3, 5, 2}})
      check_op({"linalg_polar", [](auto& t) { return call("aten::linalg_polar", {t[0]}); }, {shape}});
  }
  if (has("aten::linalg_matrix_sqrth")) {
    check_op({"linalg_matrix_sqrth",
              [](auto& t) { return call("aten::linalg_matrix_sqrth", {positive_definite(t[0])}); },
              {{3, 4, 4}}});
  }
}

TEST_CASE("newer operators: a tensor takes over and shares another's data", "[ops][newer]") {
  if (!has("aten::shallow_copy_data_")) return;
  for (const DeviceMesh& mesh : test_meshes()) {
    const at::Tensor plain = at::rand({4, 3}, at::kDouble);
    const at::Tensor x = lay_out(plain + 1, mesh, Placements(mesh.ndim(), Replicate()));
    const at::Tensor source = lay_out(plain, mesh, Placements(mesh.ndim(), Shard(0)));
    call("aten::shallow_copy_data_", {x, source});
    CHECK(difference(x, plain) == std::nullopt);
    source.zero_();
    CHECK(difference(x, plain * 0) == std::nullopt);
    CHECK_THROWS_WITH(call("aten::shallow_copy_data_", {x, plain}), Catch::Contains("shallow_copy_data_"));
  }
}

TEST_CASE("newer operators: interpolation by Lanczos", "[ops][newer]") {
  if (!has("aten::_upsample_lanczos2d_aa")) return;
  check_op({"_upsample_lanczos2d_aa",
            [](auto& t) {
              return call("aten::_upsample_lanczos2d_aa",
                          {t[0], std::vector<int64_t>{5, 3}, false, c10::IValue(), c10::IValue()});
            },
            {{2, 3, 7, 6}}});
}

TEST_CASE("newer operators: copies and products of lists", "[ops][newer]") {
  if (has("aten::_foreach_clone")) {
    check_op({"_foreach_clone",
              [](auto& t) {
                return call("aten::_foreach_clone", {Tensors{t[0], t[1]}, c10::IValue()});
              },
              {{4, 3}, {5}}});
  }
  if (has("aten::_foreach_mm")) {
    check_op({"_foreach_mm",
              [](auto& t) {
                return call("aten::_foreach_mm", {Tensors{t[0], t[1]}, Tensors{t[1], t[0]}});
              },
              {{4, 3}, {3, 4}}});
  }
}

}  // namespace dtensor::testing
