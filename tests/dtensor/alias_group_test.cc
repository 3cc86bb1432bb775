// A tensor that is written slice by slice, and whose layout the engine chose, takes the layout of the written values,
// with all its aliases.
#include "dtensor/views/alias_group.h"

#include <torch/nn.h>

#include <functional>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

Placements layout_of(const Tensor& t) { return spec_of(t)->placements(); }

DeviceMesh mesh_of(int64_t ranks, bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(ranks) : World::local(ranks), {ranks}, {"tp"});
}

bool close(const Tensor& t, const Tensor& plain) {
  return !spec_of(t)->mesh().world().has_data() || torch::equal(full_tensor(t), plain);
}

Tensor numbers_from_one(c10::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t n : sizes) count *= n;
  return torch::arange(count, torch::kDouble).view(sizes) + 1;
}

// A tensor made by a factory: replicated, by the engine's choice.
Tensor made(const DeviceMesh& mesh, c10::IntArrayRef sizes, c10::ScalarType dtype = torch::kDouble) {
  const MeshScope scope(mesh);
  return torch::zeros(sizes, dtype);
}

TEST_CASE("aliases: a list of results takes the layout of the written values", "[dtensor][alias_group]") {
  const bool abstract = GENERATE(false, true);
  const int64_t batch = GENERATE(8, 7, 3);  // 3: a rank has nothing
  const DeviceMesh mesh = mesh_of(4, abstract);
  const Tensor h = numbers_from_one({batch, 5}), x = distribute_tensor(h, mesh, {Shard(0)});
  CommDebugMode comm;
  Tensor out = made(mesh, {3, batch, 5});
  const int64_t before = mesh.world().memory().live_bytes();
  for (int64_t t = 0; t < 3; ++t) out.index_put_({t}, x * (t + 1));
  CHECK(layout_of(out) == Placements{Shard(1)});
  CHECK(mesh.world().memory().live_bytes() < before);
  CHECK(layout_of(out.sum({0})) == Placements{Shard(0)});
  CHECK(comm.total() == 0);
  CHECK(close(out, torch::stack({h, h * 2, h * 3})));
  CHECK(close(out.sum({0}), h * 6));
}

TEST_CASE("aliases: a cache over two mesh dims, and all views of it", "[dtensor][alias_group]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const Tensor keys = numbers_from_one({4, 6, 1, 3}), k = distribute_tensor(keys, mesh, {Shard(0), Shard(1)});
  CommDebugMode comm;
  Tensor cache = made(mesh, {4, 6, 5, 3}), expected = torch::zeros({4, 6, 5, 3}, torch::kDouble);
  const Tensor turned = cache.transpose(1, 2), same = cache.detach(), data = cache.data(), last = cache.slice(2, 4, 5);
  const auto step = [](const Tensor& cache, const Tensor& keys) {
    cache.slice(2, 2, 3).copy_(keys);
    cache.slice(2, 4, 5).copy_(keys * 2);
    cache.transpose(1, 2).select(1, 0).copy_(keys.squeeze(2) * 3);
    cache.slice(2, 1, 5, 2).mul_(keys);
  };
  step(expected, keys);
  step(cache, k);
  CHECK(layout_of(cache) == Placements{Shard(0), Shard(1)});
  CHECK(layout_of(turned) == Placements{Shard(0), Shard(2)});
  CHECK(layout_of(same) == Placements{Shard(0), Shard(1)});
  CHECK(layout_of(last) == Placements{Shard(0), Shard(1)});
  CHECK(comm.total() == 0);
  CHECK(close(cache, expected));
  CHECK(close(turned, expected.transpose(1, 2)));
  CHECK(close(same, expected));
  CHECK(close(data, expected));
  CHECK(close(last, expected.slice(2, 4, 5)));
}

TEST_CASE("aliases: a dim that any earlier view cut is not split", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor value = numbers_from_one({4, 1}), x = distribute_tensor(value, mesh, {Shard(0)});
  const Tensor cut = made(mesh, {4, 1, 2}), whole = made(mesh, {4, 1, 2});
  cut.select(0, 1);  // is freed, but counts
  const Tensor expected = torch::stack({torch::zeros_like(value), value}, 2);
  for (const Tensor& t : {cut, whole}) t.select(2, 1).copy_(x);
  CHECK(layout_of(cut) == Placements{Replicate()});
  CHECK(layout_of(whole) == Placements{Shard(0)});
  CHECK(close(cut, expected));
  CHECK(close(whole, expected));
}

TEST_CASE("aliases: exposed aliases and those with a layout of the user keep their layout", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor value = numbers_from_one({8, 3}), x = distribute_tensor(value, mesh, {Shard(0)});
  const auto stays = [&](const Tensor& t, const std::function<Tensor(const Tensor&)>& view) {
    view(t).copy_(x);
    CHECK(layout_of(t) == Placements(mesh.ndim(), Replicate()));
    CHECK(close(view(t), value));
  };
  const auto first = [](const Tensor& t) { return t.select(0, 0); };
  stays(zeros({2, 8, 3}, mesh, {}, {torch::kDouble}), first);  // the user chose its layout
  const Tensor given = made(mesh, {2, 8, 3});
  mutable_local_tensors(given);
  stays(given, first);
  const Tensor seen_as_numbers = made(mesh, {2, 8, 3}, torch::kComplexDouble);
  stays(seen_as_numbers, [](const Tensor& t) { return torch::view_as_real(t).select(0, 0).select(2, 0); });
  const Tensor conjugated = made(mesh, {2, 8, 3}, torch::kComplexDouble), seen = conjugated.conj();
  const Tensor complex = torch::complex(value, value);
  conjugated.select(0, 0).copy_(distribute_tensor(complex, mesh, {Shard(0)}));
  CHECK(close(seen.select(0, 0).resolve_conj(), complex.conj().resolve_conj()));
  CHECK(layout_of(conjugated) == Placements{Replicate()});
  const Tensor turned = made(mesh, {2, 8, 3});
  turned.transpose_(0, 1);
  stays(turned, [](const Tensor& t) { return t.select(1, 0); });
  const Tensor both = made(mesh, {2, 8, 3});  // one call reads the tensor that it writes to
  both.select(0, 0).add_(both.select(0, 1)).add_(x);
  CHECK(close(both.select(0, 0), value));
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

TEST_CASE("aliases: a module's buffer takes the layout of the written values", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(2);
  const torch::NoGradGuard no_grad;
  Caching plain, model;
  plain->to(torch::kDouble), model->to(torch::kDouble);
  model->keys->weight.copy_(plain->keys->weight);
  distribute_module(*model, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& mesh) {
    if (name == "keys") shard_parameter(m, "weight", mesh, {Shard(0)});
  });
  CHECK(layout_of(model->cache) == Placements{Replicate()});
  for (int64_t at = 0; at < 5; ++at) {
    const Tensor x = numbers_from_one({2, 1, 4}) * (at + 1), dx = distribute_tensor(x, mesh);
    CommDebugMode comm;
    const Tensor sum = model->forward(dx, at);
    CHECK(comm.total() == 0);
    CHECK(torch::allclose(full_tensor(sum), plain->forward(x, at), 1e-12, 1e-13));
  }
  CHECK(layout_of(model->cache) == Placements{Shard(2)});
  CHECK(model->cache.is_same(model->named_buffers()["cache"]));
}

TEST_CASE("aliases: a buffer that is written as a whole keeps its layout", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(2);
  torch::nn::BatchNorm1d norm(4);
  distribute_module(*norm, mesh);
  const Tensor x = torch::randn({6, 4});
  norm->forward(distribute_tensor(x, mesh, {Shard(1)}));
  CHECK(layout_of(norm->running_mean) == Placements{Replicate()});
  CHECK(torch::allclose(full_tensor(norm->running_mean), x.mean(0) * 0.1, 1e-5, 1e-6));
  norm->running_var.copy_(distribute_tensor(torch::ones({4}), mesh, {Shard(0)}));
  CHECK(layout_of(norm->running_var) == Placements{Replicate()});
}

TEST_CASE("aliases: a memory limit that they exceed keeps their layout", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor value = numbers_from_one({8, 3}), x = distribute_tensor(value, mesh, {Shard(0)});
  for (const int64_t max_bytes : {2 * 8 * 8 * 3 * 8, 8 * 8 * 3 * 8}) {
    const Tensor cache = made(mesh, {8, 8, 3});
    {
      const RedistributeMemoryLimit limit(max_bytes);
      cache.select(1, 2).copy_(x);
    }
    CHECK(layout_of(cache) == Placements{max_bytes == 8 * 8 * 3 * 8 ? Replicate() : Shard(0)});
    CHECK(close(cache.select(1, 2), value));
  }
}

TEST_CASE("aliases: gradients flow through a list of results", "[dtensor][alias_group]") {
  const DeviceMesh mesh = mesh_of(2);
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
  const Tensor dx = distribute_tensor(x, mesh, {Shard(1)});
  CommDebugMode comm;
  const Tensor out = loop(made(mesh, {5, 4, 3}), dw, dx);
  CHECK(layout_of(out) == Placements{Shard(1)});
  CHECK(comm.total() == 0);
  out.square().sum().backward();
  CHECK(comm.total() <= 2);  // of the loss, and of the gradient
  CHECK(torch::allclose(full_tensor(dw.grad()), w.grad(), 1e-12, 1e-13));
}

}  // namespace
}  // namespace dtensor
