// The cache of layouts per rank: its size, and when entries are dropped.
#include "dtensor/remembered_layouts.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <optional>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "examples/models/layouts.h"
#include "examples/models/llama.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

constexpr int64_t kRow = 16;               // elements
constexpr int64_t kWhole = 16 * kRow * 8;  // bytes that matrix_exp() gathers for rows()

DeviceMesh replicas_mesh(bool abstract) {
  return DeviceMesh(abstract ? World::abstract(4) : World::local(4), {4}, {"dp"});
}

// A square matrix sharded by rows, in float64, which matrix_exp() gathers.
Tensor rows(const DeviceMesh& mesh) { return ones({16, kRow}, mesh, {Shard(0)}, {.dtype = torch::kDouble}) / 8; }

int64_t calls_of(const std::function<void()>& run) {
  CommDebugMode comm;
  run();
  return comm.total();
}

int64_t calls_to_gather(const Tensor& t) {
  return calls_of([&] { t.matrix_exp(); });
}

TEST_CASE("layout cache: the least recently used entry is evicted first", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(GENERATE(false, true));
  limit_remembered_bytes(mesh.world(), 2 * kWhole);
  const Tensor a = rows(mesh), b = rows(mesh), c = rows(mesh);
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(b) == 1);
  CHECK(remembered_bytes(mesh.world()) == 2 * kWhole);
  CHECK(calls_to_gather(a) == 0);  // used after b
  CHECK(calls_to_gather(c) == 1);  // replaces b
  CHECK(calls_to_gather(a) == 0);
  CHECK(calls_to_gather(b) == 1);  // replaces c
  CHECK(calls_to_gather(c) == 1);
  CHECK(remembered_bytes(mesh.world()) == 2 * kWhole);
}

TEST_CASE("layout cache: eviction does not depend on when tensors are freed", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(false);
  limit_remembered_bytes(mesh.world(), 2 * kWhole);
  for (const bool keep : {false, true}) {
    const Tensor a = rows(mesh);
    std::optional<Tensor> b = rows(mesh);
    CHECK(calls_to_gather(a) == 1);
    CHECK(calls_to_gather(*b) == 1);
    if (!keep) b.reset();
    CHECK(calls_to_gather(rows(mesh)) == 1);
    CHECK(calls_to_gather(a) == 1);  // it was the least recently used, whether b is alive or not
  }
}

TEST_CASE("layout cache: limit 0 caches nothing, and a smaller limit applies at once", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(GENERATE(false, true));
  const World& world = mesh.world();
  const Tensor a = rows(mesh);
  CHECK(calls_to_gather(a) == 1);
  limit_remembered_bytes(world, 0);
  CHECK(remembered_bytes(world) == 0);
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(a) == 1);
  limit_remembered_bytes(world, kWhole - 1);  // less than the tensor takes
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(a) == 1);
  limit_remembered_bytes(world, kWhole);
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(a) == 0);
  forget_remembered(world);
  CHECK(remembered_bytes(world) == 0);
  CHECK(calls_to_gather(a) == 1);
  CHECK_THROWS_WITH(limit_remembered_bytes(world, -1), Catch::Contains("-1 bytes: give a limit per rank"));
}

TEST_CASE("layout cache: the memory meter counts entries, and a write drops them", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(GENERATE(false, true));
  const MemoryMeter& memory = mesh.world().memory();
  const Tensor a = rows(mesh);
  const int64_t own = memory.live_bytes();
  a.matrix_exp();
  CHECK(memory.live_bytes() == own + kWhole);
  a.mul_(2);
  CHECK(memory.live_bytes() == own);
  CHECK(remembered_bytes(mesh.world()) == 0);
}

TEST_CASE("layout cache: empty after backward", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(false);
  const MemoryMeter& memory = mesh.world().memory();
  const Tensor w = rows(mesh).detach().requires_grad_(), x = rows(mesh);
  const int64_t own = memory.live_bytes();
  {
    const Tensor loss = (w.matrix_exp() * x.matrix_exp()).sum();
    CHECK(remembered_bytes(mesh.world()) >= 2 * kWhole);
    loss.backward();
  }
  CHECK(remembered_bytes(mesh.world()) == 0);
  w.mutable_grad().reset();
  CHECK(memory.live_bytes() == own);
}

TEST_CASE("layout cache: meshes on other ranks have a limit of their own", "[dtensor][remembered]") {
  const World world = World::local(4);
  const DeviceMesh all(world, {4}, {"dp"}), first(world, {2}, {"a"}, {0, 1}), same(world, {2, 2}, {"x", "y"});
  limit_remembered_bytes(world, kWhole);
  const Tensor a = rows(all), b = rows(first);
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(b) == 1);
  CHECK(calls_to_gather(a) == 0);
  const Tensor c = ones({16, kRow}, same, {Shard(0), Replicate()}, {.dtype = torch::kDouble}) / 8;
  CHECK(calls_to_gather(c) == 1);
  CHECK(calls_to_gather(a) == 1);  // c is on the same ranks
}

TEST_CASE("layout cache: reading parts does not change it", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(false);
  const Tensor a = rows(mesh);
  CHECK(calls_to_gather(a) == 1);
  DTensor(a).locals()[0].sum();
  to_local(a)[1].sum();
  CHECK(calls_to_gather(a) == 0);
  mutable_local_tensors(a)[2].fill_(5);
  CHECK(calls_to_gather(a) == 1);
  CHECK(calls_to_gather(a) == 1);  // the library does not see writes to the parts
  CHECK(full_tensor(a).sum().item<double>() == (12 / 8.0 + 4 * 5) * kRow);
}

// Larger than the data of a rank's step, so that the weight is gathered and not the data.
TEST_CASE("layout cache: a weight that a loop reads in 28 steps is gathered once", "[dtensor][remembered]") {
  const DeviceMesh mesh = replicas_mesh(true);
  const Tensor weight = ones({1024, 1024}, mesh, {Shard(0)}, {.dtype = torch::kDouble}).requires_grad_();  // 8 MiB
  Tensor x = ones({1 << 15, 1024}, mesh, {Shard(0)}, {.dtype = torch::kDouble});
  CommDebugMode comm;
  for (int step = 0; step < 28; ++step) x = torch::linear(x, weight).tanh();
  CAPTURE(comm.to_string());
  CHECK(comm.total() == 1);
  CHECK(comm.count(Collective::kAllGather) == 1);
  comm.reset();
  x.sum().backward();
  CAPTURE(comm.to_string());
  CHECK(comm.count(Collective::kAllGather) == 0);
}

examples::LlamaConfig small_llama() {
  examples::LlamaConfig c;
  c.vocab = 64;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 2;
  c.hidden = 64;
  return c;
}

// A rank keeps only its parts, gradients and states between steps.
TEST_CASE("layout cache: live bytes of a Llama after forward, backward and step", "[dtensor][remembered]") {
  const bool fully_sharded = GENERATE(true, false);
  CAPTURE(fully_sharded);
  const DeviceMesh mesh = fully_sharded ? DeviceMesh(World::abstract(4), {4}, {"dp"})
                                        : DeviceMesh(World::abstract(4), {2, 2}, {"dp", "tp"});
  const MemoryMeter& memory = mesh.world().memory();
  examples::Llama model(small_llama());
  distribute_module(*model, mesh, fully_sharded ? examples::shard_fully : examples::shard_llama);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const MeshScope scope(mesh);
  const auto ids = fully_sharded ? zeros({8, 6}, mesh, {Shard(0)}, {.dtype = torch::kLong})
                                 : zeros({8, 6}, mesh, {Shard(0), Replicate()}, {.dtype = torch::kLong});
  const int64_t own = memory.live_bytes();
  {
    const torch::NoGradGuard no_grad;  // serving
    model(ids);
    CHECK(memory.live_bytes() <= own + kDefaultRememberedBytes);
    CHECK(memory.live_bytes() - own <= remembered_bytes(mesh.world()));
    limit_remembered_bytes(mesh.world(), 0);
    model(ids);
    CHECK(memory.live_bytes() == own);
    limit_remembered_bytes(mesh.world(), kDefaultRememberedBytes);
  }
  int64_t gradients = 0;
  for (int step = 0; step < 3; ++step) {
    model(ids).square().mean().backward();
    CHECK(remembered_bytes(mesh.world()) == 0);
    if (step == 0) gradients = memory.live_bytes() - own;
    CHECK(memory.live_bytes() == own + gradients);
    CHECK(gradients <= own);  // a gradient has its parameter's layout
    optimizer.step();
    CHECK(memory.live_bytes() == own + gradients);
    optimizer.zero_grad();
    CHECK(memory.live_bytes() == own);
  }
}

}  // namespace
}  // namespace dtensor
