// Costs of strategies: what propagate() chooses, compared with costs computed here.
#include <ATen/ATen.h>

#include <algorithm>
#include <random>

#include "placement/parse_placements.h"
#include "plan/plan_many.h"
#include "plan/redistribute_planner.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"
#include "propagation/strategy_search.h"
#include "tests/propagation/propagate_ops.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using namespace propagate_ops;
using Catch::Contains;

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
  return CostModel().collective(kind, GroupExtent::of_links(n, crosses_nodes(mesh, d)),
                                spec.max_local_bytes() * passes * (n - 1) / n);
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
    seconds += CostModel().collective(Collective::kAllGather, GroupExtent::of_links(n, crosses_nodes(made->mesh(), d)),
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

TEST_CASE("a Partial stays Partial in a result of up to three times its size") {
  const auto chosen = [](int64_t rows_of_result) {
    const std::vector<int64_t> sizes = {rows_of_result, 1024};
    return decision(
        *propagate(OpCall::make("aten::slice_backward", {spec({4}, {4096, 1024}, "P")}, {sizes, 0, 0, 4096, 1})));
  };
  CHECK(chosen(4096) == "P(sum) -> P(sum)");
  CHECK(chosen(11'000) == "P(sum) -> P(sum)");
  CHECK_THAT(chosen(14'000), Contains("R -> R"));
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
  slow.flops_by_dtype[at::kFloat] = 1e14;  // only products of other dtypes are slow
  set_cost_model(mesh.world(), slow);
  CHECK(decision(*propagate(make("mm", {on("P"), on("R")}))) == "P(sum), R -> P(sum)");
  slow.flops_by_dtype = {{at::kDouble, 1e14}};
  set_cost_model(mesh.world(), slow);
  // With fewer rows than ranks some ranks would have none.
  const SpecPtr few = Spec::get(mesh, {Partial()}, {4, 64}, at::kFloat),
                one = Spec::get(mesh, {Partial()}, {1, 4}, at::kFloat);
  CHECK_THAT(decision(*propagate(make("mm", {few, on("R")}))), !Catch::StartsWith("S(0)"));
  const SpecPtr column = Spec::get(mesh, {Partial()}, {4, 1}, at::kFloat);
  CHECK(decision(*propagate(make("mm", {one, column}))) == "P(sum), R -> P(sum); 1: 28 B");
  CHECK(decision(*propagate(make("mm", {on("R"), on("R")}))) == "R, R -> R");
}

}  // namespace
}  // namespace dtensor
