#include "propagation/propagate.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "plan/plan_many.h"
#include "plan/redistribute_planner.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"
#include "propagation/strategy_search.h"
#include "tests/testing/catch_torch.h"

// Operators of this test's own, independent of the library's rules.
TORCH_LIBRARY(propagate_test, m) {
  m.def("mm(Tensor a, Tensor b) -> Tensor");
  m.def("add(Tensor a, Tensor b) -> Tensor");
  m.def("addmm(Tensor bias, Tensor a, Tensor b) -> Tensor");
  m.def("mul(Tensor a, Tensor b) -> Tensor");
  m.def("mul_(Tensor(a!) a, Tensor b) -> Tensor(a!)");
  m.def("mul.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("normalize(Tensor x, Tensor w) -> Tensor");
  m.def("normalize_(Tensor(a!) x, Tensor w) -> Tensor(a!)");
  m.def("each_(Tensor(a!)[] xs) -> ()");
  m.def("gathers_(Tensor(a!) x) -> Tensor(a!)");
  m.def("unknown(Tensor x) -> Tensor");
  m.def("unruled(Tensor x) -> Tensor");
  m.def("optional(Tensor x, bool second) -> (Tensor, Tensor)");
  m.def("noise(Tensor x) -> Tensor", {at::Tag::pointwise, at::Tag::nondeterministic_seeded});
  m.def("less(Tensor x, Tensor y) -> Tensor", {at::Tag::pointwise});
  m.def("whole(Tensor x) -> Tensor");
  m.def("on(Tensor x, Device? device) -> Tensor");
}

TORCH_LIBRARY_IMPL(propagate_test, Meta, m) {
  m.impl("mm", [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); });
  m.impl("add", [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); });
  m.impl("addmm", [](const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) { return at::addmm(c, a, b); });
  m.impl("mul", [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); });
  m.impl("mul_", [](at::Tensor& a, const at::Tensor& b) -> at::Tensor& { return a.mul_(b); });
  m.impl("mul.out", [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) -> at::Tensor& {
    return at::mul_out(out, a, b);
  });
  m.impl("normalize", [](const at::Tensor& x, const at::Tensor& w) { return at::mul(x, w); });
  m.impl("optional", [](const at::Tensor& x, bool second) {
    return std::make_tuple(at::empty_like(x), second ? at::empty_like(x) : at::Tensor());
  });
  m.impl("whole", [](const at::Tensor& x) { return at::empty_like(x); });
  m.impl("on", [](const at::Tensor& x, std::optional<c10::Device> device) {
    TORCH_CHECK(!device || device->is_meta());
    return at::empty_like(x);
  });
}

TORCH_LIBRARY_IMPL(propagate_test, CPU, m) {
  m.impl("noise", [](const at::Tensor& x) { return at::rand_like(x); });
  m.impl("less", [](const at::Tensor& x, const at::Tensor& y) { return at::lt(x, y); });
}

namespace dtensor {
namespace {

using Catch::Contains;
using Catch::StartsWith;

void add_rules() {
  static const bool once = [] {
    auto& rules = RuleRegistry::instance();
    auto rule = [](const char* equation, bool linear = true) {
      return factor_op([=](const OpCall& call) { return einsum(call, equation, linear); });
    };
    rules.add("propagate_test::mm", rule("mk,kn->mn"));
    rules.add("propagate_test::add", rule("...+...->..."));
    rules.add("propagate_test::addmm", rule("mn+mk,kn->mn"));
    rules.add("propagate_test::mul", rule("...,...->..."));
    rules.add("propagate_test::normalize", rule("...K,K->...K", false));
    rules.add({"propagate_test::unknown", "propagate_test::optional", "propagate_test::on"},
              factor_op([](const OpCall& call) { return pointwise(call, call.has_arg("second") ? 2 : 1); }));
    OpRule each;
    each.per_dim = [](const OpCall& call, int64_t) {
      const Placements all(call.inputs.size(), Shard(0)), none(call.inputs.size(), Replicate());
      return std::vector<DimStrategy>{{none, none}, {all, all}};
    };
    rules.add("propagate_test::each_", each);
    OpRule gathers;  // could write a part of the result only from all of the input
    gathers.per_dim = [](const OpCall&, int64_t) {
      return std::vector<DimStrategy>{{{Replicate()}, {Replicate()}}, {{Shard(0)}, {Replicate()}}};
    };
    rules.add("propagate_test::gathers_", gathers);
    // On a mesh of two dims: both or none.
    OpRule whole;
    whole.whole = [](const OpCall&) {
      const Placements none = parse_placements("RR").value(), both = parse_placements("S(0)S(1)").value();
      return std::vector<Strategy>{{{none}, {none}}, {{both}, {both}}};
    };
    rules.add("propagate_test::whole", whole);
    rules.set_default_pointwise(factor_op([](const OpCall& call) { return pointwise(call); }));
    return true;
  }();
  (void)once;
}

DeviceMesh mesh_of(std::vector<int64_t> shape) {
  static std::map<std::vector<int64_t>, DeviceMesh> meshes;
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  auto& mesh = meshes[shape];
  if (!mesh.defined()) mesh = DeviceMesh(World::abstract(size), shape);
  return mesh;
}

SpecPtr spec(std::vector<int64_t> mesh, Shape sizes, const std::string& layout, c10::ScalarType dtype = at::kFloat) {
  return Spec::get(mesh_of(std::move(mesh)), parse_placements(layout).value(), sizes, dtype);
}

OpCall make(const std::string& op, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args = {}) {
  add_rules();
  return OpCall::make("propagate_test::" + op, specs, std::move(args));
}

// "S(0), R -> S(0); 1: 48 B": the layouts of the computation, and the bytes of each input's redistribution ("local" if
// 0).
std::string decision(const Decision& plan) {
  auto layouts = [](const std::vector<SpecPtr>& specs) {
    return absl::StrJoin(
        specs, ", ", [](std::string* out, const SpecPtr& s) { out->append(s ? to_string(s->placements()) : "None"); });
  };
  std::string text = absl::StrCat(layouts(plan.computed), " -> ", layouts(plan.outputs));
  for (size_t i = 0; i < plan.input_plans.size(); ++i) {
    if (!plan.input_plans[i]) continue;
    absl::StrAppend(&text, "; ", i, ": ");
    if (plan.input_plans[i]->is_local()) {
      absl::StrAppend(&text, "local");
    } else {
      absl::StrAppend(&text, plan.input_plans[i]->bytes, " B");
    }
  }
  return text;
}

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
  CHECK_THAT(plan->explain(call),
             StartsWith("propagate_test::mm(S(1), S(0)) -> P(sum); input 0: S(0) -> S(1): all_to_all"));
  CHECK(plan->given == call.inputs);
  CHECK(plan->computed[0] == call.inputs[0]->with_placements({Shard(1)}));
}

// Whether the option, on mesh dim d, shards (or makes a Partial of) a tensor although all inputs are replicated there.
bool begins_to_shard(const std::vector<SpecPtr>& specs, size_t d, const DimStrategy& option) {
  const auto is_whole = [&](const SpecPtr& s) { return s->placements()[d].is_replicate(); };
  return std::all_of(specs.begin(), specs.end(), is_whole) &&
         std::any_of(option.inputs.begin(), option.inputs.end(), [](const Placement& p) { return !p.is_replicate(); });
}

bool crosses_nodes(const DeviceMesh& mesh, size_t d) {
  return (mesh.dims_between_nodes(CostModel().ranks_per_node) >> d & 1) != 0;
}

Placements placements_of(const std::vector<DimStrategy>& chosen, int input) {
  Placements result;
  for (const DimStrategy& o : chosen) result.push_back(input < 0 ? o.outputs[0] : o.inputs[input]);
  return result;
}

// Whether some tensor is sharded along mesh dim d, where no input is.
bool cuts(const std::vector<SpecPtr>& specs, const std::vector<DimStrategy>& chosen, size_t d) {
  const auto came = [&](const SpecPtr& s) { return s->placements()[d].is_sharded(); };
  const auto is_cut = [](const Placement& p) { return p.is_sharded(); };
  return std::none_of(specs.begin(), specs.end(), came) &&
         std::any_of(chosen[d].inputs.begin(), chosen[d].inputs.end(), is_cut);
}

// The elements that one rank of a product multiplies, reads and writes.
double work(const std::vector<SpecPtr>& specs, const std::vector<DimStrategy>& chosen, const Spec& result) {
  int64_t bytes = result.with_placements(placements_of(chosen, -1))->max_local_bytes();
  std::vector<Shape> parts;
  for (size_t i = 0; i < specs.size(); ++i) {
    const Spec& s = *specs[i];
    const Placements to = placements_of(chosen, static_cast<int>(i));
    bytes += s.with_placements(to)->max_local_bytes();
    parts.push_back(local_shape(s.sizes(), s.mesh().shape(), to, Shape(to.size(), 0)));
  }
  const Shape &a = parts[parts.size() - 2], &b = parts.back();
  const double flops = 2.0 * static_cast<double>(a[0] * a[1] * b[1]);
  return flops / CostModel().flops_per_second + static_cast<double>(bytes) / CostModel().copy_bandwidth;
}

// Time to reduce a tensor with this layout along mesh dim d.
double reduction(const Spec& spec, size_t d, Collective kind = Collective::kAllReduce) {
  if (!spec.placements()[d].is_partial()) return 0;
  const DeviceMesh& mesh = spec.mesh();
  const int64_t n = mesh.size(static_cast<int64_t>(d));
  const int64_t passes = kind == Collective::kAllReduce ? 2 : 1;
  return CostModel().collective(kind, n, crosses_nodes(mesh, d), spec.max_local_bytes() * passes * (n - 1) / n);
}

// Time to gather it again; minus the reduction of the product, if that could have been deferred.
double new_sharding_cost(const std::vector<SpecPtr>& specs, const std::vector<DimStrategy>& chosen,
                         const Spec& result) {
  double seconds = 0;
  const SpecPtr made = result.with_placements(placements_of(chosen, -1));
  for (size_t d = 0; d < chosen.size(); ++d) {
    if (!cuts(specs, chosen, d) || !made->placements()[d].is_sharded()) continue;
    const int64_t n = made->mesh().size(static_cast<int64_t>(d));
    Placements whole = made->placements();
    whole[d] = Partial();
    const SpecPtr addends = made->with_placements(whole);
    seconds += CostModel().collective(Collective::kAllGather, n, crosses_nodes(made->mesh(), d),
                                      addends->max_local_bytes() * (n - 1) / n);
    double now = 0;
    for (const SpecPtr& s : specs) now += reduction(*s, d);
    if (reduction(*addends, d) <= now) seconds -= reduction(*addends, d);
  }
  return seconds;
}

// The later reduction of a Partial that an input moved for, to shards if the input was sharded, or that is deferred
// without a gain.
double made_partial(const std::vector<SpecPtr>& specs, const std::vector<DimStrategy>& chosen, const Spec& result) {
  const Placements out = placements_of(chosen, -1);
  double seconds = 0;
  for (size_t d = 0; d < chosen.size(); ++d) {
    const double later = reduction(*result.with_placements(out), d);
    double now = 0;
    bool moves = false, no_gain = false, multiplied = false;
    for (size_t i = 0; i < specs.size(); ++i) {
      const Placement &from = specs[i]->placements()[d], &to = chosen[d].inputs[i];
      moves = moves || (from.is_sharded() && !to.is_partial() && from != to);
      no_gain = no_gain || (from.is_sharded() && to.is_partial()) || (from.is_partial() && !to.is_partial());
      multiplied = multiplied || to.is_replicate();
      if (to.is_partial()) now += reduction(*specs[i], d);
    }
    const bool dearer = multiplied ? later > now : later > 3 * now;
    const bool in_vain = now > 0 && (no_gain || dearer);
    if (moves && !in_vain) {
      seconds += reduction(*result.with_placements(out), d, Collective::kReduceScatter);
    } else if (in_vain || cuts(specs, chosen, d)) {
      seconds += later;
    }
  }
  return seconds;
}

TEST_CASE("in backward, Partials are reduced for a product of equal size, since they are read again") {
  const auto chosen = [](const char* op, Shape a, Shape b, bool in_backward) {
    OpCall call = make(op, {spec({4}, a, "P"), spec({4}, b, "R")});
    call.context.partial_inputs_reused = in_backward;
    return decision(*propagate(call));
  };
  const Shape square = {64, 64};
  for (const char* op : {"mm", "mul"}) {
    CHECK(chosen(op, square, square, false) == "P(sum), R -> P(sum)");
    CHECK(chosen(op, square, square, true) == "R, R -> R; 0: 24576 B");
  }
  CHECK(chosen("mm", square, {64, 32}, true) == "P(sum), R -> P(sum)");
  CHECK(chosen("mul", square, {1}, true) == "P(sum), R -> P(sum)");
}

TEST_CASE("a parameter that moves for sharded tokens also pays for its gradient's way back") {
  const auto chosen = [](const char* rows, int64_t count, std::vector<int> parameters) {
    OpCall call = make("mm", {spec({4}, {count, 256}, rows), spec({4}, {256, 512}, "S(1)")});
    call.context.parameters.assign(parameters.begin(), parameters.end());
    return decision(*propagate(call));
  };
  const std::string columns_come = "1: 393216 B";
  CHECK_THAT(chosen("_S(0, 4)", 256, {}), Contains("0: 196608 B"));
  CHECK_THAT(chosen("_S(0, 4)", 768, {}), Contains(columns_come));
  CHECK_THAT(chosen("_S(0, 4)", 768, {1}), Contains("0: 589824 B"));
  CHECK_THAT(chosen("_S(0, 4)", 2048, {1}), Contains(columns_come));  // it is still less
  CHECK_THAT(chosen("S(0)", 768, {1}), Contains(columns_come));
}

TEST_CASE("an expanded input is redistributed before the expansion") {
  const Shape sizes = {64, 16, 8};
  const DeviceMesh mesh = spec({4}, sizes, "R")->mesh();
  const TensorMeta copies{sizes, {8, 0, 1}, at::kFloat};
  const auto chosen = [&](const char* layout, const char* other) {
    const SpecPtr expanded = Spec::get(mesh, parse_placements(layout).value(), copies);
    return decision(*propagate(make("mul", {expanded, spec({4}, sizes, other)})));
  };
  CHECK(chosen("S(0)", "S(2)") == "S(2), S(2) -> S(2); 0: 384 B");   // three quarters of 16 rows of 8 numbers
  CHECK(chosen("S(0)", "S(1)") == "S(0), S(0) -> S(0); 1: 6144 B");  // copies that a layout shards are rows like others
}

TEST_CASE("equal inputs move together and pay one latency") {
  std::vector<SpecPtr> specs(8, spec({4}, {4, 64, 64}, "S(1)"));
  specs.push_back(spec({4}, {512, 64, 64}, "S(2)"));
  const OpCall call = OpCall::make("aten::cat", specs);
  SearchEffort effort;
  const auto chosen = propagate(call, effort);
  CHECK(to_string(chosen->outputs[0]->placements()) == "S(2)");  // the eight are few bytes
  auto moves = chosen->input_plans;
  moves.pop_back();
  CHECK(effort.seconds == Approx(batch_plans(moves).seconds));
  const auto ranked = propagate_all(call, chosen->rule, 1);
  CHECK(ranked.at(0).seconds == Approx(effort.seconds));
}

// The cost of the choice compared with that of every combination.
TEST_CASE("no combination is cheaper than the chosen one") {
  std::mt19937 random(11);
  const char* kinds[] = {"R", "S(0)", "S(1)", "P"};
  for (std::vector<int64_t> mesh : {std::vector<int64_t>{2, 2}, {2, 3, 2}}) {
    for (int round = 0; round < 12; ++round) {
      const std::string op = round % 2 ? "mm" : "addmm";
      std::vector<SpecPtr> specs;
      for (Shape sizes : {Shape{24, 37}, Shape{24, 32}, Shape{32, 37}}) {
        if (op == "mm" && specs.empty() && sizes == Shape{24, 37}) continue;
        std::string layout;
        for (size_t d = 0; d < mesh.size(); ++d) layout += kinds[random() % 4];
        specs.push_back(spec(mesh, sizes, layout));
      }
      OpCall call = make(op, specs);
      auto plan = propagate(call);
      double chosen = 0;
      for (const auto& p : plan->input_plans) chosen += p ? p->seconds : 0;
      std::vector<DimStrategy> taken;
      for (size_t d = 0; d < mesh.size(); ++d) {
        DimStrategy& option = taken.emplace_back();
        option.outputs = {plan->outputs[0]->placements()[d]};
        for (const auto& s : plan->computed) option.inputs.push_back(s->placements()[d]);
      }
      const auto beside_moves = [&](const std::vector<DimStrategy>& way) {
        return made_partial(specs, way, *plan->outputs[0]) + new_sharding_cost(specs, way, *plan->outputs[0]) +
               work(specs, way, *plan->outputs[0]);
      };
      chosen += beside_moves(taken);

      std::vector<DimStrategy> options;
      for (DimStrategy& s : plan->rule->per_dim(call, 0)) {
        if (s.outputs[0] != Partial(ReduceOp::kAvg)) options.push_back(s);
      }
      double best = 1;
      std::map<std::pair<size_t, std::string>, double> costs;
      size_t combinations = 1;
      for (size_t d = 0; d < mesh.size(); ++d) combinations *= options.size();
      for (size_t c = 0; c < combinations; ++c) {
        std::vector<DimStrategy> combination;
        bool allowed = true;
        for (size_t d = 0, rest = c; d < mesh.size(); ++d, rest /= options.size()) {
          combination.push_back(options[rest % options.size()]);
          allowed = allowed && !begins_to_shard(specs, d, combination.back());
        }
        if (!allowed) continue;
        double cost = beside_moves(combination);
        for (size_t i = 0; i < specs.size(); ++i) {
          Placements to;
          for (size_t d = 0, rest = c; d < mesh.size(); ++d, rest /= options.size()) {
            to.push_back(options[rest % options.size()].inputs[i]);
          }
          auto [it, fresh] = costs.try_emplace({i, to_string(to)}, 0);
          if (fresh) it->second = plan_redistribution(call.mesh, specs[i]->meta(), specs[i]->placements(), to).seconds;
          cost += it->second;
        }
        best = std::min(best, cost);
      }
      INFO(call.to_string() << ": " << decision(*plan));
      CHECK(chosen == Approx(best).epsilon(1e-6).margin(1e-12));
    }
  }
}

TEST_CASE("Partials are not made unless an input is Partial") {
  // Bool: sums are not possible. Integers: averages are not.
  OpCall call = make("add", {spec({4}, {8}, "P", at::kLong), spec({4}, {8}, "R", at::kBool)});
  CHECK(decision(*propagate(call)) == "R, R -> R; 0: 96 B");
  call = make("add", {spec({4}, {8}, "P(avg)"), spec({4}, {8}, "R", at::kLong)});
  CHECK(decision(*propagate(call)) == "R, R -> R; 0: 48 B");
}

TEST_CASE("the engine does not begin to shard along a mesh dim by itself") {
  // A reduce-scatter would cost half the all-reduce, and leave the result sharded. Both are reduced, in one collective:
  // a product that stayed Partial would be reduced once more.
  CHECK(decision(*propagate(make("mul", {spec({4}, {64, 64}, "P"), spec({4}, {64, 64}, "P")}))).rfind("R, R -> R", 0) ==
        0);
  // Splitting k over the second mesh dim would halve the bytes over the first.
  CHECK(decision(*propagate(make("mm", {spec({2, 2}, {64, 64}, "S(0)R"), spec({2, 2}, {64, 64}, "S(0)R")}))) ==
        "S(0)R, RR -> S(0)R; 1: 8192 B");
}

TEST_CASE("work that all ranks would do redundantly is part of the price") {
  const auto chosen = [](const char* op, int64_t tokens, int64_t width) {
    const SpecPtr addends = spec({8}, {tokens, width}, "P"), whole = spec({8}, {width, width}, "R");
    return decision(*propagate(make(op, {addends, whole})));
  };
  // The result of a row-parallel layer, times a replicated matrix: reduced to rows, which each rank then multiplies, if
  // the product takes longer than gathering the rows again.
  CHECK(chosen("mm", 64, 64) == "P(sum), R -> P(sum)");
  CHECK(chosen("mm", 8192, 4096) == "S(0), R -> S(0); 0: 117440512 B");
  // The product would not be worth it.
  CHECK(chosen("mul", 4096, 4096) == "P(sum), R -> P(sum)");
  // Slow machines, fast links.
  const DeviceMesh mesh(World::abstract(8), {8}, {"slow"});
  CostModel slow;
  slow.flops_per_second = 1e9;
  set_cost_model(mesh.world(), slow);
  const Shape sizes = {64, 64};
  const auto on = [&](const char* layout) {
    return Spec::get(mesh, parse_placements(layout).value(), sizes, at::kFloat);
  };
  CHECK(decision(*propagate(make("mm", {on("P"), on("R")}))) == "S(0), R -> S(0); 0: 14336 B");
  // With fewer rows than ranks some ranks would have none.
  const SpecPtr few = Spec::get(mesh, {Partial()}, {4, 64}, at::kFloat),
                one = Spec::get(mesh, {Partial()}, {1, 4}, at::kFloat);
  CHECK_THAT(decision(*propagate(make("mm", {few, on("R")}))), !Catch::StartsWith("S(0)"));
  const SpecPtr column = Spec::get(mesh, {Partial()}, {4, 1}, at::kFloat);
  CHECK(decision(*propagate(make("mm", {one, column}))) == "P(sum), R -> P(sum); 1: 28 B");
  CHECK(decision(*propagate(make("mm", {on("R"), on("R")}))) == "R, R -> R");
}

TEST_CASE("in-place operators keep the layout of the written tensor") {
  const std::vector<int64_t> mesh = {4};
  auto plan = propagate(make("mul_", {spec(mesh, {8, 8}, "S(0)"), spec(mesh, {8, 8}, "R")}));
  CHECK(decision(*plan) == "S(0), S(0) -> S(0); 1: local");
  CHECK(plan->outputs[0] == plan->given[0]);
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
  CHECK(plan->outputs[0] == plan->given[2]);
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
