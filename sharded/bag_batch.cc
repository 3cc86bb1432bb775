#include "sharded/bag_batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "dtensor/dispatch_key.h"

namespace dtensor::sharded {
namespace {

void check_ids(const at::Tensor& t, const char* name) {
  TORCH_CHECK_TYPE(t.defined(), name, " need to be torch.Tensor");
  TORCH_CHECK_TYPE(!is_dtensor(t), name,
                   " is a DTensor; a ShardedTensor is looked up with plain ids, other ones on each "
                   "rank: pass to_local() of it, or make the table a DTensor");
  TORCH_CHECK_VALUE(t.scalar_type() == at::kLong || t.scalar_type() == at::kInt, name, " has dtype ", t.scalar_type(),
                    "; ids and offsets are kLong or kInt");
}

void check_mode(const BagInput& input, const EmbeddingBagOptions& o) {
  TORCH_CHECK_VALUE(o.mode == "sum" || o.mode == "mean" || o.mode == "max", "mode '", o.mode,
                    "' is not supported: it is sum, mean or max");
  const at::Tensor& weights = input.per_sample_weights;
  if (!weights.defined()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(o.mode == "sum", "per_sample_weights is only supported for mode 'sum', not '", o.mode,
                              "'");
  TORCH_CHECK_VALUE(weights.sizes() == input.input.sizes(), "per_sample_weights size ", weights.sizes(),
                    " not equal to input size ", input.input.sizes());
}

at::Tensor checked_offsets(const BagInput& input, const EmbeddingBagOptions& o) {
  check_ids(input.offsets, "offsets");
  TORCH_CHECK_VALUE(input.offsets.dim() == 1, "offsets has ", input.offsets.dim(), " dims; it has 1");
  const int64_t num_ids = input.input.numel();
  at::Tensor offsets = input.offsets.to(at::kLong);
  const int64_t count = offsets.numel();
  if (o.include_last_offset) {
    TORCH_CHECK_VALUE(count > 0 && offsets[count - 1].item<int64_t>() == num_ids,
                      "offsets need to have the input size in the end, ", num_ids,
                      ", when the flag \"include_last_offset\" is on!");
  } else {
    offsets = at::cat({offsets, at::full({1}, num_ids, offsets.options())});
  }
  const at::Tensor lengths = offsets.slice(0, 1) - offsets.slice(0, 0, -1);
  TORCH_CHECK_VALUE(count == 0 || offsets[0].item<int64_t>() == 0, "offsets[0] has to be 0, not ",
                    count == 0 ? 0 : offsets[0].item<int64_t>());
  TORCH_CHECK_VALUE(lengths.numel() == 0 || lengths.min().item<int64_t>() >= 0,
                    "offsets must not fall and not exceed the input size, ", num_ids);
  TORCH_CHECK_VALUE(count > 0 || num_ids == 0, "offsets is empty, but there are ", num_ids, " ids");
  return offsets;
}

}  // namespace

at::Tensor offsets_of(const at::Tensor& lengths) {
  return at::cat({at::zeros({1}, lengths.options()), lengths.cumsum(0)});
}

BagBatch as_bags(const BagInput& input, const EmbeddingBagOptions& o) {
  check_ids(input.input, "input");
  check_mode(input, o);
  const at::Tensor& ids = input.input;
  TORCH_CHECK_VALUE(ids.dim() == 1 || ids.dim() == 2, "Input more than 2 dims not supported: input is ", ids.sizes());
  TORCH_CHECK_VALUE(!o.include_last_offset || input.offsets.defined(),
                    "offsets is required for flag \"include_last_offset\"!");
  BagBatch bags;
  if (ids.dim() == 2) {
    TORCH_CHECK_VALUE(!input.offsets.defined(),
                      "Input dimension needs to be exactly 1 dim where there are offsets; it is ", ids.sizes());
    bags.offsets = at::arange(ids.size(0) + 1, ids.options().dtype(at::kLong)) * ids.size(1);
  } else {
    TORCH_CHECK_VALUE(input.offsets.defined(), "offsets is required for 1D input");
    bags.offsets = checked_offsets(input, o);
  }
  bags.ids = ids.reshape(-1).to(at::kLong);
  if (input.per_sample_weights.defined()) bags.weights = input.per_sample_weights.reshape(-1);
  return bags;
}

BagBatch as_single_rows(const at::Tensor& input) {
  check_ids(input, "input");
  BagBatch rows;
  rows.ids = input.reshape(-1).to(at::kLong);
  rows.offsets = at::arange(rows.ids.numel() + 1, rows.ids.options());
  return rows;
}

BagBatch keep(const BagBatch& bags, const IndexRange& window, std::optional<int64_t> skipped) {
  at::Tensor wanted = bags.ids.ge(window.begin).logical_and_(bags.ids.lt(window.begin + window.size));
  if (skipped) wanted.logical_and_(bags.ids.ne(*skipped));
  BagBatch kept;
  const at::Tensor places = wanted.nonzero().reshape(-1);
  kept.ids = bags.ids.index_select(0, places) - window.begin;
  if (bags.weights.defined()) kept.weights = bags.weights.index_select(0, places);
  // How many are kept before each beginning.
  kept.offsets = offsets_of(wanted.to(at::kLong)).index_select(0, bags.offsets);
  return kept;
}

}  // namespace dtensor::sharded
