// DTensor::explain(): what a tensor carries that influences later decisions.
#include <ATen/ops/arange.h>
#include <ATen/ops/matrix_exp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "comm/comm_work.h"
#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

DeviceMesh tp_mesh(bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(4) : World::local(4), {4}, {"tp"});
}

std::string explained(const at::Tensor& t) { return DTensor(t).explain(); }

// A matrix sharded by rows, which matrix_exp() gathers: 2048 bytes.
at::Tensor rows(const DeviceMesh& mesh) { return ones({16, 16}, mesh, {Shard(0)}, {.dtype = at::kDouble}); }

}  // namespace

TEST_CASE("explain: shape, layout and where it comes from") {
  const DeviceMesh mesh = tp_mesh();
  const at::Tensor x = distribute_tensor(at::zeros({8, 16}), mesh, {Shard(0)});
  CHECK(explained(x) == R"(f32[8, 16](S(0)) @ mesh(tp=4)
  layout: set by the user or taken from an input; a write to the tensor keeps it
  cached for it and its views: 0 bytes; limit of all tensors on a rank: 67108864 bytes
)");
  CHECK_THAT(explained(x * 2), Catch::Contains("layout: chosen by the engine; a write to the tensor may change it\n"));
  const at::Tensor w = distribute_tensor(at::zeros({4}), mesh, {Replicate()}).requires_grad_();
  set_name(w, "layers.0.bias");
  CHECK_THAT(explained(w), Catch::Contains("f32[4](R) @ mesh(tp=4), named layers.0.bias\n") &&
                               Catch::Contains("  parameter: its gradient gets this layout\n"));
  CHECK_THAT(explained(x), !Catch::Contains("parameter") && !Catch::Contains("named"));
}

TEST_CASE("explain: a factory's result until it is written to, a preferred layout and a ghost width") {
  const DeviceMesh mesh = tp_mesh();
  MeshScope scope(mesh);
  const at::Tensor made = at::zeros({8}, at::kFloat);
  CHECK_THAT(explained(made), Catch::Contains("  made by a factory: operators may shard it without communication\n"));
  made.add_(1);
  CHECK_THAT(explained(made), !Catch::Contains("factory"));
  const at::Tensor found = zeros({8, 4}, mesh, {Replicate()});
  CHECK_THAT(explained(found), !Catch::Contains("preferred"));
  mutable_hints(found).hints.preferred_layout = spec_of(found)->with_placements({Shard(0)});
  CHECK_THAT(explained(found), Catch::Contains("  preferred layout: S(0)\n"));
  set_ghost_width(found, {1, 0});
  CHECK_THAT(explained(found), Catch::Contains("  ghost width: [1, 0]\n"));
}

TEST_CASE("explain: the entries of the cache, with their bytes and the limit, until a write") {
  const DeviceMesh mesh = tp_mesh(GENERATE(false, true));
  limit_remembered_bytes(mesh.world(), 10000);
  const at::Tensor x = rows(mesh);
  CHECK_THAT(explained(x),
             Catch::Contains("  cached for it and its views: 0 bytes; limit of all tensors on a rank: 10000 bytes\n"));
  x.matrix_exp();
  CHECK_THAT(explained(x),
             Catch::Contains("  cached for it and its views: 2048 bytes; limit of all tensors on a rank: 10000 bytes\n"
                             "    f64[16, 16](S(0)) as R: 2048 bytes\n"));
  CHECK_THAT(explained(x.t()), Catch::Contains("f64[16, 16](S(0)) as R: 2048 bytes"));  // a view shares the cache
  cache_sums(x, 1, ones({16, 1}, mesh, {Shard(0)}, {.dtype = at::kDouble}));
  CHECK_THAT(explained(x), Catch::Contains("views: 2560 bytes") &&  // an entry counts at least 512 bytes
                               Catch::Contains("    sums of f64[16, 16](S(0)) along dim 1: 512 bytes\n"));
  x.add_(1);
  CHECK_THAT(explained(x), Catch::Contains("views: 0 bytes") && !Catch::Contains("as R"));
}

TEST_CASE("explain: a copied view is up to date or is fetched by the next operator") {
  const DeviceMesh mesh = tp_mesh();
  const at::Tensor x = distribute_tensor(at::arange(12, at::kFloat), mesh, {Shard(0)}), view = x.slice(0, 1, 11);
  const std::string copied = "  copied view, by aten::slice.Tensor, of f32[12](S(0)) @ mesh(tp=4): ";
  CHECK_THAT(explained(view), Catch::Contains(copied + "fetched by the next operator that reads it\n"));
  view.sum();
  CHECK_THAT(explained(view), Catch::Contains(copied + "up to date\n"));
  x.add_(1);
  CHECK_THAT(explained(view), Catch::Contains(copied + "fetched by the next operator that reads it\n"));
  CHECK_THAT(explained(x), !Catch::Contains("copied view"));
}

TEST_CASE("explain: arriving values, and local tensors that the user may write to") {
  const DeviceMesh mesh = tp_mesh(/*abstract=*/true);
  const SpecPtr spec = Spec::get(mesh, {Replicate()}, {4}, at::kFloat);
  const at::Tensor late = make_dtensor(spec, {}, nullptr, CommWork::deferred([] {}));
  CHECK_THAT(explained(late), Catch::Contains("  arriving: the next operator that reads it begins a collective\n"));
  fetch_parts(late);
  CHECK_THAT(explained(late), !Catch::Contains("arriving"));
  const at::Tensor begun = make_dtensor(spec, {}, nullptr, std::make_shared<CommWork>([] {}));
  CHECK_THAT(explained(begun), Catch::Contains("  arriving: a collective has begun and fills in the local tensors\n"));

  const DeviceMesh local = tp_mesh();
  const at::Tensor given = from_local({at::ones({2}), at::ones({2}), at::ones({2}), at::ones({2})}, local, {Shard(0)});
  CHECK_THAT(explained(given),
             Catch::Contains("  exposed: the user may write to the local tensors, so nothing is cached\n"));
}

TEST_CASE("explain: communicates nothing and changes nothing, on one rank alone") {
  const DeviceMesh mesh = tp_mesh();
  limit_remembered_bytes(mesh.world(), 2 * 2048);
  const at::Tensor x = rows(mesh), y = rows(mesh), z = rows(mesh), view = x.slice(0, 1, 15);
  x.matrix_exp(), y.matrix_exp();
  CommDebugMode comm;
  for (const at::Tensor& t : {x, view}) explained(t);
  CHECK(comm.total() == 0);
  CHECK(comm.reused() == 0);
  CHECK_FALSE(has_parts(view));
  // x stays the least recently used entry, and is evicted for z.
  z.matrix_exp();
  CHECK_THAT(explained(x), !Catch::Contains("as R"));
  CHECK_THAT(explained(y), Catch::Contains("as R"));
}

}  // namespace dtensor
