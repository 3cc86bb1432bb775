// Variance, mean, and the logarithm of a sum of exponentials along dims that are split over ranks: every rank gives
// those of its part, and they are combined, without cancellation (Chan, Golub, LeVeque, Updating Formulae and a
// Pairwise Algorithm for Computing Sample Variances, 1979).
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/var_mean.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "dtensor/extend/dispatch.h"
#include "dtensor/extend/replicate.h"
#include "dtensor/extend/representation.h"
#include "ops/arguments.h"
#include "ops/rank_summaries.h"
#include "propagation/rule_registry.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

int64_t num_elements(const Part& part, const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= total_size(part.dims[d]);
  return n;
}

// The `dim` argument, ascending and from 0: all dims if it is None or []. nullopt: an error that the operator itself
// tells.
std::optional<std::vector<int64_t>> valid_dims(const at::Tensor& self, const c10::IValue& dim) {
  std::vector<int64_t> dims;
  if (dim.isIntList()) dims = dim.toIntVector();
  const int64_t n = self.dim();
  for (int64_t& d : dims) {
    if (d < -n || d >= n) return std::nullopt;
    d += d < 0 ? n : 0;
  }
  std::sort(dims.begin(), dims.end());
  if (std::adjacent_find(dims.begin(), dims.end()) != dims.end()) return std::nullopt;
  if (dims.empty()) {
    dims.resize(static_cast<size_t>(n));
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

c10::ScalarType widened(c10::ScalarType dtype) { return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype; }

// One column of every rank that has elements, if these are fewer bytes than the elements.
std::optional<Summaries> one_column_each(const c10::OperatorHandle& op, const at::Tensor& self,
                                         SummaryRequest request) {
  if (request.dims.empty() || !is_split(self, request.dims)) return std::nullopt;
  request.count = [dims = request.dims](const Part& part) { return num_elements(part, dims) > 0 ? 1 : 0; };
  int64_t elements = 1;
  for (const int64_t d : request.dims) elements *= self.size(d);
  int64_t column = 0;
  for (const auto dtype : request.dtypes) column += static_cast<int64_t>(c10::elementSize(dtype));
  if (num_columns(self, request) * column >= elements * static_cast<int64_t>(self.element_size())) return std::nullopt;
  return gather_summaries(self, request,
                          {c10::toString(op.operator_name()), "self", module_of(peek_meta(self)), /*implicit=*/true});
}

// logsumexp(self, dim, keepdim).
void logsumexp(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dims = valid_dims(self, args["dim"]);
  if (!dims || !self.is_floating_point()) return dispatch_by_rule(op, stack);
  const auto dtype = widened(self.scalar_type());
  SummaryRequest request;
  request.dims = *dims;
  request.dtypes = {dtype};
  request.summarize = [dtype, dims = *dims](const at::Tensor& local, const Part&, int64_t) {
    return std::vector<at::Tensor>{at::logsumexp(local.to(dtype), dims, /*keepdim=*/true)};
  };
  const auto all = one_column_each(op, self, std::move(request));
  if (!all) return dispatch_by_rule(op, stack);
  const bool keepdim = args["keepdim"].toBool();
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(at::logsumexp(all->tensors[0], *dims, keepdim).to(self.scalar_type()));
}

// var.correction, std.correction, var_mean.correction, std_mean.correction(self, dim?, *, correction?, keepdim).
template <bool kRoot, bool kMean>
void variance(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dims = valid_dims(self, args["dim"]);
  if (!dims || !(self.is_floating_point() || self.is_complex())) return dispatch_by_rule(op, stack);
  const auto dtype = widened(self.scalar_type());
  SummaryRequest request;
  request.dims = *dims;
  request.dtypes = {c10::toRealValueType(dtype), dtype};
  request.summarize = [dtype, dims = *dims](const at::Tensor& local, const Part&, int64_t) {
    auto [var, mean] = at::var_mean(local.to(dtype), dims, /*correction=*/0, /*keepdim=*/true);
    return std::vector<at::Tensor>{var, mean};
  };
  const double correction = args["correction"].isNone() ? 1 : args.number("correction");
  double n = 1;
  for (const int64_t d : *dims) n *= static_cast<double>(self.size(d));
  if (n <= correction) return dispatch_by_rule(op, stack);  // LibTorch warns of it
  const auto all = one_column_each(op, self, request);
  if (!all) return dispatch_by_rule(op, stack);

  std::vector<double> shares;  // of the elements
  for (const Part& part : all->parts) shares.push_back(static_cast<double>(num_elements(part, *dims)) / n);
  at::Tensor weights;
  {
    LocalGuard guard;
    std::vector<int64_t> sizes(static_cast<size_t>(self.dim()), 1);
    sizes[(*dims)[0]] = static_cast<int64_t>(shares.size());
    weights = at::tensor(shares, at::TensorOptions(at::kDouble)).to(request.dtypes[0]).to(self.device()).view(sizes);
  }
  weights = replicate_plain(weights, peek_meta(self).spec->mesh());
  // From the first column's mean on: where all are equal nothing is rounded, and the variance of a constant is 0.
  const at::Tensor &vars = all->tensors[0], &means = all->tensors[1];
  const at::Tensor first = means.narrow((*dims)[0], 0, 1), shifted = means - first;
  const at::Tensor shift = (shifted * weights).sum(*dims, /*keepdim=*/true), mean = first + shift;
  const bool keepdim = args["keepdim"].toBool();
  at::Tensor var = ((vars + at::abs(shifted - shift).square()) * weights).sum(*dims, keepdim) * (n / (n - correction));
  if (kRoot) var = at::sqrt(var);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(var.to(c10::toRealValueType(self.scalar_type())));
  if (kMean) stack.emplace_back((keepdim ? mean : mean.view(var.sizes())).to(self.scalar_type()));
}

}  // namespace

const RuleFamily moments_handlers("moments", [](RuleRegistry& registry) {
  registry.add_handler("aten::logsumexp", logsumexp);
  registry.add_handler("aten::var.correction", variance<false, false>);
  registry.add_handler("aten::std.correction", variance<true, false>);
  registry.add_handler("aten::var_mean.correction", variance<false, true>);
  registry.add_handler("aten::std_mean.correction", variance<true, true>);
});

}  // namespace dtensor
