#include "sharded/table_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "comm/communicator.h"
#include "comm/scope.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

enum ReduceMode : int64_t { kSumMode = 0, kMeanMode = 1, kMaxMode = 2 };  // of at::embedding_bag

// Rows of this part: those of other ranks stay zeros. Padding is looked up, but gets no gradient.
at::Tensor single_rows(const at::Tensor& part, const at::Tensor& ids, const IndexRange& window,
                       std::optional<int64_t> padding) {
  const bool has_padding = padding && *padding >= window.begin && *padding < window.begin + window.size;
  const int64_t own_padding = has_padding ? *padding - window.begin : -1;
  const at::Tensor here = ids.ge(window.begin).logical_and_(ids.lt(window.begin + window.size)).nonzero().reshape(-1);
  const at::Tensor rows = at::embedding(part, ids.index_select(0, here) - window.begin, own_padding);
  if (here.numel() == ids.numel()) return rows;
  return at::zeros({ids.numel(), part.size(1)}, part.options()).index_copy(0, here, rows);
}

at::Tensor pooled(const at::Tensor& part, const BagBatch& kept, int64_t mode) {
  std::optional<at::Tensor> weights;
  if (kept.weights.defined()) weights = kept.weights;
  return std::get<0>(at::embedding_bag(part, kept.ids, kept.offsets, /*scale_grad_by_freq=*/false, mode,
                                       /*sparse=*/false, weights, /*include_last_offset=*/true));
}

// Renormalizes the rows of `ids`, where every rank has some columns.
void renormalize_columns(const TableParts& table, const at::Tensor& ids, double max_norm, double norm_type,
                         const std::string& op) {
  const at::Tensor rows = std::get<0>(at::_unique(ids));
  const bool is_maximum = std::isinf(norm_type);
  RankTensors sums;
  for (const at::Tensor& part : table.parts) {
    at::Tensor sum = at::zeros({rows.numel()}, table.options.dtype(at::kDouble));
    if (part.defined() && part.size(1) > 0) {
      const at::Tensor values = part.detach().index_select(0, rows).abs().to(at::kDouble);
      sum = is_maximum ? values.amax(1) : values.pow(norm_type).sum(1);
    }
    sums.push_back(sum);
  }
  CommCall call;
  call.group = &table.group.mesh().get_group(0);
  call.ranks = table.group.owned_ranks();
  call.event.cause = {op, "max_norm", current_scope().module_path, /*implicit=*/true};
  call.event.dtype = at::kDouble;
  call.event.bytes = 2 * rows.numel() * 8 * (table.group.size() - 1) / table.group.size();
  sums = table.group.world().communicator().all_reduce(call, sums, is_maximum ? ReduceOp::kMax : ReduceOp::kSum);
  for (size_t i = 0; i < sums.size(); ++i) {
    const at::Tensor& part = table.parts[i];
    if (!part.defined() || part.size(1) == 0) continue;
    const at::Tensor norms = is_maximum ? sums[i] : sums[i].pow(1 / norm_type);
    const at::Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), at::ones_like(norms));
    at::Tensor values = part.detach();
    values.index_copy_(0, rows, values.index_select(0, rows) * scale.to(values.scalar_type()).unsqueeze(1));
  }
}

}  // namespace

Pooling pooling_of(const std::string& mode) {
  return mode == "sum" ? Pooling::kSum : mode == "mean" ? Pooling::kMean : Pooling::kMax;
}

at::Tensor lookup(const TableParts& table, int64_t position, const at::Tensor& part, const BagBatch& bags,
                  Pooling pooling, std::optional<int64_t> padding) {
  const IndexRange window = table.rows_at(position);
  if (!part.defined()) return at::zeros({bags.num_bags(), table.columns_at(position)}, table.options);
  if (part.size(1) == 0) return part.sum(0, /*keepdim=*/true).expand({bags.num_bags(), 0});  // with an empty gradient
  const bool is_whole = window.size == table.rows;
  if (pooling == Pooling::kNone) return single_rows(part, bags.ids, window, padding);
  const BagBatch kept = keep(bags, window, padding);
  if (pooling == Pooling::kSum) return pooled(part, kept, kSumMode);
  if (pooling == Pooling::kMean) return pooled(part, kept, is_whole ? kMeanMode : kSumMode);
  const at::Tensor largest = pooled(part, kept, kMaxMode);
  if (is_whole) return largest;
  const at::Tensor is_empty = (kept.offsets.slice(0, 1) - kept.offsets.slice(0, 0, -1)).eq(0).unsqueeze(1);
  return largest.masked_fill(is_empty, -std::numeric_limits<double>::infinity());
}

void renormalize(const TableParts& table, const at::Tensor& ids, double max_norm, double norm_type,
                 const std::string& op) {
  if (ids.numel() == 0) return;
  const c10::AutoGradMode no_gradient(false);
  const auto holders =
      std::count_if(table.windows.begin(), table.windows.end(), [](const IndexRange& r) { return r.size > 0; });
  if (table.dim == 1 && holders > 1) return renormalize_columns(table, ids, max_norm, norm_type, op);
  const auto& ranks = table.group.owned_ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!table.parts[i].defined() || table.parts[i].numel() == 0) continue;
    const IndexRange window = table.rows_at(table.group.group_rank(ranks[i]));
    const at::Tensor own = keep({ids, ids.new_zeros({1}), {}}, window, std::nullopt).ids;
    at::Tensor values = table.parts[i].detach();
    if (own.numel() > 0) at::embedding_renorm_(values, own, max_norm, norm_type);
  }
}

}  // namespace dtensor::sharded
