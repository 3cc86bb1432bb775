// Measures the kernels of vocabulary-parallel embeddings and bags (dtensor::masked_embedding, masked_embedding_bag),
// forward and backward, compared with the same composed of ATen's operators, and with the memory that must be read and
// written.
//
//   ./bazelw run //benchmarks:embedding
//
// The three run in turn, one thread each; a figure is the median of the ratios of calls that ran one after the other.
// Times are CPU time of the thread, so that other programs on the machine disturb less; with --device=cuda:0 those
// between events of the GPU.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_dense_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "benchmarks/kernel_operators.h"
#include "benchmarks/measure.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, repetitions, 31, "calls of each kind that are timed");
ABSL_FLAG(std::string, device, "cpu",
          "where tables are, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD");

namespace {

using dtensor::benchmarks::median_microseconds;
using dtensor::benchmarks::median_ratio;
using dtensor::benchmarks::operator_of;
using dtensor::benchmarks::time_turns;

// A rank's part of a table, the second of `parts`. Gates: at least so many times as fast as ATen's operators, and at
// most so many times the time of the memory alone (1.176 is 85 % of its bandwidth); 0: no gate. Memory limits only
// results larger than the caches, and where it does, ATen's backward takes less than 1.8 times its time.
struct Case {
  int64_t ids, rows, parts, features;
  c10::ScalarType dtype;
  double forward_speedup, forward_memory, backward_speedup, backward_memory;
};

// On a GPU.
const std::vector<Case> kGpuCases = {
    {16384, 128256, 8, 4096, at::kBFloat16, 3, 1.176, 3, 0},
    {16384, 128256, 8, 4096, at::kFloat, 3, 1.176, 3, 0},
    {65536, 50304, 4, 64, at::kBFloat16, 0, 0, 0, 0},
};

const std::vector<Case> kCases = {
    {8192, 128000, 8, 1024, at::kFloat, 4, 1.2, 0, 1.3}, {8192, 32000, 4, 1024, at::kBFloat16, 4, 1.2, 0, 1.3},
    {65536, 50304, 4, 64, at::kBFloat16, 4, 0, 1.8, 0},  {16384, 50304, 4, 64, at::kFloat, 0, 0, 1.8, 0},
    {1024, 32000, 4, 64, at::kFloat, 4, 0, 0, 0},
};

// Tokens of decoding, one of each sequence, forward alone. The ids are of one part after the other, the own one first.
const std::vector<Case> kDecodeCases = {
    {1, 128256, 8, 4096, at::kBFloat16, 4, 0, 0, 0},
    {8, 128256, 8, 4096, at::kBFloat16, 4, 0, 0, 0},
    {64, 128256, 8, 4096, at::kBFloat16, 4, 0, 0, 0},
};

// As Case, for bags of `ids_per_bag` ids each. No gates: where the rows are larger than the caches, their memory limits
// both.
struct BagCase {
  int64_t bags, ids_per_bag, rows, parts, features;
  c10::ScalarType dtype;
};

const std::vector<BagCase> kBagCases = {
    {4096, 20, 1000000, 4, 64, at::kFloat},
    {4096, 20, 1000000, 4, 64, at::kBFloat16},
    {2048, 40, 100000, 8, 128, at::kFloat},
    {256, 8, 50000, 4, 16, at::kFloat},
};

c10::Device device() { return c10::Device(absl::GetFlag(FLAGS_device)); }

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::rand(sizes, at::TensorOptions().device(device())).to(dtype);
}

// Of the kernel, of ATen's operators, of the memory alone.
using Calls = std::vector<std::function<void()>>;

// The medians of microseconds, and of the ratios of calls that ran one after the other.
struct Figures {
  double ours, theirs, limit;  // of the kernel, of ATen's operators, of the memory alone
  double speedup, memory;      // theirs / ours, ours / limit
};

Figures measure(const Calls& calls) {
  const auto times = time_turns(calls, absl::GetFlag(FLAGS_repetitions), device());
  const auto &ours = times[0], &theirs = times[1], &memory = times[2];
  return {median_microseconds(ours), median_microseconds(theirs), median_microseconds(memory),
          median_ratio(theirs, ours), median_ratio(ours, memory)};
}

Figures measure_forward(const Case& c, const at::Tensor& ids, int64_t own_ids) {
  const int64_t size = c.rows / c.parts, offset = size;
  const at::Tensor part = random({size, c.features}, c.dtype), source = random({c.ids, c.features}, c.dtype);
  const auto op = dtensor::benchmarks::masked_embedding();
  return measure({[&] { op.call(part, ids, offset, c.rows, -1); },
                  [&] {
                    const at::Tensor mask = at::bitwise_or(ids.lt(offset), ids.ge(offset + size));
                    at::embedding(part, ids.sub(offset).masked_fill_(mask, 0)).masked_fill_(mask.unsqueeze(-1), 0);
                  },
                  [&] {
                    const at::Tensor out = at::empty_like(source);
                    out.narrow(0, 0, own_ids).copy_(source.narrow(0, 0, own_ids));
                    out.narrow(0, own_ids, c.ids - own_ids).zero_();
                  }});
}

Figures measure_backward(const Case& c, const at::Tensor& ids, int64_t own_ids) {
  const int64_t size = c.rows / c.parts, offset = size;
  const at::Tensor grad = random({c.ids, c.features}, c.dtype), part = random({size, c.features}, c.dtype);
  const auto op = dtensor::benchmarks::masked_embedding_backward();
  return measure({[&] { op.call(grad, ids, offset, size, c.rows, -1); },
                  [&] {
                    const at::Tensor mask = ids.lt(offset).logical_or_(ids.ge(offset + size)).logical_or_(ids.eq(-1));
                    at::embedding_dense_backward(grad, ids.sub(offset).masked_fill_(mask, size), size + 1, size, false);
                  },
                  [&] {
                    at::empty_like(part).zero_();
                    grad.narrow(0, 0, own_ids).sum();
                  }});
}

using BagLookupOp = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                               const at::Tensor&, int64_t, int64_t,
                                                                               int64_t,
                                                                               const std::optional<at::Tensor>&, bool,
                                                                               int64_t);
using BagGradientOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, int64_t, int64_t, int64_t, int64_t,
                                 const std::optional<at::Tensor>&, int64_t);

// Sums of bags: forward and backward.
std::array<Figures, 2> measure_bags(const BagCase& c) {
  const int64_t size = c.rows / c.parts, offset = size, num_ids = c.bags * c.ids_per_bag;
  const auto integers = at::TensorOptions(at::kLong).device(device());
  const at::Tensor ids = at::randint(c.rows, {num_ids}, integers),
                   offsets = at::arange(0, num_ids, c.ids_per_bag, integers),
                   part = random({size, c.features}, c.dtype), grad = random({c.bags, c.features}, c.dtype);
  const int64_t own_ids = ids.ge(offset).logical_and(ids.lt(offset + size)).sum().item<int64_t>();
  const auto lookup = operator_of<BagLookupOp>("dtensor::masked_embedding_bag");
  const auto gradient = operator_of<BagGradientOp>("dtensor::masked_embedding_bag_backward");
  at::Tensor result, bag_of_id, bag_size, max_ids;
  std::tie(result, bag_of_id, bag_size, max_ids) = lookup.call(part, ids, offsets, offset, c.rows, 0, {}, false, -1);
  const Figures forward = measure({[&] { lookup.call(part, ids, offsets, offset, c.rows, 0, {}, false, -1); },
                                   [&] {
                                     const at::Tensor mask = at::bitwise_or(ids.lt(offset), ids.ge(offset + size));
                                     at::_embedding_bag(part, ids.sub(offset).masked_fill_(mask, 0), offsets, false, 0,
                                                        false, mask.logical_not().to(c.dtype));
                                   },
                                   [&] {
                                     part.narrow(0, 0, own_ids).sum();
                                     at::empty_like(grad).copy_(grad);
                                   }});
  const Figures backward =
      measure({[&] { gradient.call(grad, ids, bag_of_id, bag_size, max_ids, offset, size, c.rows, 0, {}, -1); },
               [&] {
                 const at::Tensor mask = at::bitwise_or(ids.lt(offset), ids.ge(offset + size));
                 at::_embedding_bag_dense_backward(grad, ids.sub(offset).masked_fill_(mask, 0), bag_of_id, bag_size,
                                                   bag_size, size, false, 0, mask.logical_not().to(c.dtype));
               },
               [&] {
                 at::empty_like(part).zero_();
                 part.narrow(0, 0, own_ids).sum();
               }});
  return {forward, backward};
}

void report(dtensor::benchmarks::Gates& gates, const std::string& what, const Figures& f, double speedup,
            double memory) {
  const dtensor::benchmarks::Comparison row = {
      .workload = what, .peer = "ATen's operators", .unit = "us", .theirs = f.theirs, .ours = f.ours, .limit = f.limit};
  speedup > 0 ? gates.at_least(row, f.speedup, speedup) : gates.note(row, 1 / f.speedup);
  if (memory > 0) gates.at_most(what + ": time / time of the memory", f.memory, memory);
}

std::string name_of(const Case& c) {
  return std::to_string(c.ids) + (c.ids == 1 ? " id" : " ids") + ", rows 1/" + std::to_string(c.parts) + " of " +
         std::to_string(c.rows) + " x " + std::to_string(c.features) + " " + c10::toString(c.dtype);
}

int run() {
  dtensor::benchmarks::keep_released_memory();
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  dtensor::benchmarks::Gates gates;
  const auto integers = at::TensorOptions(at::kLong).device(device());
  for (const Case& c : device().is_cpu() ? kCases : kGpuCases) {
    const int64_t size = c.rows / c.parts;
    const at::Tensor ids = at::randint(c.rows, {c.ids}, integers);
    const int64_t own_ids = ids.ge(size).logical_and(ids.lt(2 * size)).sum().item<int64_t>();
    report(gates, name_of(c) + ", forward", measure_forward(c, ids, own_ids), c.forward_speedup, c.forward_memory);
    report(gates, name_of(c) + ", backward", measure_backward(c, ids, own_ids), c.backward_speedup, c.backward_memory);
  }
  for (const Case& c : device().is_cpu() ? kDecodeCases : std::vector<Case>()) {
    const int64_t size = c.rows / c.parts, own_ids = (c.ids + c.parts - 1) / c.parts;
    const at::Tensor part = at::arange(1, c.ids + 1, integers).remainder_(c.parts);
    const at::Tensor ids = at::randint(size, {c.ids}, integers).add_(part, size);
    report(gates, name_of(c) + ", forward", measure_forward(c, ids, own_ids), c.forward_speedup, c.forward_memory);
  }
  for (const BagCase& c : kBagCases) {
    const std::string what = std::to_string(c.bags) + " bags of " + std::to_string(c.ids_per_bag) + ", rows 1/" +
                             std::to_string(c.parts) + " of " + std::to_string(c.rows) + " x " +
                             std::to_string(c.features) + " " + c10::toString(c.dtype);
    const auto [forward, backward] = measure_bags(c);
    report(gates, what + ", forward", forward, 0, 0);
    report(gates, what + ", backward", backward, 0, 0);
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("embedding", "Times the kernels of vocabulary-parallel embeddings.", argc, argv,
                                     run);
}
