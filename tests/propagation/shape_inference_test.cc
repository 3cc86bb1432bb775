#include "propagation/shape_inference.h"

#include <ATen/ATen.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/propagation/propagate_ops.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using namespace propagate_ops;
using Catch::Contains;
using Catch::StartsWith;

std::string metas_of(const OutputMetas& metas) {
  std::string text = absl::StrJoin(metas.tensors, " ", [](std::string* out, const auto& m) {
    if (!m) return out->append("none"), void();
    absl::StrAppend(out, std::string(short_name(m->dtype)), "[", absl::StrJoin(m->sizes, ","), "|",
                    absl::StrJoin(m->strides, ","), "]");
  });
  return absl::StrCat(text, " (", absl::StrJoin(metas.counts, ","), ")");
}

TEST_CASE("metadata of outputs") {
  const std::vector<int64_t> mesh = {4};
  auto metas = [&](const OpCall& call) { return metas_of(infer_outputs(call, OpRule())); };
  auto x = spec(mesh, {4, 6}, "S(0)");
  CHECK(metas(OpCall::make("aten::mm", {x, spec(mesh, {6, 2}, "R")})) == "f32[4,2|2,1] (-1)");
  CHECK(metas(OpCall::make("aten::max.dim", {x}, {1})) == "f32[4|1] i64[4|1] (-1,-1)");
  CHECK(metas(OpCall::make("aten::split.Tensor", {x}, {4, 1})) == "f32[4,4|6,1] f32[4,2|6,1] (2)");
  CHECK(metas(OpCall::make("aten::t", {x})) == "f32[6,4|1,6] (-1)");
  CHECK(metas(OpCall::make("aten::cat", {x, x}, {0})) == "f32[8,6|6,1] (-1)");
  CHECK(metas(make("optional", {x}, {true})) == "f32[4,6|6,1] f32[4,6|6,1] (-1,-1)");
  CHECK(metas(make("optional", {x}, {false})) == "f32[4,6|6,1] none (-1,-1)");
  CHECK(metas(OpCall::make("aten::add_.Tensor", {x, spec(mesh, {6}, "R")})) == "f32[4,6|6,1] (-1)");
  // A device argument is that of the result; the stand-in has another.
  CHECK(metas(make("on", {x}, {c10::Device("cpu")})) == "f32[4,6|6,1] (-1)");
  CHECK(metas(make("on", {x}, {c10::IValue()})) == "f32[4,6|6,1] (-1)");
  // ATen's own error describes a wrong call.
  CHECK_THROWS_WITH(metas(OpCall::make("aten::mm", {x, x})),
                    Contains("mat1 and mat2 shapes cannot be multiplied (4x6 and 4x6)"));
}

TEST_CASE("metadata without a meta kernel") {
  const std::vector<int64_t> mesh = {4};
  auto metas = [&](const OpCall& call) { return metas_of(infer_outputs(call, OpRule())); };
  // Elementwise: one element is computed.
  auto x = spec(mesh, {4, 6}, "S(0)", at::kInt);
  CHECK(metas(make("less", {x, spec(mesh, {6}, "R")})) == "b8[4,6|6,1] (-1)");
  CHECK(metas(make("less", {spec(mesh, {6}, "R"), x})) == "b8[4,6|6,1] (-1)");
  auto turned = Spec::get(mesh_of(mesh), {Replicate()}, TensorMeta{{4, 6}, {1, 4}, at::kFloat});
  CHECK(metas(make("less", {turned, x})) == "b8[4,6|1,4] (-1)");
  auto expanded = Spec::get(mesh_of(mesh), {Replicate()}, TensorMeta{{4, 6}, {1, 0}, at::kFloat});
  CHECK(metas(make("less", {expanded, x})) == "b8[4,6|6,1] (-1)");
  CHECK_THROWS_WITH(metas(make("less", {x, spec(mesh, {5}, "R")})), Contains("do not broadcast"));

  CHECK_THROWS_AS(metas(make("unknown", {x})), c10::NotImplementedError);
  CHECK_THROWS_WITH(
      metas(make("unknown", {x})),
      StartsWith("Operator propagate_test.unknown.default: the shape of its result cannot be known: no meta "
                 "kernel and no OpRule::metas"));
  OpRule rule;
  rule.metas = [](const OpCall& call) { return OutputMetas{{call.inputs[0]->meta()}, {-1}, {}}; };
  CHECK(metas_of(infer_outputs(make("unknown", {x}), rule)) == "i32[4,6|6,1] (-1)");
}

TEST_CASE("inferring metadata does not advance the random generator") {
  const std::vector<int64_t> mesh = {4};
  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  auto x = spec(mesh, {4, 6}, "R");
  infer_outputs(make("noise", {x}), OpRule());
  infer_outputs(OpCall::make("aten::normal_", {x}), OpRule());
  infer_outputs(OpCall::make("aten::bernoulli", {x}), OpRule());
  infer_outputs(OpCall::make("aten::rand_like", {x}), OpRule());
  CHECK(at::equal(at::rand({4}), expected));
}

TEST_CASE("trials on several threads do not advance the random generator") {
  const auto x = spec({4}, {4, 6}, "R");
  const OpCall noise = make("noise", {x});
  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) infer_outputs(noise, OpRule());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(at::equal(at::rand({4}), expected));
}

}  // namespace
}  // namespace dtensor
