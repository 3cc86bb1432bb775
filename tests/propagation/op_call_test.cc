#include "propagation/op_call.h"

#include <ATen/ATen.h>

#include <set>
#include <vector>

#include "placement/parse_placements.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

SpecPtr spec_of(Shape sizes, const char* layout = "R") {
  static const DeviceMesh mesh(World::abstract(4), {4});
  return Spec::get(mesh, parse_placements(layout).value(), sizes, at::kFloat);
}

TEST_CASE("calls made by name") {
  auto a = spec_of({4, 6}, "S(0)"), b = spec_of({6, 2});
  OpCall mm = OpCall::make("aten::mm", {a, b});
  CHECK(mm.name() == "aten::mm");
  CHECK(dotted_name(mm.op) == "aten.mm.default");
  CHECK(mm.inputs == std::vector<SpecPtr>{a, b});
  CHECK(mm.mesh == a->mesh());
  CHECK(mm.to_string() == "aten::mm(f32[4, 6](S(0)), f32[6, 2](R))");
  CHECK(mm.input_index("mat2") == 1);
  CHECK(mm.input("mat2") == b.get());
  CHECK(mm.input("nothing") == nullptr);
  CHECK(mm.input_name(1) == "mat2");

  // Arguments that are not tensors, defaults included; or all arguments.
  OpCall sum = OpCall::make("aten::sum.dim_IntList", {a}, {std::vector<int64_t>{0}});
  CHECK(dotted_name(sum.op) == "aten.sum.dim_IntList");
  CHECK(sum.get_ints("dim") == std::vector<int64_t>{0});
  CHECK_FALSE(sum.get_bool("keepdim"));
  CHECK(sum.arg("dtype").isNone());
  CHECK(sum.to_string() == "aten::sum.dim_IntList(f32[4, 6](S(0)), dim=[0])");
  sum = OpCall::make("aten::sum.dim_IntList", {a}, {0, std::vector<int64_t>{1}, true, c10::IValue()});
  CHECK(sum.get_ints("dim") == std::vector<int64_t>{1});
  CHECK(sum.get_bool("keepdim"));
  CHECK(sum.inputs.size() == 1);

  // Absent tensors.
  OpCall norm = OpCall::make("aten::native_layer_norm", {a, nullptr, b}, {std::vector<int64_t>{6}, 1e-5});
  CHECK(norm.inputs == std::vector<SpecPtr>{a, nullptr, b});
  CHECK(norm.input("weight") == nullptr);
  CHECK(norm.input_index("weight") == 1);
  CHECK(norm.input("bias") == b.get());
  norm = OpCall::make("aten::native_layer_norm", {a, b}, {0, std::vector<int64_t>{6}, c10::IValue(), 0, 1e-5});
  CHECK(norm.inputs == std::vector<SpecPtr>{a, nullptr, b});
  norm = OpCall::make("aten::native_layer_norm", {a}, {std::vector<int64_t>{6}, 1e-5});
  CHECK(norm.inputs == std::vector<SpecPtr>{a, nullptr, nullptr});

  // Lists.
  OpCall cat = OpCall::make("aten::cat", {a, b, a}, {1});
  CHECK(cat.inputs == std::vector<SpecPtr>{a, b, a});
  CHECK(cat.get_int("dim") == 1);
  CHECK(cat.input_name(2) == "tensors[2]");
  CHECK(cat.to_string() == "aten::cat([f32[4, 6](S(0)), f32[6, 2](R), f32[4, 6](S(0))], dim=1)");
  OpCall index = OpCall::make("aten::index.Tensor", {a, nullptr, b});
  CHECK(index.slots[1].first == 1);
  CHECK(index.slots[1].count == 2);
  CHECK(index.inputs == std::vector<SpecPtr>{a, nullptr, b});

  CHECK_THROWS_AS(OpCall::make("aten::no_such_operator", {a}), c10::Error);
  CHECK_THROWS_WITH(OpCall::make("aten::relu", {a, b}), Contains("2 specs given, 1 taken"));
}

TEST_CASE("arguments that are lists or optional") {
  auto a = spec_of({4, 6});
  // An empty optional list is None; an empty list is a list.
  CHECK(OpCall::make("aten::sum.dim_IntList", {a}, {std::vector<int64_t>{}}).get_ints("dim") == std::nullopt);
  CHECK(OpCall::make("aten::sum.dim_IntList", {a}, {c10::IValue()}).get_ints("dim") == std::nullopt);
  CHECK(OpCall::make("aten::sum.dim_IntList", {a}, {1}).get_ints("dim") == std::vector<int64_t>{1});
  CHECK(OpCall::make("aten::view", {a}, {std::vector<int64_t>{}}).get_ints("size") == std::vector<int64_t>{});
  CHECK(OpCall::make("aten::max.dim", {a}, {1}).get_int("dim") == 1);
  OpCall argmax = OpCall::make("aten::argmax", {a});
  CHECK(argmax.get_optional_int("dim") == std::nullopt);
  CHECK(OpCall::make("aten::argmax", {a}, {1}).get_optional_int("dim") == 1);
  CHECK(argmax.has_arg("keepdim"));
  CHECK_FALSE(argmax.has_arg("dims"));
  CHECK_THROWS_WITH(argmax.arg("dims"), Contains("aten::argmax has no argument 'dims'"));
  CHECK_THROWS_WITH(argmax.get_int("dim"), Contains("argument 'dim' is no integer but None"));
}

TEST_CASE("written arguments of an operator") {
  auto a = spec_of({4}), b = spec_of({4}), c = spec_of({4});
  OpCall add = OpCall::make("aten::add.Tensor", {a, b});
  CHECK(add.written() == std::vector<bool>{false, false});
  CHECK(add.written_by_return(0) == -1);

  OpCall in_place = OpCall::make("aten::add_.Tensor", {a, b});
  CHECK(in_place.written() == std::vector<bool>{true, false});
  CHECK(in_place.written_by_return(0) == 0);
  CHECK(in_place.without_outs().inputs == in_place.inputs);

  OpCall out = OpCall::make("aten::add.out", {a, b, c});
  CHECK(out.written() == std::vector<bool>{false, false, true});
  CHECK(out.written_by_return(0) == 3);  // self, other, alpha, out
  OpCall functional = out.without_outs();
  CHECK(functional.inputs == std::vector<SpecPtr>{a, b});
  CHECK(functional.written() == std::vector<bool>{false, false});
  CHECK(functional.input_index("out") == -1);
  CHECK(functional.input_index("other") == 1);
  CHECK(functional.to_string() == "aten::add.out(f32[4](R), f32[4](R))");

  // A view is no write; two out= arguments are distinguished.
  CHECK(OpCall::make("aten::t", {a}).written_by_return(0) == -1);
  OpCall max = OpCall::make("aten::max.dim_max", {a, b, c}, {0});
  CHECK(max.written_by_return(0) == 3);  // self, dim, keepdim, max, max_values
  CHECK(max.written_by_return(1) == 4);
}

// Such inputs are priced as one, so every hint that prices read must count.
TEST_CASE("two inputs have the same hints only if all hints of both are alike") {
  CallContext context;
  CHECK(context.has_same_hints(0, 1));
  for (auto* numbers : {&context.mutable_layouts, &context.parameters}) {
    numbers->push_back(1);
    CHECK_FALSE(context.has_same_hints(0, 1));
    numbers->push_back(0);
    CHECK(context.has_same_hints(0, 1));
  }
  context.factory_inputs = {0};
  CHECK_FALSE(context.has_same_hints(0, 1));
  context.factory_inputs = {0, 1};
  CHECK(context.has_same_hints(0, 1));
  context.inputs = {{spec_of({4})}, {}};
  CHECK_FALSE(context.has_same_hints(0, 1));
  context.inputs[1] = context.inputs[0];
  CHECK(context.has_same_hints(0, 1));
}

TEST_CASE("every hint of a call has a key of its own") {
  std::vector<CallContext> contexts(11);  // the first without hints
  contexts[1].mutable_layouts = {0};
  contexts[2].parameters = {0};
  contexts[3].factory_inputs = {0};
  contexts[4].partial_inputs_reused = true;
  contexts[5].gradient_target = spec_of({4});
  contexts[6].inputs = {{spec_of({4})}, {}};
  contexts[7].inputs = {{}, {spec_of({4})}};
  contexts[8].scope.limits.max_bytes = 1;
  contexts[9].scope.limits.max_bytes = 2;
  contexts[10].scope.keep_class_shards = true;
  std::set<std::vector<uint64_t>> keys;
  for (const CallContext& context : contexts) {
    CacheKey key;
    context.append_to_key(key);
    keys.emplace(key.begin(), key.end());
  }
  CHECK(keys.size() == contexts.size());
}

TEST_CASE("dims counted from the end") {
  CHECK(wrap_dim(-1, 3) == 2);
  CHECK(wrap_dim(2, 3) == 2);
  CHECK(wrap_dim(-1, 0) == 0);  // as ATen treats tensors without dims
  CHECK_THROWS_AS(wrap_dim(3, 3), c10::IndexError);
  CHECK_THROWS_AS(wrap_dim(-4, 3), c10::IndexError);
}

}  // namespace
}  // namespace dtensor
