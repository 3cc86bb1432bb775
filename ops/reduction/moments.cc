// Variance, mean, and the logarithm of a sum of exponentials along dims that are split over ranks: those of every
// rank's part are combined.
#include "ops/reduction/moments.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/var_mean.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "placement/valid_dim.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The `dim` argument, ascending and from 0: all dims if it is None or []. nullopt: invalid, and the operator itself
// reports the error.
std::optional<std::vector<int64_t>> valid_dims(const at::Tensor& self, const c10::IValue& dim) {
  std::vector<int64_t> dims;
  if (dim.isIntList()) dims = dim.toIntVector();
  const int64_t n = self.dim();
  for (int64_t& d : dims) {
    const auto valid = valid_dim(d, n);
    if (!valid) return std::nullopt;
    d = *valid;
  }
  std::sort(dims.begin(), dims.end());
  if (std::adjacent_find(dims.begin(), dims.end()) != dims.end()) return std::nullopt;
  if (dims.empty()) {
    dims.resize(static_cast<size_t>(n));
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

// The results, if the summaries are fewer bytes than the elements.
std::optional<std::vector<at::Tensor>> of_split(const c10::OperatorHandle& op, const at::Tensor& self,
                                                const SummaryRequest& request, const Combination& combination) {
  if (!are_fewer_bytes(self, request)) return std::nullopt;
  return combine_summaries(self, request, combination, call_cause(op, "self", self));
}

// logsumexp(self, dim, keepdim).
void logsumexp(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dims = valid_dims(self, args["dim"]);
  if (!dims || dims->empty() || !self.is_floating_point() || !is_split(self, *dims)) return dispatch_by_rule(op, stack);
  const auto dtype = widened(self.scalar_type());
  SummaryRequest request;
  request.dims = *dims;
  request.dtypes = {dtype};
  request.count = one_of_elements(*dims);
  request.summarize = [dtype, dims = *dims](const at::Tensor& local, const LocalLayout&, int64_t) {
    return std::vector<at::Tensor>{at::logsumexp(local.to(dtype), dims, /*keepdim=*/true)};
  };
  Combination combination;
  combination.dtypes = {self.scalar_type()};
  combination.combine = [](const auto& columns, const auto&, const auto&) {
    return std::vector<at::Tensor>{at::logsumexp(columns[0], 0)};
  };
  combination.keepdim = args["keepdim"].toBool();
  const auto results = of_split(op, self, request, combination);
  if (!results) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *results);
}

// var.correction, std.correction, var_mean.correction, std_mean.correction(self, dim?, *, correction?, keepdim).
template <bool kRoot, bool kMean>
void variance(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dims = valid_dims(self, args["dim"]);
  const bool takes = dims && !dims->empty() && (self.is_floating_point() || self.is_complex());
  if (!takes || !is_split(self, *dims)) return dispatch_by_rule(op, stack);
  const double correction = args["correction"].isNone() ? 1 : args.number("correction");
  double n = 1;
  for (const int64_t d : *dims) n *= static_cast<double>(self.size(d));
  if (n <= correction) return dispatch_by_rule(op, stack);  // LibTorch warns of it

  const SummaryRequest request = moments_request(*dims, widened(self.scalar_type()));
  Combination combination = moments_combination(request);
  combination.dtypes = {c10::toRealValueType(self.scalar_type())};
  if (kMean) combination.dtypes.push_back(self.scalar_type());
  combination.combine = [all = combination.combine, scale = n / (n - correction)](
                            const auto& columns, const auto& parts, const auto& group) {
    std::vector<at::Tensor> moments = all(columns, parts, group);
    moments[0] = moments[0] * scale;
    if (kRoot) moments[0] = at::sqrt(moments[0]);
    if (!kMean) moments.pop_back();
    return moments;
  };
  combination.keepdim = args["keepdim"].toBool();
  const auto results = of_split(op, self, request, combination);
  if (!results) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *results);
}

}  // namespace

int64_t num_elements(const LocalLayout& part, const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= total_size(part.dims[d]);
  return n;
}

std::function<int64_t(const LocalLayout&)> one_of_elements(const std::vector<int64_t>& dims) {
  return [dims](const LocalLayout& part) { return num_elements(part, dims) > 0 ? 1 : 0; };
}

Moments combined(const Moments& columns, const at::Tensor& shares) {
  // Deviations from the mean of one column: if all are equal nothing is rounded, and the variance of a constant is 0.
  const at::Tensor largest = shares.argmax(0, /*keepdim=*/true).expand({1, columns.mean.size(1)});
  const at::Tensor first = columns.mean.gather(0, largest);
  const at::Tensor shifted = columns.mean - first;
  const at::Tensor shift = (shifted * shares).sum(0);
  return {((columns.var + at::abs(shifted - shift).square()) * shares).sum(0), first.squeeze(0) + shift};
}

Moments moments_of(const at::Tensor& plain, const std::vector<int64_t>& dims) {
  if (!plain.is_cpu()) {
    auto [var, mean] = at::var_mean(plain, dims, /*correction=*/0, /*keepdim=*/true);
    return {var, mean};
  }
  at::Tensor first = plain;
  for (const int64_t d : dims) first = first.narrow(d, 0, 1);
  const at::Tensor shifted = plain - first;
  const at::Tensor shift = shifted.mean(dims, /*keepdim=*/true);
  return {shifted.sub_(shift).square_().mean(dims, /*keepdim=*/true), first + shift};
}

SummaryRequest moments_request(std::vector<int64_t> dims, c10::ScalarType dtype) {
  SummaryRequest request;
  request.dtypes = {c10::toRealValueType(dtype), dtype};
  request.count = one_of_elements(dims);
  request.summarize = [dtype, dims](const at::Tensor& local, const LocalLayout&, int64_t) {
    auto [var, mean] = at::var_mean(local.to(dtype), dims, /*correction=*/0, /*keepdim=*/true);
    return std::vector<at::Tensor>{var, mean};
  };
  request.dims = std::move(dims);
  return request;
}

Combination moments_combination(const SummaryRequest& request) {
  Combination combination;
  combination.dtypes = request.dtypes;
  combination.combine = [dims = request.dims](const auto& columns, const auto& parts, const auto&) {
    std::vector<double> shares;
    for (const LocalLayout& part : parts) shares.push_back(static_cast<double>(num_elements(part, dims)));
    const double n = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= n;
    const at::Tensor& var = columns[0];
    const at::Tensor weights = at::tensor(shares, at::TensorOptions(at::kDouble)).to(var.options()).unsqueeze(1);
    const Moments all = combined({var, columns[1]}, weights);
    return std::vector<at::Tensor>{all.var, all.mean};
  };
  return combination;
}

const RuleFamily moments_handlers("moments", [](RuleRegistry& registry) {
  registry.add_handler("aten::logsumexp", logsumexp);
  registry.add_handler("aten::var.correction", variance<false, false>);
  registry.add_handler("aten::std.correction", variance<true, false>);
  registry.add_handler("aten::var_mean.correction", variance<false, true>);
  registry.add_handler("aten::std_mean.correction", variance<true, true>);
});

}  // namespace dtensor::internal
