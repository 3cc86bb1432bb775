// Measures the kernels of vocabulary-parallel cross entropy (dtensor::cross_entropy_part), forward and backward,
// compared with the same composed of ATen's operators: log_softmax of split rows and nll_loss of own targets.
//
//   ./bazelw run //benchmarks:cross_entropy
//
// Both run in turn, one thread each; a figure is the median of the ratios of calls that ran one after the other. Times
// are CPU time of the thread, so that other programs on the machine disturb less; with --device=cuda:0 those between
// events of the GPU.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "benchmarks/kernel_operators.h"
#include "benchmarks/measure.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, repetitions, 31, "calls of each kind that are timed");
ABSL_FLAG(std::string, device, "cpu",
          "where logits are, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD");

namespace {

using dtensor::benchmarks::median_microseconds;
using dtensor::benchmarks::median_ratio;
using dtensor::benchmarks::time_turns;

// A rank's part of the classes, the second of `parts`. Gates: at least so many times as fast as ATen's operators.
struct Case {
  int64_t rows, classes, parts;
  c10::ScalarType dtype;
  double forward_speedup, backward_speedup;
};

const std::vector<Case> kCases = {
    {512, 128256, 8, at::kFloat, 3, 2},
    {512, 128256, 8, at::kBFloat16, 3, 2},
};

// On a GPU.
const std::vector<Case> kGpuCases = {
    {16384, 128256, 8, at::kFloat, 3, 2},
    {16384, 128256, 8, at::kBFloat16, 3, 2},
};

c10::Device device() { return c10::Device(absl::GetFlag(FLAGS_device)); }

// Of the kernel, of ATen's operators.
using Calls = std::vector<std::function<void()>>;

// The medians of microseconds, and of the ratios of calls that ran one after the other.
struct Figures {
  double ours, theirs, speedup;
};

Figures measure(const Calls& calls) {
  const auto times = time_turns(calls, absl::GetFlag(FLAGS_repetitions), device());
  return {median_microseconds(times[0]), median_microseconds(times[1]), median_ratio(times[1], times[0])};
}

// Logits and targets of a part, and those of ATen's operators: counted from the part's first class.
struct Inputs {
  at::Tensor logits, target;
  int64_t offset, classes;
  c10::ScalarType computed;

  explicit Inputs(const Case& c)
      : logits(at::randn({c.rows, c.classes / c.parts}, at::TensorOptions().device(device())).to(c.dtype)),
        target(at::randint(c.classes, {c.rows}, at::TensorOptions(at::kLong).device(device()))),
        offset(c.classes / c.parts),
        classes(c.classes),
        computed(at::kFloat) {}

  at::Tensor own_target() const {
    const at::Tensor outside = target.lt(offset).logical_or(target.ge(offset + logits.size(1)));
    return (target - offset).masked_fill(outside, -100);
  }
};

Figures measure_forward(const Inputs& in) {
  const auto op = dtensor::benchmarks::cross_entropy_part();
  return measure({[&] { op.call(in.logits, in.target, std::nullopt, in.offset, in.classes, -100, 0); },
                  [&] {
                    const at::Tensor x = in.logits.to(in.computed), largest = x.amax({1}, true);
                    const at::Tensor sum = (x - largest).exp_().sum({1}, true);
                    const at::Tensor log = (x - largest).sub_(sum.log()).to(in.logits.scalar_type());
                    at::nll_loss_forward(log, in.own_target(), {}, at::Reduction::Sum, -100);
                  }});
}

Figures measure_backward(const Inputs& in) {
  const auto op = dtensor::benchmarks::cross_entropy_part_backward();
  const at::Tensor log = at::log_softmax(in.logits, 1), max = in.logits.to(in.computed).amax(1);
  const at::Tensor one = at::ones({}, in.logits.options()),
                   total = at::full({}, in.logits.size(0), in.logits.options());
  const at::Tensor each = at::full({in.logits.size(0)}, 1.0 / static_cast<double>(in.logits.size(0)),
                                   in.logits.options().dtype(in.computed));
  const at::Tensor grad = at::stack({each, -each});
  return measure({[&] { op.call(grad, max, in.logits, in.target, std::nullopt, in.offset, in.classes, -100, 0); },
                  [&] {
                    const at::Tensor rows =
                        at::nll_loss_backward(one, log, in.own_target(), {}, at::Reduction::Mean, -100, total);
                    const at::Tensor sums = -each.unsqueeze(1);
                    const at::Tensor g = rows.to(in.computed), output = log.to(in.computed);
                    (g - output.exp() * sums).to(in.logits.scalar_type());
                  }});
}

int run() {
  dtensor::benchmarks::keep_released_memory();
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  dtensor::benchmarks::Gates gates;
  for (const Case& c : device().is_cpu() ? kCases : kGpuCases) {
    const Inputs in(c);
    const std::string what = std::to_string(c.rows) + " rows, classes 1/" + std::to_string(c.parts) + " of " +
                             std::to_string(c.classes) + " " + c10::toString(c.dtype);
    const auto report = [&](const char* direction, const Figures& f, double speedup) {
      const dtensor::benchmarks::Comparison row = {.workload = what + ", " + direction,
                                                   .peer = "ATen's operators",
                                                   .unit = "us",
                                                   .theirs = f.theirs,
                                                   .ours = f.ours};
      gates.at_least(row, f.speedup, speedup);
    };
    report("forward", measure_forward(in), c.forward_speedup);
    report("backward", measure_backward(in), c.backward_speedup);
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("cross_entropy", "Times the kernels of vocabulary-parallel cross entropy.", argc,
                                     argv, run);
}
