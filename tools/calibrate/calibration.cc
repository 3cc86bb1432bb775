#include "tools/calibrate/calibration.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/communicator.h"
#include "dtensor/factories.h"
#include "dtensor/measure_operators.h"
#include "mesh/wait_for_devices.h"
#include "tools/calibrate/collective_call.h"
#include "tools/calibrate/fit.h"
#include "tools/calibrate/operator_step.h"
#include "tools/flags.h"

namespace dtensor::tools {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

at::TensorOptions on(c10::Device device) { return at::TensorOptions().dtype(at::kFloat).device(device); }

}  // namespace

// Neighbours in groups of 2, 4, ..., and all ranks; and, where there are several nodes, groups of ranks far apart.
std::vector<Groups> Calibration::all_groups() const {
  const int64_t n = world_.size();
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size < n; size *= 2) sizes.push_back(size);
  sizes.push_back(n);
  if (quick_ && sizes.size() > 2) sizes = {sizes.front(), sizes.back()};
  std::vector<Groups> all;
  for (int64_t size : sizes) {
    if (n % size != 0 || size == n) {
      all.push_back({DeviceMesh(world_, {size}, {"near"}), 0});
      continue;
    }
    all.push_back({DeviceMesh(world_, {n / size, size}, {"far", "near"}), 1});
    if (ranks_per_node_ < n) all.push_back({DeviceMesh(world_, {size, n / size}, {"far", "near"}), 0});
  }
  for (Groups& g : all) g.extent = group_extent(g.group(), ranks_per_node_);
  return all;
}

std::vector<int64_t> Calibration::byte_counts() const {
  std::vector<int64_t> counts;
  for (int64_t bytes = 1024; bytes <= max_bytes_; bytes *= quick_ ? 32 : 4) counts.push_back(bytes);
  return counts;
}

// Progress, of the first rank for all.
void Calibration::say(const std::string& text) const {
  if (world_.owned_ranks().front() == 0) std::fputs(text.c_str(), stderr);
}

// The largest of each over all ranks, so that all of them make as many calls and find the same model.
std::vector<double> Calibration::largest(const std::vector<double>& values) const {
  const DeviceMesh mesh(world_, {world_.size()}, {"all"});
  CommCall call{&mesh.get_group(0), mesh.local_ranks(), {}, {}};
  call.event.cause.op = "calibrate";
  RankTensors own;
  for (const int64_t rank : world_.owned_ranks()) {
    own.push_back(at::empty({static_cast<int64_t>(values.size())}, at::kDouble));
    std::copy(values.begin(), values.end(), own.back().mutable_data_ptr<double>());
    own.back() = own.back().to(world_.device(rank));
  }
  const at::Tensor all = world_.communicator().all_reduce(call, own, ReduceOp::kMax).front().to(at::kCPU);
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

// The lower quartile of several times of `calls` calls, per call: other programs disturb it less than the median.
double Calibration::time(const std::function<void()>& call, int64_t calls) const {
  const double budget = quick_ ? 2e-3 : 20e-3;
  const int64_t least = quick_ ? 3 : 5;
  const auto once = [&] {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    wait_for_devices(world_);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  once();
  const double about = largest({once()})[0];
  std::vector<double> seconds(std::clamp<int64_t>(static_cast<int64_t>(std::min(budget / about, 1000.)), least, 1000));
  for (double& s : seconds) s = once();
  const auto quartile = seconds.begin() + static_cast<int64_t>(seconds.size() / 4);
  std::nth_element(seconds.begin(), quartile, seconds.end());
  return largest({*quartile})[0] / static_cast<double>(calls);
}

// Ranks in several processes compute in between, as in a step. A collective then takes longer than in a loop of
// collectives, because the system may be running another process when a message arrives.
Trial Calibration::measure(Collective c, const Groups& groups, int64_t bytes) const {
  const CallArguments a = arguments_of(c, groups, bytes);
  const auto communicate = [&] { run_collective(world_.communicator(), c, a); };
  if (world_.kind() != World::Kind::kProcesses || world_.device_type() != c10::DeviceType::CPU)
    return {c, groups, a.bytes, time(communicate)};
  constexpr int64_t kCalls = 8, kRows = 256;
  constexpr double kLeast = 1e-6;  // seconds
  const at::Tensor factor = at::ones({kRows, kRows});
  const auto compute = [&] { factor.mm(factor); };
  // The median of the differences counts, because the machine's speed changes between two measurements.
  const auto seconds_of = [&](const std::function<void()>& call) {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < kCalls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - begin).count() / kCalls;
  };
  const auto both = [&] { compute(), communicate(); };
  seconds_of(both);
  std::vector<double> seconds(quick_ ? 3 : 7);
  for (double& s : seconds) {
    const double alone = seconds_of(compute);
    s = seconds_of(both) - alone;
  }
  std::sort(seconds.begin(), seconds.end());
  return {c, groups, a.bytes, largest({std::max(seconds[seconds.size() / 2], kLeast)})[0]};
}

void Calibration::fit_level(const std::vector<Trial>& trials, bool crosses_nodes, CostModel& model) {
  for (int i = 0; i < kNumCollectives; ++i) {
    const auto c = static_cast<Collective>(i);
    CostModel count;  // of hops
    count.within_node[i] = {/*latency=*/0, /*hop_latency=*/1, /*bandwidth=*/1};
    std::vector<LinkSample> samples;
    std::vector<int64_t> sizes;
    for (const Trial& t : trials) {
      const GroupExtent& extent = t.groups.extent;
      if (t.collective != c || extent.crosses_nodes() != crosses_nodes) continue;
      const int64_t size = extent.size;
      // Over one rank's link.
      const double bytes = static_cast<double>(t.bytes) / (crosses_nodes ? links_of(c, extent) : 1);
      samples.push_back({count.collective(c, GroupExtent::within_node(size), 0), bytes, t.seconds});
      if (!std::count(sizes.begin(), sizes.end(), size)) sizes.push_back(size);
    }
    if (samples.empty()) continue;
    const LinkFit fit = fit_link(samples);
    (crosses_nodes ? model.between_nodes : model.within_node)[i] = fit.cost;
    const std::string bandwidth = c == Collective::kBarrier    ? "-"
                                  : fit.cost.bandwidth >= 1e14 ? "no limit seen"
                                                               : absl::StrFormat("%.2f", fit.cost.bandwidth / 1e9);
    absl::StrAppendFormat(&table_, "%-15s %-13s %-10s %11.2f %11.2f %14s %12.0f %% %6.0f %% at %s\n",
                          std::string(to_string(c)), crosses_nodes ? "between nodes" : "within a node",
                          absl::StrJoin(sizes, ","), fit.cost.latency * 1e6, fit.cost.hop_latency * 1e6, bandwidth,
                          fit.typical_error * 100, fit.worst_error * 100,
                          human_bytes(static_cast<int64_t>(samples[fit.worst].bytes)));
  }
}

CostModel Calibration::run() {
  std::vector<Trial> trials;
  for (int i = 0; i < kNumCollectives; ++i) {
    const auto c = static_cast<Collective>(i);
    for (const Groups& groups : all_groups()) {
      say(absl::StrCat("calibrate: ", std::string(to_string(c)), " in groups of ", groups.group().size,
                       groups.extent.crosses_nodes() ? " between nodes" : "", " ..."));
      double last = 0;
      for (int64_t bytes : c == Collective::kBarrier ? std::vector<int64_t>{0} : byte_counts()) {
        trials.push_back(measure(c, groups, bytes));
        last = trials.back().seconds;
      }
      say(absl::StrFormat(" %s in %.1f us\n", human_bytes(trials.back().bytes), last * 1e6));
    }
  }
  CostModel model;
  model.ranks_per_node = ranks_per_node_;
  model.uses_staging_buffers = world_.communicator().uses_staging_buffers();
  table_ = absl::StrFormat("%-15s %-13s %-10s %11s %11s %14s %14s %8s\n", "collective", "level", "group", "latency us",
                           "per hop us", "GB/s", "typical error", "worst");
  fit_level(trials, false, model);
  fit_level(trials, true, model);
  const auto crosses = [](const Trial& t) { return t.groups.extent.crosses_nodes(); };
  if (std::none_of(trials.begin(), trials.end(), crosses)) {
    model.between_nodes = model.within_node;
    table_ += "All ranks are on one node: the numbers between nodes are written as those within one.\n";
  }

  measure_copies(model);
  measure_products(model);
  measure_starts(model);
  measure_steps(model);
  return model;
}

// Every rank copies, as in a step of a plan.
void Calibration::measure_copies(CostModel& model) {
  std::vector<double> rates;
  for (int64_t bytes : byte_counts()) {
    if (bytes < 1 << 15) continue;
    RankTensors sources, targets;
    for (int64_t rank : world_.owned_ranks()) {
      sources.push_back(at::ones({bytes / 4}, on(world_.device(rank))));
      targets.push_back(at::empty({bytes / 4}, on(world_.device(rank))));
    }
    const double seconds = time([&] {
      for (size_t i = 0; i < sources.size(); ++i) targets[i].copy_(sources[i]);
    });
    rates.push_back(static_cast<double>(bytes) / seconds);
  }
  if (!rates.empty()) {
    std::sort(rates.begin(), rates.end());
    model.copy_bandwidth = rates[rates.size() / 2];
    absl::StrAppendFormat(&table_, "copy: %.2f GB/s per rank (%.2f to %.2f)\n", model.copy_bandwidth / 1e9,
                          rates.front() / 1e9, rates.back() / 1e9);
  }
}

// FLOP per second and rank, where every rank multiplies square matrices.
double Calibration::product_rate(int64_t n, c10::ScalarType dtype) const {
  RankTensors factors, products;
  for (int64_t rank : world_.owned_ranks()) {
    factors.push_back(at::ones({n, n}, on(world_.device(rank)).dtype(dtype)));
    products.push_back(at::empty({n, n}, factors.back().options()));
  }
  const double seconds = time([&] {
    for (size_t i = 0; i < factors.size(); ++i) at::mm_out(products[i], factors[i], factors[i]);
  });
  return 2 * std::pow(static_cast<double>(n), 3) / seconds;
}

// Of float32 for products of any dtype, and of those that models have. Matrices are as large as those of a model's
// layers where there is time for it: not where a dtype has no fast kernel.
void Calibration::measure_products(CostModel& model) {
  const std::vector<int64_t> sizes = quick_ ? std::vector<int64_t>{128, 256} : std::vector<int64_t>{512, 1024, 2048};
  for (const auto& [name, dtype] : {std::pair("float32", at::kFloat), std::pair("float64", at::kDouble),
                                    std::pair("bfloat16", at::kBFloat16), std::pair("float16", at::kHalf)}) {
    std::vector<double> rates;
    for (const int64_t n : sizes) {
      const auto ranks = static_cast<double>(world_.owned_ranks().size());
      constexpr double kLongest = 0.5;  // seconds of a call
      if (!rates.empty() && ranks * 2 * std::pow(static_cast<double>(n), 3) / rates.back() > kLongest) break;
      rates.push_back(product_rate(n, dtype));
    }
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    (dtype == at::kFloat ? model.flops_per_second : model.flops_by_dtype[dtype]) = *most;
    absl::StrAppendFormat(&table_, "matrix products: %.2f GFLOP/s per rank in %s (from %.2f)\n", *most / 1e9, name,
                          *least / 1e9);
  }
}

// Of an operator on a distributed tensor with one element on each rank, whose decision is cached: the ranks of a
// process start theirs one after the other. Other times here are of ATen's own calls, without this one.
void Calibration::measure_starts(CostModel& model) {
  const DeviceMesh mesh(world_, {world_.size()}, {"all"});
  const at::Tensor x = zeros({world_.size()}, mesh, {Shard(0)}), y = zeros({world_.size()}, mesh, {Shard(0)});
  constexpr int64_t kCalls = 100;  // the wait for the devices at their end counts little
  model.operator_latency = time([&] { x.mul(y); }, kCalls);
  absl::StrAppendFormat(&table_, "start of an operator: %.2f us\n", model.operator_latency * 1e6);
}

// Of operators as they run in steps of models, where tensors are not in the processor's caches and results take memory.
void Calibration::measure_steps(CostModel& model) {
  struct Size {
    int64_t bytes, width;
  };
  std::vector<Size> sizes = {
      {int64_t{4} << 10, 64}, {int64_t{32} << 10, 64}, {int64_t{256} << 10, 256}, {int64_t{2} << 20, 512}};
  if (quick_) sizes.resize(2);
  std::vector<std::function<void()>> steps;
  for (const Size& size : sizes) {
    if (size.bytes <= max_bytes_) steps.push_back(make_operator_step(world_, size.bytes, size.width));
  }
  say("calibrate: operators ...");
  model.operators = measure_operators(steps, world_, quick_ ? 2 : 5);
  say(absl::StrCat(" ", model.operators.size(), "\n"));
  for (const char* name : {"view", "other", "aten::mul.Tensor", "aten::gelu", "aten::mm float32"}) {
    const auto& row = model.operators.at(name);
    absl::StrAppendFormat(&table_, "%-17s %s\n", name,
                          absl::StrJoin(row, ", ", [](std::string* out, const OperatorTime& t) {
                            absl::StrAppendFormat(out, "%.3g: %.1f us", t.amount, t.seconds * 1e6);
                          }));
  }
}

}  // namespace dtensor::tools
