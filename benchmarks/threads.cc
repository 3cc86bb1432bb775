// Measures the library's own CPU kernels on all threads of LibTorch next to one.
//
//   ./bazelw run //benchmarks:threads
#include <ATen/Parallel.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/kernel_operators.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

// `gate`: of the time on all threads / on one; 0: none.
void compare(const std::string& what, double gate, const std::function<void()>& call, Gates& gates) {
  const int all = at::get_num_threads();
  const auto on = [&](int threads) {
    return [&call, threads] {
      at::set_num_threads(threads);
      call();
    };
  };
  const PairedTimes times = time_pairs(on(all), on(1), 20);
  at::set_num_threads(all);
  const Comparison row = compared(absl::StrCat(what, ", on ", all, " threads"), "on one", times);
  gate > 0 ? gates.at_most(row, times.ratio, gate) : gates.note(row, times.ratio);
}

// A rank has a quarter of the table's rows. No gates: memory limits how much faster threads are.
void compare_embeddings(Gates& gates) {
  constexpr int64_t kIds = 8192, kRows = 32000, kOwn = kRows / 4, kFeatures = 1024;
  const at::Tensor ids = at::randint(kRows, {kIds}, at::kLong);
  const at::Tensor part = at::rand({kOwn, kFeatures}), grad = at::rand({kIds, kFeatures});
  const auto look_up = masked_embedding();
  compare(
      "lookup of 8192 ids, rows 1/4 of 32000 x 1024", 0, [&] { look_up.call(part, ids, kOwn, kRows, -1); }, gates);
  const auto backward = masked_embedding_backward();
  compare(
      "its gradient", 0, [&] { backward.call(grad, ids, kOwn, kOwn, kRows, -1); }, gates);
}

void compare_cross_entropy(Gates& gates) {
  constexpr int64_t kRows = 512, kClasses = 128256, kOwn = kClasses / 8;
  const at::Tensor logits = at::randn({kRows, kOwn}), target = at::randint(kClasses, {kRows}, at::kLong);
  const at::Tensor grad = at::randn({2, kRows}), max = logits.amax(1);
  const auto forward = cross_entropy_part();
  compare(
      "cross entropy of 512 rows, classes 1/8 of 128256", 0.75,
      [&] { forward.call(logits, target, std::nullopt, 0, kClasses, -100, 0); }, gates);
  const auto backward = cross_entropy_part_backward();
  compare(
      "its gradient", 0.75, [&] { backward.call(grad, max, logits, target, std::nullopt, 0, kClasses, -100, 0); },
      gates);
}

void compare_random_numbers(Gates& gates) {
  const DeviceMesh mesh(World::local(1), {1}, {"x"});
  at::Tensor t = from_local({at::rand({1024, 1024})}, mesh, {Shard(0)});
  compare(
      "normal_() of 1024 x 1024", 0.75, [&] { t.normal_(); }, gates);
}

int run() {
  keep_released_memory();
  const c10::InferenceMode inference;
  Gates gates;
  if (at::get_num_threads() == 1) {
    gates.skip("kernels on all threads next to one", "LibTorch has one thread here");
    return gates.close();
  }
  compare_embeddings(gates);
  compare_cross_entropy(gates);
  compare_random_numbers(gates);
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("threads", "Times the library's CPU kernels on all threads next to one.", argc,
                                     argv, dtensor::benchmarks::run);
}
