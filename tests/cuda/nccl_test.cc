// World::from_env with NCCL, and World::local on several GPUs. Without GPUs: what a program with //:dtensor_nccl says then.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/util/tempfile.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "mesh/communicator.h"
#include "mesh/world.h"
#include "processes/launch_env.h"
#include "processes/nccl_backend.h"
#include "tests/mesh/test_ranks.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kHalf,         at::kBFloat16,     at::kLong,
                                      at::kInt,    at::kShort, at::kChar,         at::kByte,         at::kBool,
                                      at::kUInt16, at::kUInt32, at::kUInt64,      at::kComplexFloat, at::kComplexDouble};

int64_t gpus() { return at::getNumGPUs(); }

bool fewer_gpus_than(int64_t n) {
  if (gpus() >= n) return false;
  WARN("SKIPPED: needs " << n << " CUDA device" << (n == 1 ? "" : "s") << ", here are " << gpus());
  return true;
}

// One rank of a job of one, connected by NCCL all the same.
World job_of_one() {
  LaunchOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.local_rank = 0;
  options.backend = "nccl";
  options.store = "file://" + c10::make_tempfile("dtensor-nccl-").name + ".store";
  options.timeout = std::chrono::seconds(60);
  return World::from_env(options);
}

std::vector<ReduceOp> reduce_ops(at::ScalarType dtype) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kProduct};
  if (!c10::isComplexType(dtype)) ops.insert(ops.end(), {ReduceOp::kMin, ReduceOp::kMax});
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) ops.push_back(ReduceOp::kAvg);
  return ops;
}

// Small whole numbers are exact in every dtype and order; means are not.
bool alike(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.cpu(), y = b.cpu();
  if (op != ReduceOp::kAvg) return at::equal(x, y);
  return at::allclose(x.to(at::kComplexDouble), y.to(at::kComplexDouble), 1e-2, 1e-2);
}

RankPieces as_pieces(const RankTensors& tensors) {
  RankPieces pieces;
  for (const at::Tensor& t : tensors) pieces.push_back({t});
  return pieces;
}

// What `body` gives on `world` is what it gives on as many ranks on CPU. `body` makes tensors on the given devices.
using Body = std::function<RankPieces(const CommCall&, Communicator&, const std::function<at::Tensor(at::Tensor, int64_t)>&)>;
void check_same(const World& world, const std::vector<int64_t>& shape, int64_t dim, ReduceOp op, const Body& body) {
  const DeviceMesh mesh(world, shape), twin(World::local(world.size()), shape);
  const RankPieces here = body(call_on(mesh, {dim}), world.communicator(),
                               [&](at::Tensor t, int64_t rank) { return t.to(world.device(rank)); });
  const RankPieces expected = body(call_on(twin, {dim}), twin.world().communicator(), [](at::Tensor t, int64_t) { return t; });
  REQUIRE(here.size() == expected.size());
  for (size_t i = 0; i < here.size(); ++i) {
    REQUIRE(here[i].size() == expected[i].size());
    for (size_t k = 0; k < here[i].size(); ++k) {
      INFO("tensor " << k << " of rank " << mesh.local_ranks()[i]);
      CHECK(here[i][k].device() == world.device(mesh.local_ranks()[i]));
      CHECK(alike(here[i][k], expected[i][k], op));
    }
  }
}

void check_collectives(const World& world, const std::vector<int64_t>& shape) {
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
    for (at::ScalarType dtype : kDtypes) {
      for (ReduceOp op : reduce_ops(dtype)) {
        CAPTURE(world.name(), shape, dim, c10::toString(dtype), to_string(op));
        check_same(world, shape, dim, op, [&](const CommCall& call, Communicator& comm, const auto& on) {
          RankPieces inputs;
          for (int64_t rank : call.ranks) {
            inputs.push_back({on(values({3, 5}, dtype, rank), rank), on(values({0, 2}, dtype, rank), rank),
                              on(values({4, 3}, dtype, rank), rank).t()});
          }
          return comm.all_reduce_many(call, inputs, op);
        });
        for (const bool even : {true, false}) {
          check_same(world, shape, dim, op, [&](const CommCall& call, Communicator& comm, const auto& on) {
            RankPieces inputs;
            for (int64_t rank : call.ranks) {
              auto& pieces = inputs.emplace_back();
              for (int64_t p = 0; p < call.group->size; ++p) pieces.push_back(on(values({even ? 3 : p, 2}, dtype, rank + p), rank));
            }
            return as_pieces(comm.reduce_scatter(call, inputs, op));
          });
        }
      }
      CAPTURE(world.name(), shape, dim, c10::toString(dtype));
      check_same(world, shape, dim, ReduceOp::kSum, [&](CommCall call, Communicator& comm, const auto& on) {
        RankTensors inputs;
        for (int64_t rank : call.ranks) {
          inputs.push_back(on(values({call.group->position_of[rank], 3}, dtype, rank), rank));
          auto& shapes = call.receive_shapes.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) shapes.push_back({p, 3});
        }
        return comm.all_gather(call, inputs);
      });
      check_same(world, shape, dim, ReduceOp::kSum, [&](CommCall call, Communicator& comm, const auto& on) {
        RankPieces inputs;
        for (int64_t rank : call.ranks) {
          auto& pieces = inputs.emplace_back();
          auto& shapes = call.receive_shapes.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) {
            pieces.push_back(on(values({call.group->position_of[rank], p}, dtype, 10 * rank + p), rank).t());  // not contiguous
            shapes.push_back({call.group->position_of[rank], p});
          }
        }
        return comm.all_to_all(call, inputs);
      });
      check_same(world, shape, dim, ReduceOp::kSum, [&](const CommCall& call, Communicator& comm, const auto& on) {
        RankTensors inputs;
        for (int64_t rank : call.ranks) inputs.push_back(on(values({4, 2}, dtype, rank), rank));
        return as_pieces(comm.broadcast(call, inputs, call.group->size - 1));
      });
    }
  }
}

TEST_CASE("nccl: a program that links it has it") { CHECK_NOTHROW(check_nccl_backend()); }

TEST_CASE("nccl: a job of one rank makes every collective, and comparisons do not wait for the device") {
  if (fewer_gpus_than(1)) return;
  const World world = job_of_one();
  CHECK(world.name() == "processes(1, rank 0, nccl, cuda:0)");
  check_collectives(world, {1});
  const DeviceMesh mesh(world, {1});
  for (int i = 0; i < 150; ++i) world.communicator().barrier(call_on(mesh, {0}));
}

TEST_CASE("nccl: several worlds in a row and at once, and tensors outlive them") {
  if (fewer_gpus_than(1)) return;
  at::Tensor sum;
  for (int i = 0; i < 3; ++i) {
    const World a = job_of_one(), b = job_of_one();
    for (const World& world : {a, b}) {
      const DeviceMesh mesh(world, {1});
      const auto one = at::full({1000}, i, at::TensorOptions().device(world.device(0)));
      sum = world.communicator().all_reduce(call_on(mesh, {0}), {one}, ReduceOp::kSum)[0];
    }
    CHECK(at::equal(sum.cpu(), at::full({1000}, i)));
  }
}

TEST_CASE("nccl: ranks that share a GPU exchange by copies") {
  if (fewer_gpus_than(1)) return;
  check_collectives(World::local(4, c10::Device("cuda:0")), {2, 2});
}

TEST_CASE("nccl: World::local on several GPUs") {
  if (fewer_gpus_than(2)) return;
  check_collectives(World::local({c10::Device("cuda:0"), c10::Device("cuda:1")}), {2});
}

TEST_CASE("nccl: World::local where some ranks share a GPU and some do not") {
  if (fewer_gpus_than(2)) return;
  const c10::Device a("cuda:0"), b("cuda:1");
  check_collectives(World::local({a, b, a, b}), {2, 2});  // along the last dim NCCL, along the first copies
  check_collectives(World::local({a, a, b}), {3});
}

TEST_CASE("nccl: World::local on four GPUs, in groups") {
  if (fewer_gpus_than(4)) return;
  std::vector<c10::Device> devices;
  for (int i = 0; i < 4; ++i) devices.emplace_back(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(i));
  check_collectives(World::local(devices), {2, 2});
  check_collectives(World::local(devices), {4});
}

}  // namespace
}  // namespace dtensor
