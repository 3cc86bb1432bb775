// Random tensors, meshes and layouts: shifts, padding, slices and windows by halos equal plain ATen, forward and
// backward, and receive as many bytes as planned.
#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/replication_pad2d.h>

#include <map>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/property.h"

namespace dtensor::testing {
using namespace internal;

namespace {

// The planned bytes of every exchange are those of the rank that receives most; here all ranks are owned.
struct Planned : CommListener {
  void on_comm(const CommEvent& event, bool before) override {
    if (before || event.collective != Collective::kAllToAll) return;
    ++exchanges;
    if (event.bytes != event.received_bytes) ++wrong;
  }
  int64_t exchanges = 0, wrong = 0;
};

const DeviceMesh& random_mesh() {
  static auto* meshes = new std::map<std::vector<int64_t>, DeviceMesh>;
  std::vector<int64_t> shape;
  int64_t ranks = 1;
  for (int64_t m = draw(1, 3); m > 0; --m) {
    shape.push_back(draw(1, std::min<int64_t>(5, 12 / ranks)));
    ranks *= shape.back();
  }
  auto it = meshes->find(shape);
  if (it == meshes->end()) it = meshes->emplace(shape, DeviceMesh(World::local(ranks), shape)).first;
  return it->second;
}

// Mostly split along the last two dims; sometimes strided, or along others.
Placements random_placements(const DeviceMesh& mesh, int64_t ndim, bool strided) {
  Placements placements;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const int64_t kind = draw(0, 9), dim = kind < 7 ? ndim - 1 - draw(0, 1) : draw(0, ndim - 1);
    if (kind == 9) {
      placements.push_back(Replicate());
    } else if (kind == 8 && strided) {
      placements.push_back(StridedShard(dim, draw(2, 3)));
    } else {
      placements.push_back(Shard(dim));
    }
  }
  return placements;
}

using Op = std::function<at::Tensor(const at::Tensor&)>;

void agrees(const Op& op, std::vector<int64_t> sizes, bool strided) {
  const DeviceMesh& mesh = random_mesh();
  const Placements placements = random_placements(mesh, static_cast<int64_t>(sizes.size()), strided);
  RC_LOG() << c10::IntArrayRef(sizes) << " " << to_string(placements) << " on " << mesh.to_string() << "\n";
  const at::Tensor plain = at::randn(sizes, at::kDouble).requires_grad_();
  const at::Tensor split = lay_out(plain, mesh, placements).requires_grad_();
  Planned planned;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&planned); });
  const at::Tensor expected = op(plain), actual = op(split);
  RC_ASSERT(difference(actual.detach(), expected.detach()).value_or("") == "");
  const at::Tensor seed = at::randn(expected.sizes(), at::kDouble);
  const at::Tensor split_seed = lay_out(seed, mesh, without_partials(DTensor(actual).placements()));
  expected.backward(seed);
  actual.backward(split_seed);
  RC_ASSERT(difference(split.grad(), plain.grad()).value_or("") == "");
  RC_ASSERT(planned.wrong == 0);
}

std::vector<int64_t> random_sizes() { return {draw(1, 3), draw(1, 14), draw(1, 14)}; }

TEST_CASE("halo: random shifts", "[ops][halo]") {
  REQUIRE(holds("roll", 400, [] {
    const std::vector<int64_t> shifts = {draw(-20, 20), draw(-20, 20)};
    RC_LOG() << "roll " << c10::IntArrayRef(shifts) << "\n";
    agrees([&](const at::Tensor& t) { return t.roll(shifts, {1, 2}); }, random_sizes(), true);
  }));
  REQUIRE(holds("flip", 200, [] {
    const std::vector<int64_t> dims = draw(0, 1) == 0 ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 2};
    agrees([&](const at::Tensor& t) { return t.flip(dims); }, random_sizes(), true);
  }));
}

TEST_CASE("halo: random padding", "[ops][halo]") {
  REQUIRE(holds("constant_pad_nd", 400, [] {
    const auto sizes = random_sizes();
    std::vector<int64_t> pad;
    for (const int64_t d : {2, 1}) {  // at least one element is left
      pad.push_back(draw(-(sizes[d] - 1), 9));
      pad.push_back(draw(-(sizes[d] - 1 + std::min<int64_t>(0, pad.back())), 9));
    }
    RC_LOG() << "pad " << c10::IntArrayRef(pad) << "\n";
    agrees([&](const at::Tensor& t) { return at::constant_pad_nd(t, pad, 0.5); }, sizes, true);
  }));
  REQUIRE(holds("reflection_pad2d, replication_pad2d", 400, [] {
    const std::vector<int64_t> sizes = {draw(1, 3), draw(2, 14), draw(2, 14)};
    const bool reflects = draw(0, 1) == 0;
    std::vector<int64_t> pad;
    for (const int64_t d : {2, 2, 1, 1}) pad.push_back(draw(0, reflects ? sizes[d] - 1 : 9));
    RC_LOG() << (reflects ? "reflect " : "replicate ") << c10::IntArrayRef(pad) << "\n";
    const DeviceMesh mesh(World::local(6), {2, 3});
    const Placements placements = {Shard(1), Shard(2)};
    const at::Tensor plain = at::randn(sizes, at::kDouble).requires_grad_();
    const at::Tensor split = lay_out(plain, mesh, placements).requires_grad_();
    const auto op = [&](const at::Tensor& t) {
      return reflects ? at::reflection_pad2d(t, pad) : at::replication_pad2d(t, pad);
    };
    if (std::count(pad.begin(), pad.end(), 0) == 4) return;
    const at::Tensor expected = op(plain), actual = op(split);
    RC_ASSERT(difference(actual.detach(), expected.detach()).value_or("") == "");
    const at::Tensor seed = at::randn(expected.sizes(), at::kDouble);
    expected.backward(seed);
    actual.backward(lay_out(seed, mesh, placements));
    RC_ASSERT(difference(split.grad(), plain.grad()).value_or("") == "");
  }));
}

TEST_CASE("halo: random slices", "[ops][halo]") {
  REQUIRE(holds("slice", 500, [] {
    const auto sizes = random_sizes();
    std::vector<int64_t> bounds;
    for (const int64_t d : {1, 2}) {
      const int64_t start = draw(0, sizes[d] - 1);
      bounds.insert(bounds.end(), {start, draw(start + 1, sizes[d]), draw(1, 4)});
    }
    RC_LOG() << "slice " << c10::IntArrayRef(bounds) << "\n";
    agrees(
        [&](const at::Tensor& t) {
          return t.slice(1, bounds[0], bounds[1], bounds[2]).slice(2, bounds[3], bounds[4], bounds[5]) * 2;
        },
        sizes, true);
  }));
  REQUIRE(holds("select", 100, [] {
    const auto sizes = random_sizes();
    const int64_t index = draw(-sizes[1], sizes[1] - 1);
    agrees([&](const at::Tensor& t) { return t.select(1, index) * 2; }, sizes, true);
  }));
  REQUIRE(holds("unfold", 200, [] {
    const auto sizes = random_sizes();
    const int64_t size = draw(1, sizes[2]), step = draw(1, 4);
    RC_LOG() << "unfold " << size << " " << step << "\n";
    agrees([&](const at::Tensor& t) { return t.unfold(2, size, step) * 2; }, sizes, true);
  }));
}

}  // namespace
}  // namespace dtensor::testing
