// A job that goes wrong: fault_program FAULT. Rank 1 does what FAULT says at its fourth collective; what the others report is what
// faults_test.sh looks at. Every rank ends with 0 only if nothing went wrong.
#include <ATen/ops/full.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "dtensor/redistribute.h"
#include "processes/launch_env.h"

namespace dtensor {
namespace {

int run(const std::string& fault) {
  const World world = World::from_env();
  const int64_t rank = world.owned_ranks()[0];
  const DeviceMesh mesh(world, {world.size()}, {"tp"});
  const auto sum = [&](std::vector<int64_t> shape, at::ScalarType dtype) {
    const auto part = at::full(shape, static_cast<double>(rank + 1), dtype);
    FromLocalOptions options;
    options.shape = shape;
    const auto x = from_local({part}, mesh, {Partial()}, options);
    return to_local(redistribute(x, {Replicate()}))[0].sum().item<double>();
  };
  const double good = sum({4}, at::kFloat);
  for (int i = 0; i < 2; ++i) sum({4}, at::kFloat);

  const bool faulty = rank == 1;
  if (faulty) std::fprintf(stderr, "fault fires: %s\n", fault.c_str());
  double result = 0;
  if (!faulty || fault == "none") {
    result = sum({4}, at::kFloat);
  } else if (fault == "shape") {
    result = sum({8}, at::kFloat);
  } else if (fault == "dtype") {
    result = sum({4}, at::kInt);
  } else if (fault == "collective") {
    FromLocalOptions options;
    options.shape = std::vector<int64_t>{world.size()};
    const auto x = from_local({at::full({1}, 1.0)}, mesh, {Shard(0)}, options);
    result = to_local(redistribute(x, {Replicate()}))[0].sum().item<double>();
  } else if (fault == "missing") {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  } else if (fault == "slow") {
    std::this_thread::sleep_for(std::chrono::seconds(8));
    result = sum({4}, at::kFloat);
  } else if (fault == "throw") {
    throw std::runtime_error("the disk is full");
  } else if (fault == "uncaught") {
    std::thread([] { throw std::runtime_error("the disk is full"); }).join();
  } else if (fault == "sigkill") {
    raise(SIGKILL);
  } else if (fault == "sigstop") {
    raise(SIGSTOP);
  } else if (fault == "exit") {
    _exit(0);
  } else if (fault == "leave") {
    return 0;
  }
  // A sum that is wrong is the worst that can happen: nobody would know.
  if (result != good) {
    std::fprintf(stderr, "WRONG SUM %g instead of %g\n", result, good);
    return 3;
  }
  std::printf("fine\n");
  return 0;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  try {
    return dtensor::run(argc > 1 ? argv[1] : "none");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
