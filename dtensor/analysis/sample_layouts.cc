#include "dtensor/analysis/sample_layouts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/tensor/representation.h"
#include "placement/parse_placements.h"

namespace dtensor::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& t : tensors) copies.push_back(t.clone());
  return copies;
}

// The operator's results on the parts of a layout, rank by rank; nullopt: an error.
std::optional<std::vector<Tensors>> of_parts(const SampleCall& call, const Tensors& inputs) {
  std::vector<Tensors> results;
  const LocalGuard plain;
  const size_t ranks = inputs.empty() ? 0 : DTensor(inputs[0]).mesh().local_ranks().size();
  for (size_t r = 0; r < ranks; ++r) {
    Tensors parts;
    for (const at::Tensor& t : inputs) parts.push_back(DTensor(t).local(static_cast<int64_t>(r)).clone());
    try {
      results.push_back(call.run(parts).tensors);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return results;
}

// The placement in which the ranks' results make up the whole; nullopt: none.
std::optional<Placement> placement_of(const Tensors& parts, const at::Tensor& whole, double tolerance) {
  const auto same = [&](const at::Tensor& t) {
    return t.sizes() == whole.sizes() && t.scalar_type() == whole.scalar_type() &&
           difference_of(t, whole, tolerance).empty();
  };
  if (std::all_of(parts.begin(), parts.end(), same)) return Replicate();
  const auto n = static_cast<int64_t>(parts.size());
  for (int64_t d = 0; d < whole.dim(); ++d) {
    const int64_t chunk = (whole.size(d) + n - 1) / n;
    bool fits = true;
    for (int64_t r = 0; r < n && fits; ++r) {
      const int64_t own = std::clamp<int64_t>(whole.size(d) - r * chunk, 0, chunk);
      std::vector<int64_t> sizes = whole.sizes().vec();
      sizes[d] = own;
      fits = parts[r].sizes() == at::IntArrayRef(sizes);
    }
    if (fits && same(at::cat(parts, d))) return Shard(d);
  }
  const bool adds = whole.scalar_type() != at::kBool &&
                    std::all_of(parts.begin(), parts.end(), [&](const auto& t) { return t.sizes() == whole.sizes(); });
  if (adds && same(at::stack(parts).sum(0).to(whole.scalar_type()))) return Partial(ReduceOp::kSum);
  return std::nullopt;
}

}  // namespace

std::vector<Placement> placements_of(const at::Tensor& t, bool all_partials) {
  std::vector<Placement> result = {Replicate()};
  for (int64_t d = 0; d < t.dim(); ++d) result.push_back(Shard(d));
  if (!t.is_floating_point() && !t.is_complex()) return result;
  result.push_back(Partial(ReduceOp::kSum));
  if (!all_partials) return result;
  result.push_back(Partial(ReduceOp::kAvg));
  if (!t.is_floating_point()) return result;
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) result.push_back(Partial(op));
  return result;
}

std::vector<Layouts> layouts_of(const Tensors& tensors, int64_t ndim, int64_t most, uint64_t seed, bool all_partials) {
  std::vector<std::vector<Placement>> options;  // one per tensor and mesh dim
  double count = 1;
  for (const at::Tensor& t : tensors) {
    for (int64_t m = 0; m < ndim; ++m) {
      options.push_back(placements_of(t, all_partials));
      count *= static_cast<double>(options.back().size());
    }
  }
  std::mt19937_64 random(seed);
  const bool sampled = count > static_cast<double>(most);
  const int64_t tries = sampled ? most : static_cast<int64_t>(count);
  std::vector<Layouts> result;
  for (int64_t k = 0; k < tries; ++k) {
    Layouts layouts(tensors.size());
    int64_t number = k;
    for (size_t o = 0; o < options.size(); ++o) {
      const auto n = static_cast<int64_t>(options[o].size());
      const int64_t choice = sampled ? static_cast<int64_t>(random() % static_cast<uint64_t>(n)) : number % n;
      number /= n;
      layouts[o / static_cast<size_t>(ndim)].push_back(options[o][choice]);
    }
    bool fits = true;  // not all kinds of Partial can be mixed
    for (size_t i = 0; i < layouts.size(); ++i) fits = fits && check_placements(layouts[i], tensors[i].dim()).ok();
    if (fits) result.push_back(std::move(layouts));
  }
  return result;
}

std::string text_of(const Layouts& layouts) {
  return absl::StrJoin(layouts, ", ",
                       [](std::string* out, const Placements& p) { absl::StrAppend(out, to_string(p)); });
}

std::vector<Tensors> other_values(const SampleCall& call) {
  std::vector<Tensors> result;
  const auto add = [&](const auto& other) {
    Tensors values;
    for (const at::Tensor& t : call.tensors()) values.push_back(other(t));
    try {
      call.run(copies_of(values));
    } catch (const std::exception&) {
      return;
    }
    result.push_back(std::move(values));
  };
  for (const double factor : {0.75, 8.0})
    add([&](const at::Tensor& t) { return t.is_floating_point() || t.is_complex() ? t * factor : t.clone(); });
  at::Generator generator = at::detail::createCPUGenerator(1);
  const auto reordered = [&](const at::Tensor& all, const at::Tensor& like) {
    const at::Tensor order = at::randperm(all.numel(), generator, at::kLong, c10::kStrided, c10::kCPU, false);
    return all.index_select(0, order.narrow(0, 0, like.numel()).to(all.device())).view(like.sizes());
  };
  add([&](const at::Tensor& t) { return reordered(t.flatten(), t); });
  add([&](const at::Tensor& t) { return reordered(t.scalar_type() == at::kBool ? ~t.flatten() : t.flatten(), t); });
  add([&](const at::Tensor& t) {
    Tensors of_dtype;
    for (const at::Tensor& other : call.tensors()) {
      if (other.scalar_type() == t.scalar_type()) of_dtype.push_back(other.flatten());
    }
    return reordered(at::cat(of_dtype), t);
  });
  // One value everywhere, and then two, the first and the last.
  for (const int64_t values : {1, 2}) {
    add([&](const at::Tensor& t) {
      if (t.numel() == 0) return t.clone();
      const at::Tensor which = at::randint(values, {t.numel()}, generator, at::kLong) * (t.numel() - 1);
      return t.flatten().index_select(0, which.to(t.device())).view(t.sizes());
    });
  }
  return result;
}

std::optional<Placements> free_layout(const SampleCall& call, const DeviceMesh& mesh, const Layouts& layouts,
                                      const Tensors& values, double tolerance) {
  Tensors inputs;
  const Tensors plain = copies_of(values);
  for (size_t i = 0; i < layouts.size(); ++i) inputs.push_back(laid_out(plain[i], mesh, layouts[i], 0));
  const auto parts = of_parts(call, inputs);
  if (!parts) return std::nullopt;
  SampleCall::Results whole;
  try {
    whole = call.run(plain);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  if (!whole.numbers.empty()) return std::nullopt;
  Placements result;
  for (size_t k = 0; k < whole.tensors.size(); ++k) {
    if (!whole.tensors[k].defined()) continue;
    Tensors of_rank;
    for (const Tensors& r : *parts) of_rank.push_back(r.at(k));
    const auto placement = placement_of(of_rank, whole.tensors[k], tolerance);
    if (!placement) return std::nullopt;
    result.push_back(*placement);
  }
  return result;
}

}  // namespace dtensor::internal
