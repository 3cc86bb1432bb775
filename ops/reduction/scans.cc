// Running sums, products, maxima along a split dim: every rank scans its part, the ranks exchange the totals of their
// parts, and each continues from the total before it. The elements do not move.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logcumsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/support/arguments.h"
#include "placement/valid_dim.h"
#include "propagation/op_call.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;  // the results of a scan, or the total of a part: its last elements

// Scans a part, which begins at `begin`, along a dim.
using Scan = std::function<Tensors(const at::Tensor& part, int64_t dim, int64_t begin)>;
// The total of several parts, one after the other along the dim.
using Total = std::function<Tensors(const Tensors& parts, int64_t dim)>;
// The scan of a part, continued from the total before it.
using Continue = std::function<Tensors(const Tensors& before, const Tensors& scanned)>;

struct ScanKind {
  Scan scan;
  Total total;
  Continue go_on;
};

Tensors last_of(Tensors scanned, int64_t dim) {
  for (at::Tensor& t : scanned) t = t.narrow(dim, t.size(dim) - 1, 1);
  return scanned;
}

// The start of every rank's part along the dim; nullopt: a rank has several runs of it.
std::optional<std::vector<int64_t>> beginnings(const std::vector<LocalLayout>& parts, int64_t dim) {
  std::vector<int64_t> result;
  for (const LocalLayout& part : parts) {
    if (part.dims[dim].size() != 1) return std::nullopt;
    result.push_back(part.dims[dim][0].begin);
  }
  return result;
}

bool in_one_run(const Spec& spec, int64_t dim) {
  return std::none_of(spec.placements().begin(), spec.placements().end(),
                      [&](const Placement& p) { return p.is_strided_shard() && p.dim() == dim; });
}

// Scans `self`, which is split along `dim`. nullopt: the totals would be more bytes than the elements.
std::optional<Tensors> scan_of_split(const c10::OperatorHandle& op, const at::Tensor& self, int64_t dim,
                                     const std::vector<c10::ScalarType>& dtypes, const ScanKind& kind) {
  SummaryRequest request;
  request.dims = {dim};
  request.dtypes = dtypes;
  request.count = [dim](const LocalLayout& part) { return total_size(part.dims[dim]) > 0 ? 1 : 0; };
  request.summarize = [&](const at::Tensor& local, const LocalLayout& part, int64_t) {
    return last_of(kind.scan(local, dim, part.dims[dim][0].begin), dim);
  };
  int64_t column = 0;
  for (const auto dtype : dtypes) column += static_cast<int64_t>(c10::elementSize(dtype));
  if (num_columns(self, request) * column >= self.size(dim) * static_cast<int64_t>(self.element_size()))
    return std::nullopt;
  const Summaries all = gather_summaries(self, request, call_cause(op, "self", self));
  const auto begins = beginnings(all.parts, dim);
  TORCH_INTERNAL_ASSERT(begins, "a part in several runs");

  const DTensorMeta& meta = meta_for_read(self);
  std::vector<RankTensors> locals(dtypes.size());
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    LocalGuard guard;
    const LocalLayout part = meta.spec->local_layout(static_cast<int64_t>(i));
    const int64_t begin = part.dims[dim].empty() ? 0 : part.dims[dim][0].begin;
    if (meta.locals[i].numel() == 0) {
      for (size_t k = 0; k < locals.size(); ++k)
        locals[k].push_back(meta.locals[i].new_empty(meta.locals[i].sizes(), dtypes[k]));
      continue;
    }
    Tensors scanned = kind.scan(meta.locals[i], dim, begin);
    std::vector<int64_t> before;
    for (size_t c = 0; c < begins->size(); ++c) {
      if ((*begins)[c] < begin) before.push_back(static_cast<int64_t>(c));
    }
    std::sort(before.begin(), before.end(), [&](int64_t a, int64_t b) { return (*begins)[a] < (*begins)[b]; });
    if (!before.empty()) {
      const at::Tensor index = at::tensor(before, at::TensorOptions(at::kLong)).to(meta.locals[i].device());
      Tensors parts;
      for (const at::Tensor& t : all.tensors) parts.push_back(meta_for_read(t).locals[i].index_select(dim, index));
      scanned = kind.go_on(kind.total(parts, dim), scanned);
    }
    for (size_t k = 0; k < locals.size(); ++k) locals[k].push_back(scanned[k].contiguous());
  }
  Tensors results;
  for (size_t k = 0; k < locals.size(); ++k) {
    results.push_back(make_dtensor(
        Spec::get(meta.spec->mesh(), meta.spec->placements(), at::IntArrayRef(meta.spec->sizes()), dtypes[k]),
        std::move(locals[k])));
  }
  return results;
}

// The dim if it is sharded in order; nullopt: left to the rule, which also reports errors.
std::optional<int64_t> split_dim(const c10::OperatorHandle& op, const at::Tensor& self, const c10::IValue& dim) {
  if (op.schema().is_mutable() || !dim.isInt()) return std::nullopt;
  const auto d = valid_dim(dim.toInt(), self.dim());
  if (!d || !is_split(self, {*d}) || !in_one_run(*spec_of(self), *d)) return std::nullopt;
  return d;
}

// cumsum, cumprod(self, dim, *, dtype?).
template <bool kProduct>
void running(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dim = split_dim(op, self, args["dim"]);
  if (!dim) return dispatch_by_rule(op, stack);
  auto dtype = self.scalar_type();
  if (!args["dtype"].isNone()) {
    dtype = args["dtype"].toScalarType();
  } else if (c10::isIntegralType(dtype, /*includeBool=*/true)) {
    dtype = at::kLong;
  }
  const ScanKind kind = {[dtype](const at::Tensor& part, int64_t d, int64_t) {
                           return Tensors{kProduct ? at::cumprod(part, d, dtype) : at::cumsum(part, d, dtype)};
                         },
                         [dtype](const Tensors& parts, int64_t d) {
                           return Tensors{kProduct ? parts[0].prod(d, true, dtype) : parts[0].sum(d, true, dtype)};
                         },
                         [](const Tensors& before, const Tensors& scanned) {
                           return Tensors{kProduct ? scanned[0] * before[0] : scanned[0] + before[0]};
                         }};
  const auto results = scan_of_split(op, self, *dim, {dtype}, kind);
  if (!results) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *results);
}

// logcumsumexp(self, dim).
void running_logsumexp(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dim = split_dim(op, self, args["dim"]);
  if (!dim || !self.is_floating_point()) return dispatch_by_rule(op, stack);
  const ScanKind kind = {[](const at::Tensor& part, int64_t d, int64_t) { return Tensors{at::logcumsumexp(part, d)}; },
                         [](const Tensors& parts, int64_t d) { return last_of({at::logcumsumexp(parts[0], d)}, d); },
                         [](const Tensors& before, const Tensors& scanned) {
                           return Tensors{at::logaddexp(before[0].expand_as(scanned[0]), scanned[0])};
                         }};
  const auto results = scan_of_split(op, self, *dim, {self.scalar_type()}, kind);
  if (!results) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *results);
}

// cummax, cummin(self, dim). Among equal elements the last one counts, and nan exceeds all.
template <bool kLargest>
void running_extreme(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto dim = split_dim(op, self, args["dim"]);
  if (!dim || self.is_complex()) return dispatch_by_rule(op, stack);
  const auto extreme = [](const at::Tensor& t, int64_t d) { return kLargest ? at::cummax(t, d) : at::cummin(t, d); };
  const ScanKind kind = {[extreme](const at::Tensor& part, int64_t d, int64_t begin) {
                           auto [values, indices] = extreme(part, d);
                           return Tensors{values, indices + begin};
                         },
                         [extreme](const Tensors& parts, int64_t d) {
                           const auto [values, columns] = extreme(parts[0], d);
                           return last_of({values, at::gather(parts[1], d, columns)}, d);
                         },
                         [](const Tensors& before, const Tensors& scanned) {
                           at::Tensor own = kLargest ? scanned[0].ge(before[0]) : scanned[0].le(before[0]);
                           if (own.numel() > 0 && scanned[0].is_floating_point())
                             own = own.logical_or(scanned[0].isnan());
                           return Tensors{at::where(own, scanned[0], before[0]), at::where(own, scanned[1], before[1])};
                         }};
  const auto results = scan_of_split(op, self, *dim, {self.scalar_type(), at::kLong}, kind);
  if (!results) return dispatch_by_rule(op, stack);
  return_tensors(op, stack, *results);
}

}  // namespace

const RuleFamily scan_handlers("scans", [](RuleRegistry& registry) {
  registry.add_handler("aten::cumsum", running<false>);
  registry.add_handler("aten::cumprod", running<true>);
  registry.add_handler("aten::logcumsumexp", running_logsumexp);
  registry.add_handler("aten::cummax", running_extreme<true>);
  registry.add_handler("aten::cummin", running_extreme<false>);
});

}  // namespace dtensor::internal
