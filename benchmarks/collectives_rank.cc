#include "benchmarks/collectives_rank.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "benchmarks/measure.h"
#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace dtensor::benchmarks {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

at::Tensor ones(int64_t bytes) { return at::ones({bytes / 4}, at::kFloat); }

void print_times(bool first_rank, const std::function<std::function<void()>(int64_t bytes)>& all_reduce_of) {
  for (int64_t bytes : sizes_in_bytes()) {
    const double seconds = time_of(all_reduce_of(bytes), calls_for(bytes));
    if (first_rank) std::printf("%lld %.9f\n", static_cast<long long>(bytes), seconds);
  }
  std::fflush(stdout);
}

int number(const char* variable) {
  const char* text = std::getenv(variable);
  TORCH_CHECK(text != nullptr, variable, " is not set; tools/launch sets it");
  return std::atoi(text);
}

}  // namespace

const std::vector<int64_t>& sizes_in_bytes() {
  static const std::vector<int64_t> list = {4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  return list;
}

int calls_for(int64_t bytes) { return bytes <= 64 << 10 ? 300 : bytes <= 1 << 20 ? 100 : 9; }

double time_of(const std::function<void()>& call, int calls) {
  call();
  call();
  std::vector<double> times;
  for (double spent = 0; calls > 0 ? static_cast<int>(times.size()) < calls : spent < 0.1 || times.size() < 9;
       spent += times.back()) {
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(std::move(times));
}

int run_gloo_rank() {
  const int rank = number("RANK"), size = number("WORLD_SIZE");
  const char* store_path = std::getenv("DTENSOR_BENCHMARK_STORE");
  TORCH_CHECK(store_path != nullptr, "DTENSOR_BENCHMARK_STORE is not set");
  auto store = c10::make_intrusive<c10d::FileStore>(store_path, size);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  c10d::ProcessGroupGloo gloo(store, rank, size, options);
  print_times(rank == 0, [&](int64_t bytes) {
    std::vector<at::Tensor> tensors = {ones(bytes)};
    return [&gloo, tensors]() mutable { gloo.allreduce(tensors)->wait(); };
  });
  return 0;
}

int run_ours_rank() {
  keep_released_memory();
  const World world = World::from_env();
  const DeviceMesh mesh(world, {world.size()}, {"x"});
  print_times(world.owned_ranks().front() == 0, [&](int64_t bytes) {
    return [&mesh, inputs = RankTensors{ones(bytes)}] {
      CommCall call;
      call.group = &mesh.get_group(0);
      call.ranks = mesh.local_ranks();
      mesh.world().communicator().all_reduce(call, inputs, ReduceOp::kSum);
    };
  });
  return 0;
}

// Open MPI by its symbols: its headers are in a package of their own, and this benchmark must build without it.
int run_mpi_rank() {
  void* const library = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  TORCH_CHECK(library != nullptr, "no libmpi.so.40: ", ::dlerror());
  const auto symbol = [&](const char* name) {
    void* const address = ::dlsym(library, name);
    TORCH_CHECK(address != nullptr, "libmpi.so.40 lacks ", name);
    return address;
  };
  const auto init = reinterpret_cast<int (*)(int*, char***)>(symbol("MPI_Init"));
  const auto finalize = reinterpret_cast<int (*)()>(symbol("MPI_Finalize"));
  const auto comm_rank = reinterpret_cast<int (*)(void*, int*)>(symbol("MPI_Comm_rank"));
  const auto all_reduce =
      reinterpret_cast<int (*)(const void*, void*, int, void*, void*, void*)>(symbol("MPI_Allreduce"));
  void* const world = symbol("ompi_mpi_comm_world");
  void* const floats = symbol("ompi_mpi_float");
  void* const sum = symbol("ompi_mpi_op_sum");
  TORCH_CHECK(init(nullptr, nullptr) == 0, "MPI_Init failed");
  int rank = 0;
  comm_rank(world, &rank);
  print_times(rank == 0, [&](int64_t bytes) {
    return [=, in = ones(bytes), out = ones(bytes)] {
      TORCH_CHECK(all_reduce(in.const_data_ptr(), out.mutable_data_ptr(), static_cast<int>(in.numel()), floats, sum,
                             world) == 0,
                  "MPI_Allreduce failed");
    };
  });
  finalize();
  return 0;
}

}  // namespace dtensor::benchmarks
