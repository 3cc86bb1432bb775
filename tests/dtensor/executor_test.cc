#include "dtensor/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/memory_meter.h"
#include "mesh/scope.h"
#include "propagation/redistribute_planner.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Mesh = std::vector<int64_t>;
using Coordinate = absl::Span<const int64_t>;

// The oracle cuts and reduces tensors with at::chunk, at::cat and arithmetic; it knows nothing of layouts.

at::Tensor chunk_of(const at::Tensor& t, int64_t n, int64_t dim, int64_t i) {
  const auto chunks = t.chunk(n, dim);
  return i < static_cast<int64_t>(chunks.size()) ? chunks[i] : t.narrow(dim, t.size(dim), 0);
}

at::Tensor piece_of(const at::Tensor& t, const Placement& p, int64_t n, int64_t i) {
  if (p.is_shard()) return chunk_of(t, n, p.dim(), i);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& piece : t.chunk(p.split_factor(), p.dim())) parts.push_back(chunk_of(piece, n, p.dim(), i));
  return at::cat(parts, p.dim());
}

// The i-th of n addends of t, all different; exact for integers in float64.
at::Tensor addend_of(const at::Tensor& t, ReduceOp op, int64_t n, int64_t i) {
  switch (op) {
    case ReduceOp::kSum:
      return i + 1 < n ? t * (i + 2) : t - t * ((n - 1) * (n + 2) / 2);
    case ReduceOp::kAvg:
      return t + (2 * i - (n - 1));
    case ReduceOp::kMax:
      return at::where((t + i).remainder(n) == 0, t, t - (1 + i));
    case ReduceOp::kMin:
      return at::where((t + i).remainder(n) == 0, t, t + (1 + i));
    case ReduceOp::kProduct:
      return n == 1 ? t : i == 0 ? t * 4 : at::full_like(t, i == 1 ? 0.25 : 1.0);
  }
  return t;
}

at::Tensor reduce(const std::vector<at::Tensor>& addends, ReduceOp op) {
  at::Tensor r = addends[0];
  for (size_t i = 1; i < addends.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        r = r + addends[i];
        break;
      case ReduceOp::kMax:
        r = at::maximum(r, addends[i]);
        break;
      case ReduceOp::kMin:
        r = at::minimum(r, addends[i]);
        break;
      case ReduceOp::kProduct:
        r = r * addends[i];
        break;
    }
  }
  return op == ReduceOp::kAvg ? r / static_cast<int64_t>(addends.size()) : r;
}

at::Tensor local_of(at::Tensor t, const DeviceMesh& mesh, const Placements& placements, Coordinate at) {
  for (size_t m = 0; m < placements.size(); ++m) {
    const Placement& p = placements[m];
    if (p.is_sharded()) t = piece_of(t, p, mesh.shape()[m], at[m]);
    if (p.is_partial()) t = addend_of(t, p.reduce_op(), mesh.shape()[m], at[m]);
  }
  return t.contiguous();
}

RankTensors locals_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  RankTensors locals;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
    locals.push_back(local_of(full, mesh, placements, mesh.local_coordinate(static_cast<int64_t>(i))));
  }
  return locals;
}

// The value that the ranks that differ from `at` only in Partial mesh dims hold together.
at::Tensor value_at(const RankTensors& locals, const DeviceMesh& mesh, const Placements& placements, Mesh at,
                    size_t m = 0) {
  while (m < placements.size() && !placements[m].is_partial()) ++m;
  if (m == placements.size()) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index = index * mesh.shape()[d] + at[d];
    return locals[index];
  }
  std::vector<at::Tensor> addends;
  for (at[m] = 0; at[m] < mesh.shape()[m]; ++at[m]) addends.push_back(value_at(locals, mesh, placements, at, m + 1));
  return reduce(addends, placements[m].reduce_op());
}

struct Recorder : CommListener {
  std::vector<CommEvent> events;
  void on_comm(const CommEvent& event, bool before) override {
    if (!before) events.push_back(event);
  }
  // Everything but the time.
  std::string text() const {
    std::string text;
    for (const CommEvent& e : events) {
      absl::StrAppend(&text, std::string(to_string(e.collective)), "(", e.mesh_dims, ") ", e.group_size, " ", e.bytes,
                      " ", static_cast<int>(e.dtype), " ", e.cause.op, " ", e.cause.argument, " ", e.cause.implicit,
                      "\n");
    }
    return text;
  }
};

const CommCause kCause{"aten::mm", "mat2", "layers.0", true};

std::string text_of(const RedistributePlan& plan, const DeviceMesh& mesh, c10::ScalarType dtype) {
  Recorder expected;
  for (const RedistributeStep& step : plan.steps) {
    if (step.is_local()) continue;
    CommEvent& e = expected.events.emplace_back();
    e.collective = step.collective();
    e.cause = kCause;
    e.mesh_dims = mesh.group(step.dims).name;
    e.group_size = mesh.group(step.dims).size;
    e.bytes = step.bytes;
    e.dtype = dtype;
  }
  return expected.text();
}

std::string run_recorded(const RedistributePlan& plan, const Spec& spec, RankTensors& locals) {
  Recorder recorder;
  ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
  locals = run_plan(plan, spec, std::move(locals), kCause);
  return recorder.text();
}

// What is wrong with the way from `from` to `to`; "" if nothing.
std::string check_pair(const at::Tensor& full, const RankTensors& source, const DeviceMesh& mesh, const SpecPtr& from,
                       const Placements& to) {
  const RedistributePlan plan = plan_redistribution(mesh, from->meta(), from->placements(), to);
  RankTensors locals = source;
  RankTensors copies;
  for (const at::Tensor& t : source) copies.push_back(t.clone());
  const std::string events = run_recorded(plan, *from, locals);
  if (events != text_of(plan, mesh, from->dtype())) return "events are not those of the plan:\n" + events;

  Placements reduced = to;
  for (Placement& p : reduced) p = p.is_partial() ? Replicate() : p;
  const SpecPtr target = from->with_placements(to);
  for (size_t i = 0; i < locals.size(); ++i) {
    const std::string rank = absl::StrCat("rank ", i, ": ");
    const auto at = mesh.local_coordinate(static_cast<int64_t>(i));
    if (!at::equal(source[i], copies[i])) return rank + "the input was changed";
    if (!locals[i].is_contiguous()) return rank + "not contiguous";
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

  // The same plan and the same events where nobody has data.
  const DeviceMesh nobody(World::abstract(mesh.size()), mesh.shape());
  const SpecPtr abstract = Spec::get(nobody, from->placements(), from->meta());
  const RedistributePlan same = plan_redistribution(nobody, abstract->meta(), abstract->placements(), to);
  if (same.explain(nobody) != plan.explain(mesh) || same.bytes != plan.bytes)
    return "another plan in an abstract world";
  RankTensors none;
  if (run_recorded(same, *abstract, none) != events) return "other events in an abstract world";
  if (!none.empty()) return "tensors in an abstract world";

  // One rank of many: the shapes are right.
  const DeviceMesh alone(World::fake(mesh.size(), mesh.size() - 1), mesh.shape());
  RankTensors mine = {source.back()};
  if (run_recorded(same, *Spec::get(alone, from->placements(), from->meta()), mine) != events)
    return "other events alone";
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

DeviceMesh local_mesh(const Mesh& shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  return DeviceMesh(World::local(size), shape);
}

at::Tensor numbers(at::IntArrayRef sizes, c10::ScalarType dtype = at::kDouble) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return (at::arange(n, at::TensorOptions().dtype(at::kDouble)) + 1).reshape(sizes).to(dtype);
}

// Every pair of `choices`^mesh dims, or `sample` of them.
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
                                       << plan_redistribution(mesh, specs[i]->meta(), all[i], all[j]).explain(mesh)
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

TEST_CASE("every pair of layouts on one mesh dim") {
  std::vector<Placement> choices = kChoices;
  choices.insert(choices.end(), {StridedShard(1, 3), StridedShard(0, 1), Partial(ReduceOp::kMin),
                                 Partial(ReduceOp::kProduct), MaskPartial({10, 5}, 0)});
  for (const Mesh& mesh : {Mesh{4}, Mesh{3}, Mesh{1}}) {
    for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4, 6}, {1, 3}, {0, 3}, {8, 12}}) {
      CHECK(check_pairs(mesh, sizes, choices) == choices.size() * choices.size());
    }
  }
}

TEST_CASE("every pair of layouts on two mesh dims") {
  for (const Mesh& mesh : {Mesh{2, 2}, Mesh{2, 3}, Mesh{1, 4}}) {
    for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4, 6}, {1, 3}, {0, 3}}) {
      CHECK(check_pairs(mesh, sizes, kChoices) == 45 * 45);
    }
  }
}

TEST_CASE("pairs of layouts on three mesh dims and of three tensor dims") {
  CHECK(check_pairs({2, 2, 2}, {9, 5}, kChoices, 500) == 500);
  CHECK(check_pairs({2, 3}, {5, 4, 3}, {Replicate(), Shard(0), Shard(2), StridedShard(1, 2), Partial()}, 500) == 500);
}

TEST_CASE("tensors without dims are replicated and reduced") {
  CHECK(check_pairs({2, 2}, {}, {Replicate(), Partial(), Partial(ReduceOp::kMax)}) == 49);
}

TEST_CASE("every dtype goes every way") {
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
    // Replicate -> Partial -> Shard, without arithmetic of the oracle's.
    const SpecPtr spec = Spec::get(mesh, {Replicate(), Replicate()}, {5, 6}, dtype);
    const SpecPtr partial = spec->with_placements({Partial(), Partial()});
    RankTensors locals =
        run_plan(*cached_plan(spec, partial->placements()), *spec, locals_of(full, mesh, spec->placements()), kCause);
    CHECK(at::equal(locals[0], full));
    CHECK_FALSE(at::equal(locals[3], full));
    const Placements target = {Shard(0), Shard(1)};
    locals = run_plan(*cached_plan(partial, target), *partial, locals, kCause);
    for (int64_t i = 0; i < 4; ++i) CHECK(at::equal(locals[i], local_of(full, mesh, target, mesh.local_coordinate(i))));
  }
}

TEST_CASE("an average of integers is refused") {
  const DeviceMesh mesh = local_mesh({2});
  const SpecPtr spec = Spec::get(mesh, {Partial(ReduceOp::kAvg)}, {4}, at::kLong);
  const at::Tensor t = numbers({4}, at::kLong);
  CHECK_THROWS_AS(run_plan(*cached_plan(spec, {Replicate()}), *spec, {t, t}, kCause), c10::Error);
}

TEST_CASE("locals need not be contiguous") {
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

TEST_CASE("a plan without steps gives the very tensors back") {
  const DeviceMesh mesh = local_mesh({1, 2});
  const SpecPtr spec = Spec::get(mesh, {Partial(), Shard(0)}, {4}, at::kDouble);
  const RankTensors locals = locals_of(numbers({4}), mesh, spec->placements());
  const RankTensors same = run_plan(*cached_plan(spec, {Replicate(), Shard(0)}), *spec, locals, kCause);
  CHECK(same[0].is_same(locals[0]));
  CHECK(same[1].is_same(locals[1]));
}

TEST_CASE("steps count into the world's peak memory, the input aside") {
  const DeviceMesh mesh = local_mesh({4});
  const SpecPtr spec = Spec::get(mesh, {Shard(0)}, {8, 8}, at::kFloat);
  const auto plan = cached_plan(spec, {Replicate()});
  const RankTensors locals = locals_of(numbers({8, 8}, at::kFloat), mesh, spec->placements());
  const MemoryHold input(mesh.world().memory(), spec->max_local_bytes());
  run_plan(*plan, *spec, locals, kCause);
  CHECK(mesh.world().memory().peak_bytes() == plan->peak_bytes);
  CHECK(mesh.world().memory().live_bytes() == 64);
}

TEST_CASE("a wrong number of locals is an error before anything is sent") {
  const DeviceMesh mesh = local_mesh({2});
  const SpecPtr spec = Spec::get(mesh, {Shard(0)}, {4}, at::kDouble);
  RankTensors locals = {numbers({2})};
  CHECK_THROWS_AS(run_plan(*cached_plan(spec, {Replicate()}), *spec, locals, kCause), c10::Error);
}

}  // namespace
}  // namespace dtensor
