// Measures the machine, so that figures of two machines, or of one on two days, can be compared.
//
//   ./bazelw run //benchmarks:machine
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

double seconds(const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return median(times);
}

// A chain in which each step needs the one before it.
uint64_t multiply_and_add(int64_t steps) {
  uint64_t x = 1;
  for (int64_t i = 0; i < steps; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(x));
  }
  return x;
}

int run() {
  at::set_num_threads(1);
  Gates gates;
  const auto show = [&](const std::string& what, double value) { gates.note({.workload = what}, value); };
  show("processors", std::thread::hardware_concurrency());
  show("ns of a multiplication and addition that need the ones before",
       seconds([] { multiply_and_add(1'000'000); }) * 1e3);
  const at::Tensor a = at::rand({1024, 1024}), b = at::rand({1024, 1024});
  show("GFLOP/s of mm of 1024 x 1024, one thread", 2 * 1.024 * 1.024 * 1.024 / seconds([&] { at::mm(a, b); }));
  const std::vector<char> from(size_t{64} << 20, 1);
  std::vector<char> to(from.size());
  show("GB/s of memcpy of 64 MiB, bytes copied",
       static_cast<double>(from.size()) * 1e-9 / seconds([&] { std::memcpy(to.data(), from.data(), from.size()); }));
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("machine", "Measures the machine.", argc, argv, dtensor::benchmarks::run);
}
