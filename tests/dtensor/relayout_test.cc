// relayout_() changes the layout of a tensor in place; writes to a tensor that has views never do.
#include <torch/nn.h>

#include <functional>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/ghost_width.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/line_of_ranks.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::line_of_ranks;
using torch::Tensor;

Placements layout_of(const Tensor& t) { return spec_of(t)->placements(); }

bool close(const Tensor& t, const Tensor& plain) {
  return !spec_of(t)->mesh().world().has_data() || torch::equal(full_tensor(t), plain);
}

Tensor numbers_from_one(c10::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t n : sizes) count *= n;
  return torch::arange(count, torch::kDouble).view(sizes) + 1;
}

// A tensor made by a factory: replicated, by the engine's choice.
Tensor made(const DeviceMesh& mesh, c10::IntArrayRef sizes) {
  const MeshScope scope(mesh);
  return torch::zeros(sizes, torch::kDouble);
}

TEST_CASE("relayout_: a replicated tensor is sharded without communication, and the rest is freed",
          "[dtensor][relayout]") {
  const bool abstract = GENERATE(false, true);
  const int64_t batch = GENERATE(8, 7, 3);  // 3: a rank has nothing
  const DeviceMesh mesh = line_of_ranks(4, abstract);
  const Tensor value = numbers_from_one({3, batch}), t = distribute_tensor(value, mesh);
  const SpecPtr before = spec_of(t);
  MemoryMeter& memory = mesh.world().memory();
  const int64_t bytes = memory.live_bytes();
  CommDebugMode comm;
  relayout_(t, {Shard(1)});
  CHECK(comm.total() == 0);
  CHECK(layout_of(t) == Placements{Shard(1)});
  CHECK(bytes - memory.live_bytes() == before->max_local_bytes() - spec_of(t)->max_local_bytes());
  CHECK(close(t, value));
}

TEST_CASE("relayout_: from one sharded dim to another, and to replicated", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(4);
  const Tensor value = numbers_from_one({8, 8}), t = distribute_tensor(value, mesh, {Shard(0)});
  CommDebugMode comm;
  relayout_(t, {Shard(-1)});
  CHECK(comm.count(Collective::kAllToAll) == 1);
  CHECK(comm.total() == 1);
  CHECK(layout_of(t) == Placements{Shard(1)});
  CHECK(close(t, value));
  relayout_(t, {Shard(1)});  // already so
  CHECK(comm.total() == 2);  // full_tensor() had one
  relayout_(t, {Replicate()});
  CHECK(comm.count(Collective::kAllGather) == 2);
  CHECK(close(t, value));
}

TEST_CASE("relayout_: the tensor stays the same one, with its name, and a leaf with its gradient",
          "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const Tensor value = numbers_from_one({4, 6}), slope = value * 2;
  const Tensor w = distribute_tensor(value, mesh).requires_grad_(), handle = w;
  set_name(w, "layer.weight");
  w.mutable_grad() = distribute_tensor(slope, mesh);
  relayout_(w, {Shard(0)});
  CHECK(handle.is_same(w));
  CHECK(*meta_without_sync(handle).name == "layer.weight");
  CHECK(w.is_leaf());
  CHECK(w.requires_grad());
  CHECK(layout_of(w.grad()) == Placements{Shard(0)});
  CHECK(close(w.detach(), value));
  CHECK(close(w.grad(), slope));
  w.sum().backward();
  CHECK(layout_of(w.grad()) == Placements{Shard(0)});
  CHECK(close(w.grad(), slope + 1));
}

TEST_CASE("relayout_: the user chose the layout, so that no write changes it", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(4);
  const Tensor value = numbers_from_one({8, 3}), x = distribute_tensor(value, mesh, {Shard(0)});
  const Tensor chosen = made(mesh, {8, 3}), left = made(mesh, {8, 3});
  relayout_(chosen, {Replicate()});
  for (const Tensor& t : {chosen, left}) {
    t.add_(x);
    CHECK(close(t, value));
  }
  CHECK(layout_of(chosen) == Placements{Replicate()});
  CHECK(layout_of(left) == Placements{Shard(0)});
}

TEST_CASE("relayout_: local tensors that the program holds keep the old contents", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const Tensor part = numbers_from_one({2, 4});
  const Tensor t = from_local({part, part + 8}, mesh, {Shard(0)});
  relayout_(t, {Shard(1)});
  t.zero_();
  CHECK(torch::equal(part, numbers_from_one({2, 4})));
  CHECK(close(t, torch::zeros({4, 4}, torch::kDouble)));
}

TEST_CASE("relayout_: errors, after which the tensor is unchanged", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const Tensor plain = torch::ones({4, 6});
  CHECK_THROWS_AS(relayout_(plain, {Shard(0)}), c10::TypeError);
  const Tensor t = distribute_tensor(plain, mesh, {Shard(0)});
  CHECK_THROWS_AS(relayout_(t, {Shard(2)}), c10::ValueError);
  CHECK_THROWS_AS(relayout_(t, {Shard(1), Replicate()}), c10::ValueError);
  CHECK_THROWS_AS(relayout_(t, {Shard(1)}, {.async_op = true}), c10::ValueError);
  CHECK_THROWS_AS(relayout_(t, {Shard(1)}, {.max_bytes = 1}), c10::ValueError);
  {
    const RedistributeMemoryLimit limit(1);
    CHECK_THROWS_AS(relayout_(t, {Shard(1)}), c10::ValueError);
  }
  const Tensor w = distribute_tensor(plain, mesh).requires_grad_();
  CHECK_THROWS_WITH(relayout_(w, {Partial()}), Catch::Contains("requires grad"));
  CHECK_THROWS_WITH(relayout_(w * 2, {Shard(0)}), Catch::Contains("autograd history"));
  CHECK(layout_of(t) == Placements{Shard(0)});
  CHECK(close(t, plain));
}

TEST_CASE("relayout_: views, and tensors that have some, are refused", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const std::vector<std::function<Tensor(const Tensor&)>> ways = {
      [](const Tensor& t) { return t.select(1, 0); }, [](const Tensor& t) { return t.detach(); },
      [](const Tensor& t) { return t.data(); }, [](const Tensor& t) { return t.slice(0, 1, 3); },  // a copy
  };
  for (const auto& way : ways) {
    const Tensor base = zeros({4, 6}, mesh, {Shard(0)}), had = zeros({4, 6}, mesh, {Shard(0)});
    const Tensor other = way(base);
    way(had);  // and is freed
    for (const Tensor& t : {base, other}) {
      const bool replicated = layout_of(t) == Placements{Replicate()};
      CHECK_THROWS_WITH(relayout_(t, {replicated ? Shard(0) : Replicate()}),
                        Catch::Contains("before its first view") && Catch::Contains("zeros(sizes, mesh, placements)"));
    }
    CHECK_NOTHROW(relayout_(base, {Shard(0)}));  // already so
    CHECK_NOTHROW(relayout_(had, {Shard(1)}));
  }
}

TEST_CASE("relayout_: a cache is written slice by slice without communication", "[dtensor][relayout]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const Tensor keys = numbers_from_one({4, 6, 1, 3}), k = distribute_tensor(keys, mesh, {Shard(0), Shard(1)});
  CommDebugMode comm;
  const Tensor cache = made(mesh, {4, 6, 5, 3}), expected = torch::zeros({4, 6, 5, 3}, torch::kDouble);
  relayout_(cache, {Shard(0), Shard(1)});
  const auto step = [](const Tensor& cache, const Tensor& keys) {
    cache.slice(2, 2, 3).copy_(keys);
    cache.slice(2, 4, 5).copy_(keys * 2);
    cache.transpose(1, 2).select(1, 0).copy_(keys.squeeze(2) * 3);
    cache.slice(2, 1, 5, 2).mul_(keys);
  };
  step(expected, keys);
  step(cache, k);
  CHECK(layout_of(cache) == Placements{Shard(0), Shard(1)});
  CHECK(comm.total() == 0);
  CHECK(close(cache, expected));
}

TEST_CASE("relayout_: gradients flow through a list of results", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  torch::manual_seed(1);
  const Tensor w = torch::randn({3, 3}, torch::kDouble).requires_grad_(), x = torch::randn({5, 4, 3}, torch::kDouble);
  const Tensor dw = distribute_tensor(w.detach(), mesh).requires_grad_();
  const auto loop = [](const Tensor& out, const Tensor& w, const Tensor& x) {
    Tensor h = x[0];
    for (int64_t t = 0; t < 5; ++t) {
      h = torch::tanh(h.mm(w) + x[t]);
      out[t] = h;
    }
    return out;
  };
  loop(torch::zeros({5, 4, 3}, torch::kDouble), w, x).square().sum().backward();
  const Tensor dx = distribute_tensor(x, mesh, {Shard(1)}), results = made(mesh, {5, 4, 3});
  CommDebugMode comm;
  relayout_(results, {Shard(1)});
  const Tensor out = loop(results, dw, dx);
  CHECK(layout_of(out) == Placements{Shard(1)});
  CHECK(comm.total() == 0);
  out.square().sum().backward();
  CHECK(comm.total() <= 2);  // of the loss, and of the gradient
  CHECK(torch::allclose(full_tensor(dw.grad()), w.grad(), 1e-12, 1e-13));
}

struct CachingImpl : torch::nn::Module {
  CachingImpl()
      : keys(register_module("keys", torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)))),
        cache(register_buffer("cache", torch::zeros({2, 5, 6}, torch::kDouble))) {}

  Tensor forward(const Tensor& x, int64_t at) {
    cache.slice(1, at, at + 1).copy_(keys(x));
    return cache.slice(1, 0, at + 1).sum(1);
  }

  torch::nn::Linear keys;
  Tensor cache;
};
TORCH_MODULE(Caching);

TEST_CASE("relayout_: a buffer of a distributed module", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const torch::NoGradGuard no_grad;
  Caching plain, model;
  plain->to(torch::kDouble), model->to(torch::kDouble);
  model->keys->weight.copy_(plain->keys->weight);
  distribute_module(*model, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& mesh) {
    if (name == "keys") shard_parameter(m, "weight", mesh, {Shard(0)});
  });
  CHECK(layout_of(model->cache) == Placements{Replicate()});
  relayout_(model->cache, {Shard(2)});
  for (int64_t at = 0; at < 5; ++at) {
    const Tensor x = numbers_from_one({2, 1, 4}) * (at + 1), dx = distribute_tensor(x, mesh);
    CommDebugMode comm;
    const Tensor sum = model->forward(dx, at);
    CHECK(comm.total() == 0);
    CHECK(torch::allclose(full_tensor(sum), plain->forward(x, at), 1e-12, 1e-13));
  }
  CHECK(*meta_without_sync(model->cache).name == "cache");
  model->to(torch::kFloat);
  CHECK(layout_of(model->cache) == Placements{Shard(2)});
  CHECK(model->cache.is_same(model->named_buffers()["cache"]));
}

TEST_CASE("relayout_: a buffer of a module that was made in a MeshScope, while it has no handle by data()",
          "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const auto make = [&] {
    const MeshScope scope(mesh);
    return Caching();
  };
  for (const bool in_scope : {true, false}) {
    Caching model = in_scope ? make() : Caching();
    distribute_module(*model, mesh);
    Tensor handle = model->cache.data();
    CHECK_THROWS_WITH(relayout_(model->cache, {Shard(2)}), Catch::Contains("other handles"));
    handle = Tensor();
    relayout_(model->cache, {Shard(2)});
    CHECK(layout_of(model->cache) == Placements{Shard(2)});
  }
}

TEST_CASE("relayout_: a declared ghost width stays", "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const Tensor grid = zeros({8, 8}, mesh, {Shard(0)});
  set_ghost_width(grid, {1, 1});
  relayout_(grid, {Shard(1)});
  CHECK(ghost_width(grid) == std::vector<int64_t>{1, 1});
}

TEST_CASE("relayout_: a gradient that does not fit the limit is an error before anything is sent",
          "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(2);
  const Tensor value = numbers_from_one({8, 8}), w = distribute_tensor(value, mesh).requires_grad_();
  w.mutable_grad() = distribute_tensor(value, mesh, {Shard(1)});
  CommDebugMode comm;
  CHECK_THROWS_AS(relayout_(w, {Shard(0)}, {.max_bytes = 600}), c10::ValueError);
  CHECK(comm.total() == 0);
  CHECK(layout_of(w) == Placements{Replicate()});
}

TEST_CASE("in place: a replicated tensor stays replicated when sharded values are written to its slices",
          "[dtensor][relayout]") {
  const DeviceMesh mesh = line_of_ranks(4);
  const Tensor value = numbers_from_one({8, 3}), x = distribute_tensor(value, mesh, {Shard(0)});
  const Tensor cache = made(mesh, {8, 4, 3});
  for (int64_t at = 0; at < 4; ++at) {
    const Tensor next = x * (at + 1);
    CommDebugMode comm;
    cache.select(1, at).copy_(next);
    CHECK(comm.count(Collective::kAllGather) == 1);
    CHECK(comm.total() == 1);
    CHECK(layout_of(cache) == Placements{Replicate()});
    CHECK(close(cache.select(1, at), value * (at + 1)));
  }
}

}  // namespace
}  // namespace dtensor
