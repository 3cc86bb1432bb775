// Properties of redistribution over random meshes, shapes and layouts.
//
// Values are small integers in float64, so that sums are exact. Which elements a rank holds is asked of local_layout().

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "mesh/scope.h"
#include "placement/geometry.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

constexpr int kCases = 2000;

template <typename Property>
bool holds(const std::string& id, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;  // of RC_PARAMS, which rc::check() reads too
  params.maxSuccess = std::max(params.maxSuccess, kCases);
  rc::detail::TestMetadata metadata;
  metadata.id = id;
  const rc::detail::TestResult result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  rc::detail::SuccessResult success;
  if (result.match(success)) return success.numSuccess >= kCases;
  std::ostringstream os;
  rc::detail::printResultMessage(result, os);
  UNSCOPED_INFO(os.str());
  return false;
}

// In [low, high], all equally likely from the first case on; shrinks to `low`.
int64_t draw(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

Placement draw_placement(int64_t ndim) {
  switch (draw(0, ndim == 0 ? 1 : 3)) {
    case 1:
      return Partial();
    case 2:
      return Shard(draw(0, ndim - 1));
    case 3: {
      const int64_t dim = draw(0, ndim - 1);
      return StridedShard(dim, draw(1, 4));
    }
    default:
      return Replicate();
  }
}

struct Case {
  std::vector<int64_t> mesh_shape;
  std::vector<int64_t> sizes;
  Placements from, to;

  Case() {
    int64_t ranks = 1;
    for (int64_t m = draw(1, 3); m > 0; --m) {
      mesh_shape.push_back(draw(1, std::min<int64_t>(4, 12 / ranks)));
      ranks *= mesh_shape.back();
    }
    for (int64_t d = draw(0, 3); d > 0; --d) sizes.push_back(draw(0, 7));
    for (size_t m = 0; m < mesh_shape.size(); ++m) {
      from.push_back(draw_placement(ndim()));
      to.push_back(draw_placement(ndim()));
    }
    RC_LOG() << "mesh [" << absl::StrJoin(mesh_shape, ", ") << "], tensor [" << absl::StrJoin(sizes, ", ") << "], "
             << from << " -> " << to << std::endl;
  }

  int64_t ndim() const { return static_cast<int64_t>(sizes.size()); }

  DeviceMesh mesh() const {
    static auto& worlds = *new std::map<int64_t, World>;
    World& world = worlds[size()];
    if (!world.defined()) world = World::local(size());
    return DeviceMesh(world, mesh_shape);
  }

  DeviceMesh abstract_mesh() const { return DeviceMesh(World::abstract(size()), mesh_shape); }

  // 1, 2, 3, ...
  at::Tensor full() const {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return (at::arange(n, at::TensorOptions().dtype(at::kDouble)) + 1).reshape(sizes);
  }

  // full() in the layout `from`.
  at::Tensor source() const {
    std::vector<at::Tensor> locals;
    const DeviceMesh on = mesh();
    for (size_t i = 0; i < on.local_ranks().size(); ++i) {
      const auto at = on.local_coordinate(static_cast<int64_t>(i));
      locals.push_back(addend(part(from, at), at));
    }
    return from_local(locals, on, from, {.shape = sizes, .grad_placements = {}});
  }

  // The part of full() at a coordinate; Partial counts as Replicate.
  at::Tensor part(const Placements& placements, absl::Span<const int64_t> at) const {
    at::Tensor t = full();
    const LocalLayout layout = local_layout(sizes, mesh_shape, placements, at);
    for (int64_t d = 0; d < ndim(); ++d) {
      std::vector<int64_t> indices;
      for (const Run& run : layout.dims[d]) {
        for (int64_t k = 0; k < run.size; ++k) indices.push_back(run.begin + k);
      }
      t = t.index_select(d, at::tensor(indices, at::TensorOptions().dtype(at::kLong)));
    }
    return t;
  }

 private:
  int64_t size() const {
    int64_t n = 1;
    for (int64_t s : mesh_shape) n *= s;
    return n;
  }

  // Of n addends that sum to t: the k-th is t (k + 1), but for the last, which makes up for the others.
  at::Tensor addend(const at::Tensor& t, absl::Span<const int64_t> at) const {
    int64_t n = 1, k = 0;
    for (size_t m = 0; m < from.size(); ++m) {
      if (!from[m].is_partial()) continue;
      n *= mesh_shape[m];
      k = k * mesh_shape[m] + at[m];
    }
    return k + 1 < n ? t * (k + 1) : t * (1 - n * (n - 1) / 2);
  }
};

struct Recorder : CommListener {
  int64_t events = 0, bytes = 0;
  void on_comm(const CommEvent& event, bool before) override {
    if (before) return;
    ++events;
    bytes += event.bytes;
  }
};

TEST_CASE("random redistributions put every element where the layout says") {
  REQUIRE(holds("locals", [] {
    const Case c;
    const at::Tensor y = redistribute(c.source(), c.to);
    const DTensor handle(y);
    const DeviceMesh mesh = c.mesh();
    RC_ASSERT(handle.placements() == c.to);
    // Ranks that differ in Partial mesh dims alone hold the addends of one part.
    std::map<std::vector<int64_t>, at::Tensor> sums;
    for (int64_t i = 0; i < static_cast<int64_t>(mesh.local_ranks().size()); ++i) {
      std::vector<int64_t> at(mesh.local_coordinate(i).begin(), mesh.local_coordinate(i).end());
      const at::Tensor local = handle.local(i);
      RC_ASSERT(local.sizes() == c.part(c.to, at).sizes());
      for (size_t m = 0; m < at.size(); ++m) {
        if (c.to[m].is_partial()) at[m] = 0;
      }
      at::Tensor& sum = sums[at];
      sum = sum.defined() ? sum + local : local;
    }
    for (const auto& [at, sum] : sums) RC_ASSERT(at::equal(sum, c.part(c.to, at)));
  }));
}

TEST_CASE("random layouts need no plan to stay what they are") {
  REQUIRE(holds("identity", [] {
    const Case c;
    const at::Tensor x = c.source();
    const RedistributePlan plan = plan_of(x, c.from);
    RC_ASSERT(plan.steps.empty());
    RC_ASSERT(plan.bytes == 0);
    RC_ASSERT(redistribute(x, c.from).is_same(x));
  }));
}

TEST_CASE("random redistributions communicate what their plan says, as in an abstract world") {
  REQUIRE(holds("plan", [] {
    const Case c;
    const at::Tensor x = c.source();
    const RedistributePlan plan = plan_of(x, c.to);
    Recorder seen;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&seen); });
      redistribute(x, c.to);
    }
    RC_ASSERT(seen.events == plan.num_collectives());
    RC_ASSERT(seen.bytes == plan.bytes);
    const DeviceMesh nobody = c.abstract_mesh();
    const at::Tensor same = zeros(c.sizes, nobody, c.from, {.dtype = at::kDouble});
    RC_ASSERT(plan_of(same, c.to).explain(nobody) == plan.explain(c.mesh()));
  }));
}

TEST_CASE("random round trips change nothing") {
  REQUIRE(holds("round trip", [] {
    const Case c;
    const at::Tensor back = redistribute(redistribute(c.source(), c.to), c.from);
    RC_ASSERT(DTensor(back).placements() == c.from);
    RC_ASSERT(at::equal(full_tensor(back), c.full()));
  }));
}

}  // namespace
}  // namespace dtensor
