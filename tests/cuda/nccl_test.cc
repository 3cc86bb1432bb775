// World::from_env with NCCL, and World::local on several GPUs. Without GPUs: what a program with //:dtensor_nccl says
// then.
#include "comm/nccl.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/tempfile.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm_work.h"
#include "comm/communicator.h"
#include "dtensor/dtensor.h"
#include "mesh/world.h"
#include "processes/launch/launch_env.h"
#include "tests/cuda/collectives.h"
#include "tests/processes/ranks_of_exchange.h"

namespace dtensor {
using namespace internal;

namespace {

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

TEST_CASE("nccl: a program that links it has it") { CHECK_NOTHROW(nccl_functions()); }

TEST_CASE("nccl: a job of one rank makes every collective, and comparisons do not wait for the device") {
  if (fewer_gpus_than(1)) return;
  const World world = job_of_one();
  CHECK(world.name() == "processes(1, rank 0, nccl, cuda:0)");
  check_collectives(world, {1});
  const DeviceMesh mesh(world, {1});
  for (int i = 0; i < 150; ++i) world.communicator().barrier(call_on(mesh, {0}));
}

TEST_CASE("nccl: several all_reduces are under way at once, and each gives its sum when it has been waited for") {
  if (fewer_gpus_than(1)) return;
  const World world = job_of_one();
  const DeviceMesh mesh(world, {1});
  const auto options = at::TensorOptions().device(world.device(0));
  std::vector<std::shared_ptr<CommWork>> works(20);
  std::vector<at::Tensor> sums;
  for (int i = 0; i < 20; ++i) {
    CommCall call = call_on(mesh, {0});
    call.work = &works[i];
    const at::Tensor t = at::full({1 << 20}, i, options.dtype(i % 2 == 0 ? at::kFloat : at::kBFloat16));
    sums.push_back(world.communicator().all_reduce(call, {t}, ReduceOp::kSum)[0]);
  }  // the tensors of the caller are gone
  for (int i = 0; i < 20; ++i) {
    REQUIRE(works[i] != nullptr);
    works[i]->wait();
    CHECK(at::equal(sums[i], at::full_like(sums[i], i)));
  }
  CommCall call = call_on(mesh, {0});  // reduced as int32: waited for at once
  call.work = &works[0];
  works[0] = nullptr;
  const at::Tensor shorts = at::full({5}, 3, options.dtype(at::kShort));
  CHECK(at::equal(world.communicator().all_reduce(call, {shorts}, ReduceOp::kSum)[0], shorts));
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

TEST_CASE("nccl: an infinity on one GPU is found on all") {
  if (fewer_gpus_than(2)) return;
  const DeviceMesh mesh(World::local({c10::Device("cuda:0"), c10::Device("cuda:1")}), {2});
  for (const bool bad : {false, true}) {
    at::Tensor grad = at::full({4}, 2, at::TensorOptions(at::kFloat).device("cuda:0"));
    if (bad) grad[3] = INFINITY;
    const at::Tensor on_mesh = distribute_tensor(grad, mesh, {Shard(0)});
    at::Tensor found = at::zeros({1}, grad.options());
    at::_amp_foreach_non_finite_check_and_unscale_({on_mesh}, found, at::full({1}, 0.5, grad.options()));
    CHECK(found.item<float>() == (bad ? 1.f : 0.f));
    CHECK(full_tensor(on_mesh).cpu()[0].item<float>() == 1);
  }
}

TEST_CASE("nccl: parts that lie in order on a GPU need no buffer") {
  if (fewer_gpus_than(1)) return;
  for (const int64_t n : {2, 3}) {
    CAPTURE(n);
    const RanksOfExchange ranks = all_to_all_of_parts(n, c10::Device("cuda:0"));
    const RankPieces expected = ranks.expected();
    std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true);
    for (int64_t r = 0; r < n; ++r) {
      CHECK(is_memory_of(exchanges[r].send, ranks.inputs[r][0]));
      CHECK(is_memory_of(exchanges[r].receive, ranks.outputs[r][0]));
    }
    all_to_all(exchanges);
    check_results(ranks, expected, exchanges);
  }
}

TEST_CASE("nccl: collectives of a job are captured as a CUDA graph") {
  if (fewer_gpus_than(1)) return;
  const World world = job_of_one();
  const DeviceMesh mesh(world, {1});
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const auto one = at::full({1000}, 1, at::TensorOptions().device(world.device(0)));
  const auto sum = [&] { return world.communicator().all_reduce(call_on(mesh, {0}), {one}, ReduceOp::kSum)[0]; };
  sum();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  at::Tensor captured;
  for (int i = 0; i < 130; ++i) captured = sum();               // past two comparisons
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the watch looks
  graph.capture_end();
  graph.replay();
  CHECK(at::equal(captured.cpu(), one.cpu()));
  CHECK(at::equal(sum().cpu(), one.cpu()));  // the job lives
}

}  // namespace
}  // namespace dtensor
