// The largest or smallest elements along a dim, and where they are. Where the dim is split over ranks (class scores of
// a vocabulary-parallel head), only the best elements of every rank are sent: a value and an index each.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/combine_summaries.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/support/arguments.h"
#include "propagation/op_call.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Global indices along a dim for local indices into a part.
at::Tensor to_global(const at::Tensor& local, const IndexRanges& runs) {
  if (runs.size() == 1) return local + runs[0].begin;
  std::vector<at::Tensor> global;
  for (const IndexRange& run : runs) {
    global.push_back(at::arange(run.begin, run.begin + run.size, at::TensorOptions(at::kLong).device(local.device())));
  }
  return at::cat(global).take(local);
}

// Converts row-major indices into a part to row-major indices into the whole tensor.
at::Tensor flat_to_global(at::Tensor local, const LocalLayout& part, const Shape& whole) {
  const Shape sizes = part.sizes();
  at::Tensor global;
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    const at::Tensor place = to_global(local.remainder(sizes[d]), part.dims[d]) * stride;
    global = global.defined() ? global + place : place;
    local = local.floor_divide(sizes[d]);
    stride *= whole[d];
  }
  return global;
}

at::Tensor padded_along(const at::Tensor& t, int64_t dim, int64_t width) {
  std::vector<int64_t> pad(static_cast<size_t>(2 * (t.dim() - dim)), 0);
  pad.back() = width - t.size(dim);
  return pad.back() == 0 ? t : at::constant_pad_nd(t, pad);
}

// Whether the candidates have fewer bytes than all elements.
bool saves(const at::Tensor& self, const SummaryRequest& request) {
  int64_t elements = 1;
  for (const int64_t d : request.dims) elements *= self.size(d);
  const auto element = static_cast<int64_t>(self.element_size());
  return num_columns(self, request) * (element + 8) < elements * element;
}

// The first of the best candidates, with nan as the best of all. Its value, if requested, and its index.
Combination first_best(const at::Tensor& self, bool largest, bool keepdim, int64_t elements, bool wants_value) {
  Combination combination;
  if (wants_value) combination.dtypes.push_back(self.scalar_type());
  combination.dtypes.push_back(at::kLong);
  combination.keepdim = keepdim;
  combination.combine = [=](const auto& columns, const auto&, const auto&) {
    const at::Tensor &v = columns[0], &indices = columns[1];
    const at::Tensor best = largest ? v.amax({0}, /*keepdim=*/true) : v.amin({0}, /*keepdim=*/true);
    at::Tensor is_best = v.eq(best);
    if (v.is_floating_point()) is_best = is_best.logical_or(v.isnan());
    std::vector<at::Tensor> results = {at::where(is_best, indices, elements).amin({0})};
    if (wants_value) results.insert(results.begin(), best.squeeze(0));
    return results;
  };
  return combination;
}

// One candidate of every rank.
SummaryRequest one_each(const at::Tensor& self, std::vector<int64_t> dims, bool largest) {
  const Shape whole(self.sizes().begin(), self.sizes().end());
  SummaryRequest request;
  request.dims = std::move(dims);
  request.dtypes = {self.scalar_type(), at::kLong};
  const bool all = static_cast<int64_t>(request.dims.size()) == self.dim() && self.dim() > 1;
  request.count = [d = request.dims[0], all](const LocalLayout& part) {
    return (all ? part.empty() : part.dims[d].empty()) ? 0 : 1;
  };
  request.summarize = [=, d = request.dims[0]](const at::Tensor& local, const LocalLayout& part, int64_t) {
    const at::Tensor row = all ? local.reshape({-1}) : local;
    auto [value, place] = largest ? at::max(row, d, /*keepdim=*/true) : at::min(row, d, /*keepdim=*/true);
    if (!all) return std::vector<at::Tensor>{value, to_global(place, part.dims[d])};
    const std::vector<int64_t> ones(static_cast<size_t>(local.dim()), 1);
    return std::vector<at::Tensor>{value.view(ones), flat_to_global(place, part, whole).view(ones)};
  };
  return request;
}

std::optional<std::vector<at::Tensor>> extreme_of_split(const c10::OperatorHandle& op, const at::Tensor& self,
                                                        std::vector<int64_t> dims, bool largest, bool keepdim,
                                                        bool wants_value) {
  if (self.is_complex() || !is_split(self, dims)) return std::nullopt;
  int64_t elements = 1;
  for (const int64_t d : dims) elements *= self.size(d);
  const SummaryRequest request = one_each(self, dims, largest);
  if (!saves(self, request)) return std::nullopt;
  const Combination combination = first_best(self, largest, keepdim, elements, wants_value);
  return combine_summaries(self, request, combination, call_cause(op, "self", self));
}

// max.dim, min.dim(self, dim, keepdim).
template <bool kLargest>
void extreme_along(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dim = valid_dim(args["dim"], self.dim());
  std::optional<std::vector<at::Tensor>> best;
  if (dim) best = extreme_of_split(op, self, {*dim}, kLargest, args["keepdim"].toBool(), /*wants_value=*/true);
  if (!best) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *std::move(best));
}

// argmax, argmin(self, dim?, keepdim).
template <bool kLargest>
void arg_extreme(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  std::vector<int64_t> dims;
  if (args["dim"].isNone()) {
    dims.resize(static_cast<size_t>(self.dim()));
    std::iota(dims.begin(), dims.end(), 0);
  } else if (const auto dim = valid_dim(args["dim"], self.dim())) {
    dims = {*dim};
  }
  std::optional<std::vector<at::Tensor>> best;
  const bool takes = !dims.empty() && self.scalar_type() != at::kBool;  // bools are rejected
  if (takes) best = extreme_of_split(op, self, dims, kLargest, args["keepdim"].toBool(), /*wants_value=*/false);
  if (!best) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, {best->at(0)});
}

// topk(self, k, dim, largest, sorted). A rank's candidates are its own k best.
void topk(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dim = valid_dim(args["dim"], self.dim());
  const int64_t k = args["k"].toInt();
  const bool largest = args["largest"].toBool(), sorted = args["sorted"].toBool();
  if (!dim || self.is_complex() || k < 1 || k > self.size(*dim) || !is_split(self, {*dim})) {
    return dispatch_by_rule(op, stack);
  }
  SummaryRequest request;
  request.dims = {*dim};
  request.dtypes = {self.scalar_type(), at::kLong};
  request.count = [=](const LocalLayout& part) { return std::min(k, total_size(part.dims[*dim])); };
  request.summarize = [=](const at::Tensor& local, const LocalLayout& part, int64_t width) {
    auto [values, places] = at::topk(local, std::min(k, local.size(*dim)), *dim, largest, sorted);
    return std::vector<at::Tensor>{padded_along(values, *dim, width),
                                   padded_along(to_global(places, part.dims[*dim]), *dim, width)};
  };
  if (!saves(self, request)) return dispatch_by_rule(op, stack);
  const Summaries all = gather_summaries(self, request, call_cause(op, "self", self));
  auto [values, places] = at::topk(all.tensors[0], k, *dim, largest, sorted);
  return_tensors(op, stack, {values, at::gather(all.tensors[1], *dim, places)});
}

}  // namespace

const RuleFamily best_elements_handlers("best_elements", [](RuleRegistry& registry) {
  registry.add_handler("aten::max.dim", extreme_along<true>);
  registry.add_handler("aten::min.dim", extreme_along<false>);
  registry.add_handler("aten::argmax", arg_extreme<true>);
  registry.add_handler("aten::argmin", arg_extreme<false>);
  registry.add_handler("aten::topk", topk);
});

}  // namespace dtensor::internal
