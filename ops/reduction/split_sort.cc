// sort, kthvalue, median and mode along a dim that is sharded over ranks: by sample_sort.h, where whole rows per rank
// would leave ranks without any.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mode.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/reduction/sample_sort.h"
#include "ops/support/arguments.h"
#include "placement/valid_dim.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The rows of `self` along `dim`, as vectors split over ranks, if there are many elements and the rule's way, whole
// rows per rank, would leave ranks without any. nullopt: leave it to the rule.
std::optional<std::vector<at::Tensor>> rows_to_sort(const at::Tensor& self, int64_t dim) {
  const auto valid = valid_dim(dim, self.dim());
  if (!valid || self.is_complex()) return std::nullopt;
  dim = *valid;
  if (self.is_meta() || !is_split(self, {dim}) || meta_for_read(self).locals.empty()) return std::nullopt;
  if (self.scalar_type() == at::kUInt64) return std::nullopt;
  const Spec& spec = *spec_of(self);
  int64_t ranks = 1, cutting = 0;
  for (size_t d = 0; d < spec.placements().size(); ++d) {
    const Placement& p = spec.placements()[d];
    if (p == Replicate()) continue;
    if (p != Shard(dim) || ++cutting > 1) return std::nullopt;
    ranks = spec.mesh().size(static_cast<int64_t>(d));
  }
  const int64_t length = self.size(dim), rows = self.numel() / length;
  const int64_t element = static_cast<int64_t>(self.element_size()), row = element + 8;
  const int64_t gathered = element * length / ranks * (ranks - 1);
  if (rows >= ranks || row * (length / ranks + kSamplesPerRank * ranks + 64 * ranks) >= gathered) return std::nullopt;
  std::vector<at::Tensor> result;
  if (self.dim() == 1) return std::vector<at::Tensor>{self};
  const at::Tensor flat = self.movedim(dim, -1).reshape({rows, length});
  for (int64_t r = 0; r < rows; ++r) result.push_back(flat.select(0, r));
  for (const at::Tensor& t : result) {
    if (spec_of(t)->placements() != spec_of(result[0])->placements() || !is_split(t, {0})) return std::nullopt;
  }
  return result;
}

// Row by row; the results have `length` elements along `dim`, or no such dim.
template <typename OfVector>
ValuesAndIndices of_rows(const at::Tensor& self, const std::vector<at::Tensor>& rows, int64_t dim, bool reduces,
                         bool keepdim, const OfVector& of_vector) {
  if (dim < 0) dim += self.dim();
  std::vector<at::Tensor> values, indices;
  for (const at::Tensor& row : rows) {
    ValuesAndIndices r = of_vector(row);
    values.push_back(std::move(r.values)), indices.push_back(std::move(r.indices));
  }
  std::vector<int64_t> others = self.sizes().vec();
  others.erase(others.begin() + dim);
  const auto together = [&](const std::vector<at::Tensor>& parts) {
    if (self.dim() == 1) return keepdim ? parts[0].unsqueeze(0) : parts[0];
    at::Tensor t = at::stack(parts);
    if (reduces) {
      t = t.view(others);
      return keepdim ? t.unsqueeze(dim) : t;
    }
    std::vector<int64_t> sizes = others;
    sizes.push_back(self.size(dim));
    return t.view(sizes).movedim(-1, dim).contiguous();
  };
  return {together(values), together(indices)};
}

void push(const c10::OperatorHandle& op, Stack& stack, ValuesAndIndices result) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(result.values));
  stack.emplace_back(std::move(result.indices));
}

// sort(self, dim, descending), sort.stable(self, *, stable, dim, descending).
void sort(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t dim = args["dim"].toInt();
  const auto rows = rows_to_sort(self, dim);
  if (!rows) return dispatch_by_rule(op, stack);
  const bool descending = args["descending"].toBool();
  push(op, stack, of_rows(self, *rows, dim, /*reduces=*/false, /*keepdim=*/false, [&](const at::Tensor& row) {
         return sorted_vector(op, row, descending);
       }));
}

// kthvalue(self, k, dim, keepdim), median.dim, nanmedian.dim(self, dim, keepdim): an element of the sorted vector.
template <typename Place>
void element_in_order(const c10::OperatorHandle& op, Stack& stack, const Place& place) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t dim = args["dim"].toInt();
  const auto rows = rows_to_sort(self, dim);
  if (!rows) return dispatch_by_rule(op, stack);
  push(op, stack, of_rows(self, *rows, dim, /*reduces=*/true, args["keepdim"].toBool(), [&](const at::Tensor& row) {
         const ValuesAndIndices sorted = sorted_vector(op, row, /*descending=*/false);
         const at::Tensor at = place(row);
         return ValuesAndIndices{sorted.values.index_select(0, at).squeeze(0),
                                 sorted.indices.index_select(0, at).squeeze(0)};
       }));
}

void kthvalue(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t k = args["k"].toInt(), dim = args["dim"].toInt();
  const bool valid = dim >= -self.dim() && dim < self.dim() && k >= 1 && k <= self.size(dim);
  if (!valid) return dispatch_by_rule(op, stack);
  element_in_order(op, stack, [k](const at::Tensor& row) {
    at::Tensor at;
    {
      LocalGuard guard;
      at = at::tensor({k - 1}, at::TensorOptions(at::kLong).device(row.device()));
    }
    return replicate_plain(at, spec_of(row)->mesh());
  });
}

// The lower of the two in the middle; median is the first nan, if there is one, nanmedian skips them.
template <bool kIgnoreNan>
at::Tensor middle(const at::Tensor& row) {
  const int64_t n = row.size(0);
  const at::Tensor nans = row.isnan().sum().view({1});
  if (kIgnoreNan) return at::where(nans == n, n - 1, (n - nans - 1).floor_divide(2));
  return at::where(nans > 0, n - nans, (n - 1) / 2);
}

// mode(self, dim, keepdim).
void mode(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const int64_t dim = args["dim"].toInt();
  const auto rows = rows_to_sort(self, dim);
  if (!rows) return dispatch_by_rule(op, stack);
  push(op, stack, of_rows(self, *rows, dim, /*reduces=*/true, args["keepdim"].toBool(), [&](const at::Tensor& row) {
         return mode_of_vector(op, row);
       }));
}

// median, nanmedian(self): of all elements.
template <bool kIgnoreNan>
void median_of_all(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  if (self.dim() != 1 || !rows_to_sort(self, 0)) return dispatch_by_rule(op, stack);
  const at::Tensor values = sorted_vector(op, self, /*descending=*/false).values;
  const at::Tensor median = values.index_select(0, middle<kIgnoreNan>(self)).squeeze(0);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(median);
}

}  // namespace

const RuleFamily split_sort_handlers("split_sort", [](RuleRegistry& registry) {
  registry.add_handler("aten::sort", sort);
  registry.add_handler("aten::sort.stable", sort);
  registry.add_handler("aten::kthvalue", kthvalue);
  registry.add_handler("aten::mode", mode);
  registry.add_handler("aten::median", median_of_all<false>);
  registry.add_handler("aten::nanmedian", median_of_all<true>);
  registry.add_handler("aten::median.dim",
                       [](const c10::OperatorHandle& op, Stack& stack) { element_in_order(op, stack, middle<false>); });
  registry.add_handler("aten::nanmedian.dim",
                       [](const c10::OperatorHandle& op, Stack& stack) { element_in_order(op, stack, middle<true>); });
});

}  // namespace dtensor::internal
