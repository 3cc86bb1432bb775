#include "dtensor/redistribution/internal/executor.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "comm/comm_work.h"
#include "comm/scope.h"
#include "mesh/memory_meter.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_planner.h"
#include "tests/dtensor/layout_oracle.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/part_order.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

const CommCause kCause{"aten::mm", "mat2", "layers.0", true};

// The expected log.
std::string text_of(const RedistributePlan& plan) {
  EventLog expected;
  const DeviceMesh& mesh = plan.from.mesh();
  for (const RedistributeStep& step : plan.steps) {
    if (step.is_local()) continue;
    CommEvent& e = expected.events.emplace_back();
    e.collective = step.collective();
    e.cause = kCause;
    e.mesh_dims = mesh.group(step.dims).name;
    e.group_size = mesh.group(step.dims).size;
    e.bytes = step.bytes;
    e.dtype = plan.tensor.dtype;
  }
  return expected.text();
}

EventLog run_logged(const RedistributePlan& plan, RankTensors& locals) {
  EventLog log;
  ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
  locals = run_plan(plan, std::move(locals), kCause);
  return log;
}

// The fault of the redistribution from `from` to `to`; "" if none.
std::string check_pair(const at::Tensor& full, const RankTensors& source, const DeviceMesh& mesh, const SpecPtr& from,
                       const Placements& to) {
  const RedistributePlan plan = plan_redistribution(mesh, from->meta(), from->placements(), to);
  RankTensors locals = source;
  RankTensors copies;
  for (const at::Tensor& t : source) copies.push_back(t.clone());
  const EventLog log = run_logged(plan, locals);
  const std::string events = log.text();
  if (events != text_of(plan)) return "events are not those of the plan:\n" + events;
  for (const CommEvent& e : log.events) {
    if (e.received_bytes != e.bytes) return absl::StrCat(e.received_bytes, " bytes arrived, planned were ", e.bytes);
  }

  const Placements reduced = without_partials(to);
  const SpecPtr target = from->with_placements(to);
  for (size_t i = 0; i < locals.size(); ++i) {
    const std::string rank = absl::StrCat("rank ", i, ": ");
    const auto at = mesh.local_coordinate(static_cast<int64_t>(i));
    if (!at::equal(source[i], copies[i])) return rank + "the input was changed";
    if (!testing::is_in_order(locals[i], *target)) return rank + "in another order in memory";
    const Shape sizes = target->local_shape(static_cast<int64_t>(i));
    if (locals[i].sizes() != at::IntArrayRef(sizes.data(), sizes.size())) return rank + "wrong shape";
    for (size_t j = 0; j < source.size() && !plan.steps.empty(); ++j) {
      if (locals[i].is_alias_of(source[j])) return rank + "aliases an input";
    }
    for (size_t j = 0; j < i && !plan.steps.empty(); ++j) {
      if (locals[i].is_alias_of(locals[j])) return rank + "aliases another output";
    }
    const at::Tensor value = value_at(locals, mesh, to, Mesh(at.begin(), at.end()));
    if (!at::equal(value, local_of(full, mesh, reduced, at))) return rank + "wrong value";
  }

  // Again, with the plan's cached schedule.
  const RankTensors again = run_plan(plan, source, kCause);
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!at::equal(again[i], locals[i])) return absl::StrCat("rank ", i, ": another value the second time");
  }

  // For an operator that reads the results.
  const RankTensors read = run_plan_to_read(plan, source, kCause);
  for (size_t i = 0; i < locals.size(); ++i) {
    const std::string rank = absl::StrCat("rank ", i, ": ");
    if (!at::equal(read[i], locals[i])) return rank + "another value to read";
    if (read[i].scalar_type() != locals[i].scalar_type()) return rank + "another dtype to read";
    if (!plan.steps.empty() && !testing::is_in_order(read[i], *target)) return rank + "in another order to read";
    if (!at::equal(source[i], copies[i])) return rank + "reading changed the input";
  }

  // The same plan and the same events in an abstract world.
  const PlanOptions same_cost{plan.cost, {}};
  const DeviceMesh nobody(World::abstract(mesh.size()), mesh.shape());
  const RedistributePlan same = plan_redistribution(nobody, from->meta(), from->placements(), to, same_cost);
  if (same.to_string() != plan.to_string() || same.bytes != plan.bytes || same.peak_bytes != plan.peak_bytes) {
    return "another plan in an abstract world: " + same.to_string();
  }
  RankTensors none;
  const EventLog dry = run_logged(same, none);
  if (dry.text() != events) return "other events in an abstract world";
  for (const CommEvent& e : dry.events) {
    if (e.received_bytes != -1) return "something arrived in an abstract world";
  }
  if (!none.empty()) return "tensors in an abstract world";

  // A process with one of many ranks: the shapes are right.
  const DeviceMesh alone(World::fake(mesh.size(), mesh.size() - 1), mesh.shape());
  RankTensors mine = {source.back()};
  const EventLog own = run_logged(plan_redistribution(alone, from->meta(), from->placements(), to, same_cost), mine);
  if (own.text() != events) return "other events alone";
  for (const CommEvent& e : own.events) {
    if (e.received_bytes < 0 || e.received_bytes > e.bytes)
      return absl::StrCat(e.received_bytes, " bytes arrived alone");
  }
  if (mine.size() != 1 || mine[0].sizes() != locals.back().sizes()) return "wrong shape alone";
  return "";
}

std::vector<Placements> layouts(const Mesh& mesh, int64_t tensor_ndim, const std::vector<Placement>& choices) {
  std::vector<Placements> all(1);
  for (size_t m = 0; m < mesh.size(); ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : all) {
      for (const Placement& p : choices) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = longer;
  }
  std::vector<Placements> valid;
  for (const Placements& p : all) {
    if (normalize_placements(p, tensor_ndim).ok()) valid.push_back(p);
  }
  return valid;
}

// Every pair of `choices`^mesh dims, or a `sample` of them.
size_t check_pairs(const Mesh& shape, at::IntArrayRef sizes, const std::vector<Placement>& choices, size_t sample = 0) {
  const DeviceMesh mesh = local_mesh(shape);
  const at::Tensor full = numbers(sizes);
  const auto all = layouts(shape, full.dim(), choices);
  std::vector<RankTensors> sources;
  std::vector<SpecPtr> specs;
  for (const Placements& p : all) {
    sources.push_back(locals_of(full, mesh, p));
    specs.push_back(Spec::get(mesh, p, absl::MakeConstSpan(sizes.data(), sizes.size()), full.scalar_type()));
  }
  size_t checked = 0;
  const auto check = [&](size_t i, size_t j) {
    std::string wrong;
    try {
      wrong = check_pair(full, sources[i], mesh, specs[i], all[j]);
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    ++checked;
    if (!wrong.empty()) {
      FAIL_CHECK(specs[i]->to_string() << ": "
                                       << plan_redistribution(mesh, specs[i]->meta(), all[i], all[j]).to_string()
                                       << ": " << wrong);
    }
  };
  std::mt19937 random(7);
  for (size_t k = 0; k < sample; ++k) {
    const size_t i = random() % all.size();
    check(i, random() % all.size());
  }
  for (size_t i = 0; i < all.size() && sample == 0; ++i) {
    for (size_t j = 0; j < all.size(); ++j) check(i, j);
  }
  return checked;
}

const std::vector<Placement> kChoices = {
    Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial(), Partial(ReduceOp::kAvg), Partial(ReduceOp::kMax)};

TEST_CASE("executor: every pair of layouts on one mesh dim") {
  std::vector<Placement> choices = kChoices;
  choices.insert(choices.end(), {StridedShard(1, 3), StridedShard(0, 1), Partial(ReduceOp::kMin),
                                 Partial(ReduceOp::kProduct), Partial(ReduceOp::kNorm2), MaskPartial({10, 5}, 0)});
  for (const Mesh& mesh : {Mesh{4}, Mesh{3}, Mesh{1}}) {
    for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4, 6}, {1, 3}, {0, 3}, {8, 12}}) {
      CHECK(check_pairs(mesh, sizes, choices) == choices.size() * choices.size());
    }
  }
}

TEST_CASE("executor: every pair of layouts on two mesh dims, or a quarter of them") {
  for (const Mesh& mesh : {Mesh{2, 2}, Mesh{2, 3}, Mesh{1, 4}}) {
    for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4, 6}, {1, 3}, {0, 3}}) {
      if (testing::long_tests())
        CHECK(check_pairs(mesh, sizes, kChoices) == 45 * 45);
      else
        CHECK(check_pairs(mesh, sizes, kChoices, 500) == 500);
    }
  }
}

TEST_CASE("executor: pairs of layouts on three mesh dims and of three tensor dims") {
  CHECK(check_pairs({2, 2, 2}, {9, 5}, kChoices, 500) == 500);
  CHECK(check_pairs({2, 3}, {5, 4, 3}, {Replicate(), Shard(0), Shard(2), StridedShard(1, 2), Partial()}, 500) == 500);
}

TEST_CASE("executor: tensors without dims are replicated and reduced") {
  CHECK(check_pairs({2, 2}, {}, {Replicate(), Partial(), Partial(ReduceOp::kMax)}) == 49);
}

TEST_CASE("executor: every pair of layouts for every dtype") {
  const DeviceMesh mesh = local_mesh({2, 2});
  const auto all = layouts(mesh.shape(), 2, {Replicate(), Shard(0), Shard(1), StridedShard(0, 2)});
  for (const auto dtype : {at::kBool, at::kByte, at::kLong, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    const at::Tensor full = numbers({5, 6}).remainder(3).to(dtype);
    for (const Placements& from : all) {
      for (const Placements& to : all) {
        const SpecPtr spec = Spec::get(mesh, from, {5, 6}, dtype);
        CHECK(check_pair(full, locals_of(full, mesh, from), mesh, spec, to) == "");
      }
    }
    // Replicate -> Partial -> Shard, without arithmetic by the oracle.
    const SpecPtr spec = Spec::get(mesh, {Replicate(), Replicate()}, {5, 6}, dtype);
    const SpecPtr partial = spec->with_placements({Partial(), Partial()});
    RankTensors locals =
        run_plan(*cached_plan(spec, partial->placements()), locals_of(full, mesh, spec->placements()), kCause);
    CHECK(at::equal(locals[0], full));
    CHECK_FALSE(at::equal(locals[3], full));
    const Placements target = {Shard(0), Shard(1)};
    locals = run_plan(*cached_plan(partial, target), locals, kCause);
    for (int64_t i = 0; i < 4; ++i) CHECK(at::equal(locals[i], local_of(full, mesh, target, mesh.local_coordinate(i))));
  }
}

TEST_CASE("executor: an average of integers is rejected") {
  const DeviceMesh mesh = local_mesh({2});
  const SpecPtr spec = Spec::get(mesh, {Partial(ReduceOp::kAvg)}, {4}, at::kLong);
  const at::Tensor t = numbers({4}, at::kLong);
  CHECK_THROWS_AS(run_plan(*cached_plan(spec, {Replicate()}), {t, t}, kCause), c10::Error);
}

TEST_CASE("executor: local tensors need not be contiguous") {
  const DeviceMesh mesh = local_mesh({2, 2});
  const at::Tensor full = numbers({7, 5});
  const auto all = layouts(mesh.shape(), 2, {Replicate(), Shard(0), StridedShard(1, 2), Partial()});
  for (const Placements& from : all) {
    for (const Placements& to : all) {
      if (from == to) continue;
      RankTensors locals = locals_of(full, mesh, from);
      for (at::Tensor& t : locals) t = at::cat({t, t}, 0).t().contiguous().t().narrow(0, t.size(0), t.size(0));
      const SpecPtr spec = Spec::get(mesh, from, {7, 5}, at::kDouble);
      CHECK(check_pair(full, locals, mesh, spec, to) == "");
    }
  }
}

TEST_CASE("executor: results have the order of dims in memory that the tensor's strides have") {
  const DeviceMesh mesh = local_mesh({2, 2});
  const at::Tensor full = numbers({4, 3, 5}).permute({1, 2, 0}).contiguous().permute({2, 0, 1});
  const SpecPtr spec =
      Spec::get(mesh, {Replicate(), Replicate()},
                TensorMeta{{4, 3, 5}, Shape(full.strides().begin(), full.strides().end()), at::kDouble});
  const auto all = layouts(mesh.shape(), 3, {Replicate(), Shard(0), Shard(2), StridedShard(1, 2), Partial()});
  for (const Placements& from : all) {
    const SpecPtr source = spec->with_placements(from);
    RankTensors locals = locals_of(full, mesh, from);
    for (at::Tensor& t : locals) t = t.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
    for (const Placements& to : all) {
      INFO(to_string(from) << " to " << to_string(to));
      if (from == to) continue;
      CHECK(check_pair(full, locals, mesh, source, to) == "");
      const auto plan = cached_plan(source, to);
      if (plan->steps.empty()) continue;
      const SpecPtr target = source->with_placements(to);
      RankTensors row_major = locals;  // as from_local() may get them
      for (at::Tensor& t : row_major) t = t.contiguous();
      CHECK(testing::is_in_order(run_plan(*plan, row_major, kCause)[1], *target));
      std::shared_ptr<CommWork> work;
      const RankTensors begun = begin_plan(plan, row_major, kCause, work);
      if (work) work->wait();
      const RankTensors together = run_plans(batch_plans({plan, plan}, {}), {locals, row_major}, kCause)[1];
      for (size_t i = 0; i < locals.size(); ++i) {
        CHECK(testing::is_in_order(begun[i], *target));
        CHECK(testing::is_in_order(together[i], *target));
        CHECK(at::equal(begun[i], together[i]));
      }
    }
  }
}

TEST_CASE("executor: a plan without steps returns its inputs themselves") {
  const DeviceMesh mesh = local_mesh({1, 2});
  const SpecPtr spec = Spec::get(mesh, {Partial(), Shard(0)}, {4}, at::kDouble);
  const RankTensors locals = locals_of(numbers({4}), mesh, spec->placements());
  const RankTensors same = run_plan(*cached_plan(spec, {Replicate(), Shard(0)}), locals, kCause);
  CHECK(same[0].is_same(locals[0]));
  CHECK(same[1].is_same(locals[1]));
}

TEST_CASE("executor: to be read, a replicated part becomes an addend of a Partial without a copy") {
  const DeviceMesh mesh(World::local(2), {2});
  for (const Placement& partial : {Partial(), Partial(ReduceOp::kNorm2)}) {
    const auto plan = cached_plan(Spec::get(mesh, {Replicate()}, {2, 3}, at::kDouble), {partial});
    const RankTensors source = {at::ones({2, 3}, at::kDouble), at::ones({2, 3}, at::kDouble)};
    const RankTensors read = run_plan_to_read(*plan, source, {});
    CHECK(read[0].is_same(source[0]));
    CHECK(at::equal(read[1], at::zeros({2, 3}, at::kDouble)));
    CHECK(at::equal(source[1], at::ones({2, 3}, at::kDouble)));
    const at::Tensor t = at::ones({3, 2}, at::kDouble).t();
    CHECK(run_plan_to_read(*plan, {t, t}, {})[0].is_contiguous());
    const auto of_transposed =
        cached_plan(Spec::get(mesh, {Replicate()}, TensorMeta{{2, 3}, {1, 2}, at::kDouble}), {partial});
    CHECK(run_plan_to_read(*of_transposed, {t, t}, {})[0].t().is_contiguous());
    CHECK(run_plan_to_read(*of_transposed, {t, t}, {})[1].t().is_contiguous());
  }
}

TEST_CASE("executor: steps count into the world's peak memory, the input does not") {
  const DeviceMesh mesh = local_mesh({4});
  const SpecPtr spec = Spec::get(mesh, {Shard(0)}, {8, 8}, at::kFloat);
  const auto plan = cached_plan(spec, {Replicate()});
  const RankTensors locals = locals_of(numbers({8, 8}, at::kFloat), mesh, spec->placements());
  const MemoryHold input(mesh.world().memory(), spec->max_local_bytes());
  run_plan(*plan, locals, kCause);
  CHECK(mesh.world().memory().peak_bytes() == plan->peak_bytes);
  CHECK(mesh.world().memory().live_bytes() == 64);
}

TEST_CASE("executor: wrong number, shape or dtype of local tensors is an error before anything is sent") {
  const DeviceMesh mesh = local_mesh({2});
  const auto plan = cached_plan(Spec::get(mesh, {Shard(0)}, {4}, at::kDouble), {Replicate()});
  const at::Tensor two = numbers({2}), three = numbers({3}), floats = numbers({2}, at::kFloat);
  EventLog log;
  ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
  CHECK_THROWS_WITH(run_plan(*plan, {two}, kCause),
                    Contains("1 local tensor(s) for 2 owned rank(s) of S(0) @ mesh(dim0=2)"));
  CHECK_THROWS_WITH(run_plan(*plan, {two, three}, kCause),
                    Contains("rank 1 passes {f64[3]}, but S(0) @ mesh(dim0=2) of f64[4] puts {f64[2]}"));
  CHECK_THROWS_WITH(run_plan(*plan, {floats, two}, kCause), Contains("rank 0 passes {f32[2]}"));
  CHECK_THROWS_WITH(run_plan(*plan, {two, at::Tensor()}, kCause), Contains("rank 1 passes {undefined}"));
  CHECK(log.events.empty());
}

}  // namespace
}  // namespace dtensor
