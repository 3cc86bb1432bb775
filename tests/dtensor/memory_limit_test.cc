// Memory limits of redistributions: RedistributeOptions::max_bytes and RedistributeMemoryLimit.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <regex>
#include <string>

#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "plan/cost_model.h"
#include "plan/redistribute_plan.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Contains;

// Four ranks with packed messages, as between processes, so that rounds save memory.
DeviceMesh packing_mesh() {
  World world = World::local(4);
  CostModel cost;
  cost.uses_staging_buffers = true;
  set_cost_model(world, cost);
  return DeviceMesh(world, {4}, {"tp"});
}

at::Tensor float_numbers(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::ValueError& e) {
    return e.what_without_backtrace();
  }
  return "no error";
}

int64_t smallest_named(const std::string& error) {
  std::smatch match;
  return std::regex_search(error, match, std::regex("at least ([0-9]+) bytes")) ? std::stoll(match[1]) : -1;
}

}  // namespace

TEST_CASE("max_bytes sends in rounds, also in backward") {
  const DeviceMesh mesh = packing_mesh();
  const at::Tensor whole = float_numbers({64, 64});
  at::Tensor x = distribute_tensor(whole, mesh, {Shard(0)});
  x.set_requires_grad(true);
  const RedistributeOptions limited{.max_bytes = plan_of(x, {Shard(1)}).peak_bytes - 1};
  const auto plan = plan_of(x, {Shard(1)}, limited);
  REQUIRE(plan.steps.at(0).chunks > 1);
  CHECK(plan.peak_bytes <= limited.max_bytes);

  CommDebugMode forward;
  const at::Tensor y = redistribute(x, {Shard(1)}, limited);
  CHECK(forward.total() == plan.steps[0].chunks);
  CHECK(at::equal(full_tensor(y), whole));
  CommDebugMode backward;
  (y * y).sum().backward();
  CHECK(backward.count(Collective::kAllToAll) > 1);
  CHECK(at::equal(full_tensor(x.grad()), 2 * whole));
}

TEST_CASE("the smallest limit in an error's text suffices, and nothing is sent before the error") {
  const DeviceMesh mesh = packing_mesh();
  const at::Tensor x = distribute_tensor(float_numbers({64, 64}), mesh, {Shard(0)});
  CommDebugMode comm;
  const std::string error = error_of([&] { redistribute(x, {Shard(1)}, {.max_bytes = 100}); });
  CHECK_THAT(error, Contains("S(0) -> S(1)") && Contains("max_bytes is 100, but every route needs at least "));
  CHECK(comm.total() == 0);
  const int64_t smallest = smallest_named(error);
  CHECK(at::equal(full_tensor(redistribute(x, {Shard(1)}, {.max_bytes = smallest})), full_tensor(x)));
  CHECK_THAT(error_of([&] { redistribute(x, {Shard(1)}, {.max_bytes = smallest - 1}); }), Contains("max_bytes is"));

  CHECK_THAT(error_of([&] { redistribute(x, {Shard(1)}, {.max_bytes = 0}); }),
             Contains("[redistribute] max_bytes is 0"));
  CHECK_THAT(error_of([&] { redistribute_many({x}, {{Shard(1)}}, {.max_bytes = -1}); }),
             Contains("[redistribute_many] max_bytes is -1"));
  CHECK_THAT(error_of([&] { plan_of(x, {Shard(1)}, {.max_bytes = 0}); }), Contains("[plan_of] max_bytes is 0"));
  CHECK_THAT(error_of([] { RedistributeMemoryLimit none(0); }), Contains("[RedistributeMemoryLimit] max_bytes is 0"));
  CHECK_THAT(error_of([&] { redistribute_many({x}, {{Shard(1)}}, {.async_op = true}); }),
             Contains("[redistribute_many] async_op"));
}

TEST_CASE("max_bytes applies between meshes, too") {
  const World world = World::local(4);
  CostModel cost;
  cost.uses_staging_buffers = true;
  set_cost_model(world, cost);
  const DeviceMesh here(world, {4}, {"a"}), there(world, {2, 2}, {"b", "c"});
  const at::Tensor x = distribute_tensor(float_numbers({64, 64}), here, {Shard(0)});
  const std::string error = error_of([&] { redistribute(x, there, {Shard(1), Replicate()}, {.max_bytes = 64}); });
  CHECK_THAT(error, Contains("max_bytes is 64, but every route needs at least "));
  const at::Tensor y = redistribute(x, there, {Shard(1), Replicate()}, {.max_bytes = smallest_named(error)});
  CHECK(at::equal(full_tensor(y), float_numbers({64, 64})));
}

TEST_CASE("max_bytes bounds all tensors of a batch together") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < 5; ++i) {
    tensors.push_back(distribute_tensor(float_numbers({8, 8 + i}), mesh, {Shard(0)}).set_requires_grad(i % 2 == 0));
  }
  const int64_t largest = plan_of(tensors[4], {Replicate()}).peak_bytes;
  const auto collectives = [&](int64_t max_bytes) {
    for (at::Tensor& t : tensors) t.mutable_grad() = at::Tensor();
    CommDebugMode comm;
    const auto whole = redistribute_many(tensors, {{Replicate()}}, {.max_bytes = max_bytes});
    const int64_t forward = comm.total();
    at::Tensor sum = whole[0].sum();
    for (size_t i = 0; i < tensors.size(); ++i) {
      CHECK(at::equal(full_tensor(whole[i]), float_numbers({8, 8 + static_cast<int64_t>(i)})));
      if (i > 0) sum = sum + whole[i].sum();
    }
    sum.backward();
    for (size_t i = 0; i < tensors.size(); i += 2) {
      CHECK(at::equal(full_tensor(tensors[i].grad()), at::ones(tensors[i].sizes())));
    }
    return forward;
  };
  CHECK(collectives(std::numeric_limits<int64_t>::max()) == 1);
  CHECK(collectives(2 * largest) == 3);
  CHECK(collectives(largest) == 5);
  CHECK_THAT(error_of([&] { collectives(largest - 1); }), Contains("max_bytes is"));
}

TEST_CASE("a memory limit applies to the engine's redistributions, also to cached decisions") {
  const DeviceMesh mesh = packing_mesh();
  const at::Tensor a = distribute_tensor(float_numbers({64, 64}), mesh, {Shard(0)});
  const at::Tensor b = distribute_tensor(float_numbers({64, 64}), mesh, {Shard(1)});
  const at::Tensor expected = float_numbers({64, 64}) * 2;
  const auto collectives = [&] {
    b.mul_(1);  // otherwise it is cached in the layout of `a`
    CommDebugMode comm;
    const at::Tensor sum = a + b;
    const int64_t total = comm.total();
    CHECK(at::equal(full_tensor(sum), expected));
    return total;
  };
  const int64_t usual = plan_of(b, {Shard(0)}).peak_bytes;
  CHECK(collectives() == 1);
  at::Tensor again;
  {
    RedistributeMemoryLimit limit(64 << 10);
    CHECK(plan_of(b, {Shard(0)}).peak_bytes == usual);
    CHECK(collectives() == 1);
    b.mul_(1);
    CommDebugMode comm;
    RedistributeMemoryLimit smaller(usual - 1);
    RedistributeMemoryLimit larger(1 << 30);  // does not loosen the outer one
    again = a + b;
    CHECK(comm.total() > 1);
    CHECK(plan_of(b, {Shard(0)}).peak_bytes < usual);
  }
  CHECK(at::equal(full_tensor(again), expected));
  CHECK(collectives() == 1);
}

TEST_CASE("the limit in an operator's error suffices for all its arguments") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor little = redistribute(distribute_tensor(float_numbers({1, 64}), mesh, {Replicate()}), {Partial()});
  const at::Tensor much = redistribute(distribute_tensor(float_numbers({64, 64}), mesh, {Replicate()}), {Partial()});
  const std::string error = [&] {
    RedistributeMemoryLimit limit(100);
    return error_of([&] { at::maximum(little, much); });
  }();
  CHECK_THAT(error, Contains("aten::maximum: argument 'other' has to go from P(sum) to"));
  RedistributeMemoryLimit enough(smallest_named(error));
  CHECK(
      at::equal(full_tensor(at::maximum(little, much)), at::maximum(float_numbers({1, 64}), float_numbers({64, 64}))));
}

TEST_CASE("an operator that no strategy keeps within a limit fails before anything is sent") {
  const DeviceMesh mesh = packing_mesh();
  const at::Tensor a = distribute_tensor(float_numbers({64, 64}), mesh, {Shard(0)});
  const at::Tensor b = distribute_tensor(float_numbers({64, 64}), mesh, {Shard(1)});
  CommDebugMode comm;
  {
    RedistributeMemoryLimit limit(1000);
    const std::string error = error_of([&] { at::Tensor sum = a + b; });
    CHECK_THAT(error, Contains("aten::add.Tensor: argument 'other'") || Contains("aten::add.Tensor: argument 'self'"));
    CHECK_THAT(error, Contains("max_bytes is 1000, but every route needs at least "));
    {
      RedistributeMemoryLimit nothing(1);
      CHECK_THAT(error_of([&] { at::Tensor sum = a + b; }), Contains("max_bytes is 1,"));
    }
    at::Tensor kept = a * 2;  // calls without communication work as usual
  }
  CHECK(comm.total() == 0);
  CHECK(at::equal(full_tensor(a + b), float_numbers({64, 64}) * 2));
}

TEST_CASE("a write to a copied view under a limit succeeds or changes nothing") {
  const DeviceMesh mesh = packing_mesh();
  const at::Tensor whole = float_numbers({16, 16});
  at::Tensor x = distribute_tensor(whole, mesh, {Shard(0)});
  at::Tensor rows = x.slice(0, 2, 9);  // its parts had to move
  {
    RedistributeMemoryLimit limit(8);
    CHECK_THAT(error_of([&] { rows.mul_(2); }), Contains("max_bytes is 8"));
  }
  CHECK(at::equal(full_tensor(x), whole));
  CHECK(at::equal(full_tensor(rows), whole.slice(0, 2, 9)));
  {
    RedistributeMemoryLimit limit(1 << 20);
    rows.mul_(2);
  }
  whole.slice(0, 2, 9).mul_(2);
  CHECK(at::equal(full_tensor(x), whole));
}

}  // namespace dtensor
