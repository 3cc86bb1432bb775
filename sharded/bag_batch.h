// Lookup requests: ids in bags, in one form for 2-D input and for 1-D input with offsets.
//
//   BagInput a{ids};                       // [bags, ids of each]
//   BagInput b{ids, offsets};              // 1-D; bag i begins at offsets[i]
//   BagInput c{ids, {}, weights};          // a weight per id, mode "sum" alone
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "placement/geometry.h"

namespace dtensor::sharded {

// The arguments of torch::nn::functional::embedding_bag that are tensors.
struct BagInput {
  at::Tensor input;
  at::Tensor offsets = {};
  at::Tensor per_sample_weights = {};
};

// How rows are looked up. Defaults are those of torch::nn::functional::embedding and embedding_bag.
struct EmbeddingOptions {
  std::optional<int64_t> padding_idx = std::nullopt;  // negative: from the end
  std::optional<double> max_norm = std::nullopt;      // looked up rows are scaled down to this norm, in place
  double norm_type = 2.0;
  bool scale_grad_by_freq = false;  // rejected, as is `sparse`
  bool sparse = false;
  // Promises that every rank passes input of the same sizes (and no offsets), so that the ranks need not exchange
  // sizes.
  bool same_sizes = false;
};
struct EmbeddingBagOptions : EmbeddingOptions {
  std::string mode = "mean";  // "sum", "mean", "max"
  bool include_last_offset = false;
};

// Not for programs from here on.

// Bags of one table: bag i has ids[offsets[i]] .. ids[offsets[i + 1] - 1].
struct BagBatch {
  at::Tensor ids;      // int64, 1-D
  at::Tensor offsets;  // int64, 1-D, one more than there are bags
  at::Tensor weights;  // 1-D as ids; undefined if there are none
  int64_t num_bags() const { return offsets.numel() - 1; }
};

// Errors: arguments that torch::nn::functional rejects, with the texts of ShardedTensor's operators
// (docs/sharded_tensor.md).
BagBatch as_bags(const BagInput& input, const EmbeddingBagOptions& options);
// Every id a bag of its own. Error (ValueError): `input` is undefined or holds no integers.
BagBatch as_single_rows(const at::Tensor& input);

// Offsets of bags of the given lengths.
at::Tensor offsets_of(const at::Tensor& lengths);

// The ids in `window`, counted from its beginning, without those equal to `skipped`. Bags may become empty.
BagBatch keep(const BagBatch& bags, const IndexRange& window, std::optional<int64_t> skipped);

}  // namespace dtensor::sharded
