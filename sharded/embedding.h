// Embedding tables sharded by rows or columns, with separate lookups on every rank.
//
//   std::vector<at::Tensor> rows = embedding(ids_of_each_rank, weight);          // one per owned rank, in and out
//   at::Tensor mine = embedding(ids, weight);                                    // of a process with one rank
//   auto pooled = embedding_bag({{ids0, offsets0}, {ids1, offsets1}}, weight, {.mode = "sum"});
//
// Input and result are ordinary tensors, different ones on each rank: the result of a plain embedding of the whole
// table for that input. (Of a DTensor the input is one value, laid out over the ranks: torch::embedding.) The gradient
// of every shard is that of its window of the whole table, summed over the ranks. The table is cut by a
// ChunkShardingSpec of dim 0 or 1, in any order of placements; a rank may have no part, so one placement alone makes a
// table-wise one.
//
// Collective. A call takes an all_gather of ids and one exchange of rows; its backward one exchange of their gradients;
// see lookup_tables.h. torch::embedding, torch::embedding_bag and the modules of torch::nn do the same for a sharded
// weight: then the lookup is that of the process's first rank.
//
// Errors, on all ranks where they come of one rank's input: ValueError "Index out of range in Input ...", "Weight needs
// to have exactly 2 dims", "\"max_norm\" must be larger than zero!", "Input more than 2 dims not supported", "offsets
// is required for 1D input", and what else torch::nn::functional refuses; TypeError "input need to be torch.Tensor";
// NotImplementedError "Only ChunkShardingSpec supported for ShardedTensor ops!"; c10::Error "nn.Embedding weight
// sharded with flag on \"sparse\" not supported!", "Only one local shard supported!".
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sharded/bag_batch.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// inputs: one per weight.process_group().owned_ranks(); each of any shape. Results: [shape of the input..., columns].
std::vector<at::Tensor> embedding(const std::vector<at::Tensor>& inputs, const ShardedTensor& weight,
                                  const EmbeddingOptions& options = {});
// Looks up for the first rank of this process; its other ranks look up nothing.
at::Tensor embedding(const at::Tensor& input, const ShardedTensor& weight, const EmbeddingOptions& options = {});

// Results: [bags, columns].
std::vector<at::Tensor> embedding_bag(const std::vector<BagInput>& inputs, const ShardedTensor& weight,
                                      const EmbeddingBagOptions& options = {});
at::Tensor embedding_bag(const BagInput& input, const ShardedTensor& weight, const EmbeddingBagOptions& options = {});

// Many tables of one group at once, with the collectives of one; the results table by table. `options.same_sizes` must
// hold for all of them to count.
struct BagTable {
  ShardedTensor weight;
  EmbeddingBagOptions options;
  std::vector<BagInput> inputs;  // one per owned rank
};
std::vector<std::vector<at::Tensor>> embedding_bags(const std::vector<BagTable>& tables);

}  // namespace dtensor::sharded
