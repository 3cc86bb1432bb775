// Measures a step of AdamW, and clip_grad_norm_(), on many distributed parameters next to the same on plain ones: on
// parameters of the size that a rank has of a small model, and on so small ones that calls are all that takes time.
//
//   ./bazelw run //benchmarks:optimizer
//
// The process owns one of eight ranks, whose local tensors are as large as the plain ones. Gradients have the layouts
// of their parameters, so that only the norm communicates, and that moves nothing here.
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, parameters, 300, "of the model");
ABSL_FLAG(bool, count, false, "one call of each step, for instructions.py");

namespace dtensor::benchmarks {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kTiny = 16, kSmall = 256;
constexpr double kLearningRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;

// Parameters with gradients, and AdamW's state.
struct Parameters {
  Tensors params, grads, means, squares, steps;
};

// Of size x size; plain ones if `mesh` has no world, else in the four layouts that parameters of models have.
Parameters make_parameters(const DeviceMesh& mesh, int64_t size) {
  const std::vector<Placements> layouts = {
      {Replicate(), Replicate()}, {Shard(0), Replicate()}, {Replicate(), Shard(1)}, {Shard(0), Shard(1)}};
  Parameters p;
  for (size_t i = 0; i < static_cast<size_t>(absl::GetFlag(FLAGS_parameters)); ++i) {
    const auto make = [&] {
      const at::Tensor t = at::randn({size, size});
      return mesh.defined() ? from_local({t}, mesh, layouts[i % layouts.size()]) : t;
    };
    p.params.push_back(make().requires_grad_());
    p.grads.push_back(make());
    p.means.push_back(at::zeros_like(p.grads.back()));
    p.squares.push_back(at::zeros_like(p.grads.back()));
    p.steps.push_back(at::ones({}, at::kFloat));
    p.params.back().mutable_grad() = p.grads.back();
  }
  return p;
}

using Step = std::function<void()>;

// LibTorch's class, which has several operators per parameter.
Step plain_step(const Parameters& p) {
  return [optimizer = std::make_shared<torch::optim::AdamW>(p.params, kLearningRate)] { optimizer->step(); };
}

// The operators of Python's AdamW(foreach=True), of which each takes all parameters.
Step foreach_step(const Parameters& p) {
  return [p] {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(p.steps, 1);
    at::_foreach_mul_(p.params, 1 - kLearningRate * kDecay);
    at::_foreach_lerp_(p.means, p.grads, 1 - kBeta1);
    at::_foreach_mul_(p.squares, kBeta2);
    at::_foreach_addcmul_(p.squares, p.grads, p.grads, 1 - kBeta2);
    const Tensors roots = at::_foreach_sqrt(p.squares);
    at::_foreach_div_(roots, 0.5);
    at::_foreach_add_(roots, kEps);
    at::_foreach_addcdiv_(p.params, p.means, roots, -kLearningRate);
  };
}

// One operator for everything.
Step fused_step(const Parameters& p) {
  return [p] {
    const at::NoGradGuard no_grad;
    at::_fused_adamw_(p.params, p.grads, p.means, p.squares, {}, p.steps, kLearningRate, kBeta1, kBeta2, kDecay, kEps,
                      /*amsgrad=*/false, /*maximize=*/false);
  };
}

Step clip(const Parameters& p) {
  return [p] { torch::nn::utils::clip_grad_norm_(p.params, /*max_norm=*/1.0); };
}

// `gate`: of ours / plain; 0: none.
void measure(const std::string& what, Step (*make)(const Parameters&), const DeviceMesh& mesh, int64_t size,
             double gate, Gates& gates) {
  const Step ours = make(make_parameters(mesh, size)), plain = make(make_parameters({}, size));
  const std::string workload =
      absl::StrCat(what, ", ", absl::GetFlag(FLAGS_parameters), " parameters of ", size, " x ", size);
  for (int i = 0; i < 2; ++i) {
    ours();
    plain();  // makes its state now, before memory is measured
  }
  if (absl::GetFlag(FLAGS_count)) {
    count_instructions("plain " + what, plain);
    return count_instructions(what, ours);
  }
  const uint64_t misses = strategy_cache(mesh.world()).stats().misses;
  const int64_t bytes = resident_bytes();
  const PairedTimes times = time_pairs(ours, plain, size > kTiny ? 15 : 50);
  const Comparison row = compared(workload, "plain LibTorch", times);
  gate > 0 ? gates.at_most(row, times.ratio, gate) : gates.note(row, times.ratio);
  gates.at_most(workload + ": misses of the strategy cache after two steps",
                static_cast<double>(strategy_cache(mesh.world()).stats().misses - misses), 0);
  gates.at_most(workload + ": memory after these steps / after two",
                static_cast<double>(resident_bytes()) / static_cast<double>(bytes), 1.05);
}

int run() {
  at::set_num_threads(1);
  const DeviceMesh mesh(World::fake(8, 0), {2, 4}, {"dp", "tp"});
  Gates gates;
  measure("AdamW, torch::optim", plain_step, mesh, kTiny, 0, gates);
  measure("AdamW, _foreach", foreach_step, mesh, kTiny, 1.1, gates);
  measure("AdamW, _fused_adamw_", fused_step, mesh, kTiny, 0, gates);
  measure("clip_grad_norm_", clip, mesh, kTiny, 0, gates);
  if (!absl::GetFlag(FLAGS_count)) {
    measure("AdamW, torch::optim", plain_step, mesh, kSmall, 1.1, gates);
    measure("AdamW, _foreach", foreach_step, mesh, kSmall, 1.1, gates);
    measure("AdamW, _fused_adamw_", fused_step, mesh, kSmall, 1.1, gates);
    measure("clip_grad_norm_", clip, mesh, kSmall, 1.1, gates);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("optimizer", "Times a step of AdamW on distributed parameters.", argc, argv,
                                     dtensor::benchmarks::run);
}
