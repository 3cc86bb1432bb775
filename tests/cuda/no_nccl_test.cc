// A program that asks for NCCL and does not have it: not linked, or built without CUDA.
#include <c10/util/tempfile.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/nccl.h"
#include "mesh/world.h"
#include "processes/c10d/c10d_communicator.h"
#include "processes/job/job.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

constexpr char kAdvice[] = "link //:dtensor_nccl, built where a CUDA toolkit is, or use gloo with device cpu";

TEST_CASE("no nccl: asking for it is an error that says what would work") {
  CHECK(find_nccl_functions() == nullptr);
  CHECK_THROWS_WITH(nccl_functions(),
                    Contains("World: the backend is nccl, but this program has no NCCL") && Contains(kAdvice));
}

TEST_CASE("no nccl: a communicator is refused before any rank waits for it") {
  auto store = c10::make_intrusive<c10d::FileStore>(c10::make_tempfile("dtensor-no-nccl-").name, 2);
  auto job = std::make_shared<Job>(store, 0, 2, std::chrono::seconds(5));
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(make_c10d_communicator(job, "nccl", c10::Device("cuda:0")), Contains(kAdvice));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  CHECK_THROWS_WITH(make_c10d_communicator(job, "mpi", c10::Device("cpu")), Contains("it must be gloo or nccl"));
}

// Several GPUs of one process need no NCCL: their tensors are copied. Making the world touches no device.
TEST_CASE("no nccl: World::local with several GPUs goes on without it") {
  const World world = World::local({c10::Device("cuda:0"), c10::Device("cuda:1")});
  CHECK(world.name() == "local(2, cuda)");
}

}  // namespace
}  // namespace dtensor
