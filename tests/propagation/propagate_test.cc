#include "propagation/propagate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"
#include "tests/propagation/propagate_ops.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using namespace propagate_ops;
using Catch::Contains;
using Catch::StartsWith;

struct Row {
  const char* op;
  std::vector<int64_t> mesh;
  std::vector<Shape> sizes;
  std::vector<const char*> layouts;
  const char* decision;
};

TEST_CASE("propagate: the chosen strategies") {
  const Shape square = {64, 64}, row = {64};  // 16 KiB, 256 B
  const std::vector<Row> rows = {
      // No redistribution: inputs fit.
      {"mm", {4}, {square, square}, {"R", "R"}, "R, R -> R"},
      {"mm", {4}, {square, square}, {"S(0)", "R"}, "S(0), R -> S(0)"},
      {"mm", {4}, {square, square}, {"R", "S(1)"}, "R, S(1) -> S(1)"},
      {"mm", {4}, {square, square}, {"S(1)", "S(0)"}, "S(1), S(0) -> P(sum)"},
      {"mm", {4}, {square, square}, {"P", "R"}, "P(sum), R -> P(sum)"},
      {"mm", {4}, {square, square}, {"R", "P(avg)"}, "R, P(avg) -> P(avg)"},
      {"mul", {4}, {square, square}, {"P", "R"}, "P(sum), R -> P(sum)"},
      // Row-parallel, then column-parallel: the reduction is needed anyway, and no weight is gathered to defer it,
      {"mm", {4}, {square, square}, {"P", "S(1)"}, "R, S(1) -> S(1); 0: 24576 B"},
      {"mul", {4}, {square, row}, {"P", "S(0)"}, "S(1), S(0) -> S(1); 0: 12288 B"},
      // unless the product's reduction is much smaller.
      {"mm", {4}, {{4096, 256}, {256, 4}}, {"P", "S(0)"}, "P(sum), R -> P(sum); 1: 3072 B"},
      // A local slice is cheaper than any collective.
      {"mm", {4}, {square, square}, {"S(1)", "R"}, "S(1), S(0) -> P(sum); 1: local"},
      {"mm", {4}, {square, square}, {"R", "S(0)"}, "S(1), S(0) -> P(sum); 0: local"},
      // An all-to-all moves a quarter of an all-gather, but here its result has to be reduced, so that it only pays if
      // the result is small.
      {"mm", {4}, {square, square}, {"S(0)", "S(0)"}, "S(0), R -> S(0); 1: 12288 B"},
      {"mm", {4}, {square, square}, {"S(1)", "S(1)"}, "R, S(1) -> S(1); 0: 12288 B"},
      {"mm", {4}, {{4, 640000}, {640000, 4}}, {"S(0)", "S(0)"}, "S(1), S(0) -> P(sum); 0: 1920000 B"},
      // The smaller one moves.
      {"mm", {4}, {{640, 64}, square}, {"S(0)", "S(1)"}, "S(0), R -> S(0); 1: 12288 B"},
      {"mm", {4}, {square, {64, 640}}, {"S(0)", "S(1)"}, "R, S(1) -> S(1); 0: 12288 B"},
      // Uneven and empty parts.
      {"mm", {4}, {{5, 3}, {3, 2}}, {"S(0)", "R"}, "S(0), R -> S(0)"},
      {"mm", {4}, {{5, 3}, {3, 2}}, {"S(1)", "S(0)"}, "S(1), S(0) -> P(sum)"},

      {"add", {4}, {square, square}, {"S(0)", "R"}, "S(0), S(0) -> S(0); 1: local"},
      {"add", {4}, {square, row}, {"S(1)", "R"}, "S(1), S(0) -> S(1); 1: local"},
      {"add", {4}, {square, row}, {"S(0)", "S(0)"}, "S(0), R -> S(0); 1: 192 B"},
      {"add", {4}, {square, square}, {"P", "P"}, "P(sum), P(sum) -> P(sum)"},
      {"add", {4}, {square, square}, {"P", "R"}, "P(sum), P(sum) -> P(sum); 1: local"},
      {"add", {4}, {square, square}, {"P(avg)", "R"}, "P(avg), P(avg) -> P(avg); 1: local"},
      {"add", {4}, {square, square}, {"P", "S(0)"}, "S(0), S(0) -> S(0); 0: 12288 B"},
      {"add",
       {4},
       {square, square},
       {"MaskP(sum, [9, 64], 0)", "R"},
       "MaskP(sum, [9, 64], 0), P(sum) -> P(sum); 1: local"},
      {"add", {4}, {square, square}, {"_S(0, 2)", "R"}, "_S(0, 2), _S(0, 2) -> _S(0, 2); 1: local"},

      {"addmm", {4}, {row, square, square}, {"R", "S(0)", "R"}, "R, S(0), R -> S(0)"},
      {"addmm", {4}, {row, square, square}, {"S(0)", "R", "S(1)"}, "S(0), R, S(1) -> S(1)"},
      {"addmm", {4}, {row, square, square}, {"R", "S(1)", "S(0)"}, "P(sum), S(1), S(0) -> P(sum); 0: local"},
      {"addmm", {4}, {row, square, square}, {"S(0)", "S(1)", "S(0)"}, "P(sum), S(1), S(0) -> P(sum); 0: 192 B"},

      {"mm", {2, 2}, {square, square}, {"S(0)R", "RS(1)"}, "S(0)R, RS(1) -> S(0)S(1)"},
      {"mm", {2, 2}, {square, square}, {"S(0)S(1)", "RS(0)"}, "S(0)S(1), RS(0) -> S(0)P(sum)"},
      {"mm", {2, 2}, {square, square}, {"S(0)R", "S(0)R"}, "S(0)R, RR -> S(0)R; 1: 8192 B"},
      {"mm", {2, 2}, {square, square}, {"S(0)S(1)", "RR"}, "S(0)S(1), RS(0) -> S(0)P(sum); 1: local"},
      {"add", {2, 2}, {square, row}, {"S(0)S(1)", "RR"}, "S(0)S(1), RS(0) -> S(0)S(1); 1: local"},
      {"add", {2, 2}, {square, square}, {"S(0)P", "RR"}, "S(0)P(sum), S(0)P(sum) -> S(0)P(sum); 1: local"},
      {"addmm",
       {2, 2},
       {row, square, square},
       {"RR", "S(0)S(1)", "RS(0)"},
       "RP(sum), S(0)S(1), RS(0) -> S(0)P(sum); 0: local"},
  };
  for (const Row& row : rows) {
    std::vector<SpecPtr> specs;
    for (size_t i = 0; i < row.sizes.size(); ++i) specs.push_back(spec(row.mesh, row.sizes[i], row.layouts[i]));
    OpCall call = make(row.op, specs);
    INFO(call.to_string());
    CHECK(decision(*propagate(call)) == row.decision);
  }
}

TEST_CASE("outputs have the global metadata") {
  auto plan = propagate(make("mm", {spec({4}, {5, 3}, "S(0)"), spec({4}, {3, 2}, "R")}));
  REQUIRE(plan->outputs.size() == 1);
  CHECK(plan->outputs[0]->to_short_string() == "f32[5, 2](S(0))");
  CHECK(plan->outputs[0]->strides() == Shape{2, 1});
  CHECK(plan->output_counts == std::vector<int>{-1});
  CHECK(plan->bytes() == 0);
  CHECK(plan->rule == RuleRegistry::instance().find(make("mm", {spec({4}, {1, 1}, "R"), nullptr}).op));

  plan = propagate(make("add", {spec({4}, {8, 1}, "S(0)", at::kLong), spec({4}, {3}, "R", at::kFloat)}));
  CHECK(plan->outputs[0]->to_short_string() == "f32[8, 3](S(0))");
}

TEST_CASE("a decision's explain()") {
  OpCall call = make("mm", {spec({4}, {4, 640000}, "S(0)"), spec({4}, {640000, 4}, "S(0)")});
  auto plan = propagate(call);
  CHECK(plan->bytes() == 1920000);
  CHECK_THAT(plan->explain(),
             StartsWith("propagate_test::mm(S(1), S(0)) -> P(sum); input 0: S(0) -> S(1): all_to_all"));
  CHECK(plan->call->inputs == call.inputs);
  CHECK(plan->computed[0] == call.inputs[0]->with_placements({Shard(1)}));
}

TEST_CASE("in-place operators keep the layout of the written tensor") {
  const std::vector<int64_t> mesh = {4};
  auto plan = propagate(make("mul_", {spec(mesh, {8, 8}, "S(0)"), spec(mesh, {8, 8}, "R")}));
  CHECK(decision(*plan) == "S(0), S(0) -> S(0); 1: local");
  CHECK(plan->outputs[0] == plan->call->inputs[0]);
  // The larger side moves if the smaller one is written to.
  CHECK(decision(*propagate(make("mul_", {spec(mesh, {8, 8}, "R"), spec(mesh, {8, 8}, "S(0)")}))) ==
        "R, R -> R; 1: 192 B");
  CHECK(decision(*propagate(make("mul_", {spec(mesh, {8, 8}, "P"), spec(mesh, {8, 8}, "S(0)")}))) ==
        "P(sum), R -> P(sum); 1: 192 B");
  CHECK(decision(*propagate(make("normalize_", {spec(mesh, {8, 8}, "S(0)"), spec(mesh, {8}, "S(0)")}))) ==
        "S(0), R -> S(0); 1: 24 B");

  OpCall call = make("normalize_", {spec(mesh, {8, 8}, "S(1)"), spec(mesh, {8}, "R")});
  CHECK_THROWS_AS(propagate(call), c10::Error);
  CHECK_THROWS_WITH(
      propagate(call),
      StartsWith("propagate_test::normalize_: in-place operations that require placement changes are not "
                 "supported: argument 'x' is laid out as S(1), the operator needs R or S(0); redistribute it "
                 "first"));
  call = make("normalize_", {spec({2, 2}, {8, 8}, "S(0)S(1)"), spec({2, 2}, {8}, "RR")});
  CHECK_THROWS_WITH(
      propagate(call),
      Contains("'x' is laid out as S(0)S(1), the operator needs R or S(0) on mesh dim 'dim1'; redistribute"));

  // The written tensor is read in its layout.
  CHECK(decision(*propagate(make("gathers_", {spec(mesh, {8}, "R")}))) == "R -> R");
  CHECK_THROWS_WITH(propagate(make("gathers_", {spec(mesh, {8}, "S(0)")})),
                    Contains("argument 'x' is laid out as S(0), the operator needs R; redistribute it first"));

  // Operators that return nothing; the rule is about the written arguments.
  call = make("each_", {spec(mesh, {8}, "S(0)"), spec(mesh, {6}, "S(0)")});
  plan = propagate(call);
  CHECK(decision(*plan) == "S(0), S(0) -> ");
  CHECK(plan->outputs.empty());
  call = make("each_", {spec(mesh, {8}, "S(0)"), spec(mesh, {6}, "R")});
  CHECK_THROWS_WITH(propagate(call), Contains("in-place operations that require placement changes are not supported"));
}

TEST_CASE("in-place operators keep their shape") {
  const std::vector<int64_t> mesh = {4};
  CHECK_THROWS_WITH(propagate(make("mul_", {spec(mesh, {8}, "R"), spec(mesh, {2, 8}, "R")})),
                    Contains("doesn't match the broadcast shape"));
  OpCall call = OpCall::make("aten::t_", {spec(mesh, {8, 4}, "R")});
  CHECK_THROWS_AS(infer_outputs(call, OpRule()), c10::NotImplementedError);
  CHECK_THROWS_WITH(infer_outputs(call, OpRule()),
                    StartsWith("Operator aten.t_.default: in-place operations that change the shape"));
  // A rule's own metadata is checked as well.
  OpRule rule;
  rule.metas = [](const OpCall&) { return OutputMetas{{TensorMeta{{2, 8}, {8, 1}, at::kFloat}}, {-1}, {}}; };
  CHECK_THROWS_WITH(infer_outputs(make("mul_", {spec(mesh, {8}, "R"), spec(mesh, {2, 8}, "R")}), rule),
                    Contains("argument 'a' of shape [8] cannot hold the result, of shape [2, 8]"));
}

TEST_CASE("out= operators bring the result to the layout of out") {
  const std::vector<int64_t> mesh = {4};
  auto x = [&](const char* layout) { return spec(mesh, {8, 8}, layout); };
  auto plan = propagate(make("mul.out", {x("S(0)"), x("S(0)"), x("S(0)")}));
  CHECK(decision(*plan) == "S(0), S(0), S(0) -> S(0)");
  CHECK(plan->outputs[0] == plan->call->inputs[2]);
  CHECK(decision(*propagate(make("mul.out", {x("R"), x("R"), x("S(1)")}))) ==
        "S(1), S(1), S(1) -> S(1); 0: local; 1: local");
  CHECK(decision(*propagate(make("mul.out", {x("S(0)"), x("R"), x("R")}))) == "R, R, R -> R; 0: 192 B");
  CHECK_THROWS_WITH(
      propagate(make("mul.out", {x("R"), x("R"), spec(mesh, {8}, "R")})),
      Contains("propagate_test::mul.out: argument 'out' of shape [8] cannot hold the result, of shape [8, 8]"));
  CHECK_THROWS_WITH(
      propagate(make("mul.out", {x("R"), x("R"), x("P(max)")})),
      Contains("argument 'out' is laid out as P(max), the operator needs R or S(0) or S(1); redistribute"));
  // The type of out may be another than that of the result.
  plan = propagate(make("mul.out", {x("R"), x("R"), spec(mesh, {8, 8}, "R", at::kDouble)}));
  CHECK(plan->outputs[0]->dtype() == at::kDouble);
}

TEST_CASE("complete strategies") {
  auto layout = [](const char* text) { return make("whole", {spec({2, 2}, {8, 8}, text)}); };
  CHECK(decision(*propagate(layout("RR"))) == "RR -> RR");
  CHECK(decision(*propagate(layout("S(0)S(1)"))) == "S(0)S(1) -> S(0)S(1)");
  CHECK(decision(*propagate(layout("S(0)R"))) == "S(0)S(1) -> S(0)S(1); 0: local");
  CHECK(decision(*propagate(layout("S(1)S(0)"))) == "S(0)S(1) -> S(0)S(1); 0: 64 B");
}

TEST_CASE("the error of an operator without a rule names the remedies") {
  OpCall call =
      OpCall::make("aten::embedding_renorm_", {spec({4}, {8, 8}, "R"), spec({4}, {2}, "R", at::kLong)}, {1., 2.});
  CHECK_THROWS_AS(propagate(call), c10::NotImplementedError);
  CHECK_THROWS_WITH(
      propagate(call),
      StartsWith("Operator aten.embedding_renorm_.default does not have a sharding strategy registered.") &&
          Contains("RuleRegistry::instance().add(\"aten::embedding_renorm_\", rule)") &&
          Contains("ReplicateUnsupported"));
}

TEST_CASE("results are inferred once per decision, and given to the rule") {
  int inferred = 0, asked = 0;
  OpRule rule;
  rule.metas = [&](const OpCall& call) {
    ++inferred;
    return OutputMetas{{call.inputs[0]->meta()}, {-1}, {}};
  };
  rule.per_dim = [&](const OpCall& call, int64_t) {
    ++asked;
    REQUIRE(call.results);
    CHECK(call.results->tensors.at(0)->sizes == Shape{8, 6});
    return std::vector<DimStrategy>{{{Replicate()}, {Replicate()}}};
  };
  propagate(make("unruled", {spec({2, 2}, {8, 6}, "RR")}), std::make_shared<const OpRule>(rule));
  CHECK(inferred == 1);
  CHECK(asked == 2);
}

TEST_CASE("faulty rules are named in the error") {
  OpRule rule;
  rule.per_dim = [](const OpCall&, int64_t) { return std::vector<DimStrategy>{{{Shard(2)}, {Replicate()}}}; };
  RuleRegistry::instance().add("propagate_test::unruled", rule);
  rule.metas = [](const OpCall& call) { return OutputMetas{{call.inputs[0]->meta()}, {-1}, {}}; };
  RuleRegistry::instance().add("propagate_test::unruled", rule);
  OpCall call = make("unruled", {spec({4}, {8, 8}, "R")});
  CHECK_THROWS_WITH(propagate(call), Contains("rule of propagate_test::unruled: S(2) for output 0, which has 2 dims"));
  rule.per_dim = [](const OpCall&, int64_t) { return std::vector<DimStrategy>{{{}, {Replicate()}}}; };
  RuleRegistry::instance().add("propagate_test::unruled", rule);
  CHECK_THROWS_WITH(propagate(call), Contains("a strategy has 0 outputs, the operator 1"));
  rule.per_dim = [](const OpCall&, int64_t) { return std::vector<DimStrategy>{}; };
  RuleRegistry::instance().add("propagate_test::unruled", rule);
  CHECK_THROWS_WITH(propagate(call), Contains("none of its sharding strategies fits"));
  // Candidates with a dim that the input lacks are skipped.
  rule.per_dim = [](const OpCall&, int64_t) {
    return std::vector<DimStrategy>{{{Shard(0)}, {Shard(2)}}, {{Replicate()}, {Replicate()}}};
  };
  RuleRegistry::instance().add("propagate_test::unruled", rule);
  CHECK(decision(*propagate(make("unruled", {spec({4}, {8, 8}, "S(1)")}))) == "R -> R; 0: 192 B");
  CHECK_THROWS_WITH(RuleRegistry::instance().add("propagate_test::unruled", OpRule()), Contains("OpRule::per_dim"));
  CHECK_THROWS_WITH(RuleRegistry::instance().add("unruled", rule), Contains("ns::name"));
}

TEST_CASE("look-up of rules") {
  add_rules();
  auto& rules = RuleRegistry::instance();
  auto find = [&](const char* name, const char* overload = "") {
    return rules.find(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  };
  auto mul = find("propagate_test::mul");
  REQUIRE(mul);
  CHECK(find("propagate_test::mul_") == mul);
  CHECK(find("propagate_test::mul", "out") == mul);
  CHECK(find("propagate_test::normalize_") == find("propagate_test::normalize"));

  // A program's own rule comes first, and later ones replace earlier ones at once.
  const uint64_t generation = rules.generation();
  rules.add("propagate_test::mul.out", factor_op([](const OpCall& call) { return pointwise(call); }));
  CHECK(rules.generation() > generation);
  CHECK(find("propagate_test::mul", "out") != mul);
  CHECK(find("propagate_test::mul") == mul);
  CHECK(find("propagate_test::mul_") == mul);
  const auto entries = rules.entries();
  CHECK(std::count_if(entries.begin(), entries.end(),
                      [](const auto& entry) { return entry.op == "propagate_test::mul.out"; }) == 1);

  // Elementwise operators have the default rule, in all their forms; random ones have none.
  auto pointwise = find("propagate_test::less");
  CHECK(pointwise);
  CHECK(pointwise != mul);
  CHECK_FALSE(find("propagate_test::noise"));

  // Overloads: the functional form is the one with the same arguments; it comes before the rule for all overloads.
  auto rule = factor_op([](const OpCall& call) { return einsum(call, "->"); });
  rules.add("aten::sort.stable", rule);
  rules.add("aten::sort", rule);
  CHECK(find("aten::sort", "values_stable") == find("aten::sort", "stable"));
  CHECK(find("aten::sort", "values") == find("aten::sort"));
  CHECK(find("aten::sort", "values") != find("aten::sort", "stable"));
}

}  // namespace
}  // namespace dtensor
