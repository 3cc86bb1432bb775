// A mixture of experts over the ranks of a mesh dim: every rank has some of the tokens and some of the experts, and the
// tokens go to the ranks of their experts and back, one all_to_all each way and one each in backward.
//
//   const auto [shares, ids] = torch::softmax(router(x), -1).topk(2, -1);   // x: [tokens, width], sharded over "ep"
//   const ExpertTokens sent = moe_dispatch(x, ids, {layer.up}, "ep");       // up: [experts, width, hidden], likewise
//   std::vector<at::Tensor> results;
//   for (size_t i = 0; i < sent.rows.size(); ++i)                           // each rank that this process owns
//     results.push_back(torch::_grouped_mm(sent.rows[i], sent.weights[0][i], sent.offsets[i]));
//   const at::Tensor y = moe_combine(sent, results, shares);                // as x
//
// Between the two calls tensors are plain, since the numbers of rows depend on values. Every expert gets all of its
// tokens: there is no capacity.
//
// In a world without data, as of a prediction, there is one entry for each list, of the rank with most experts and
// tokens, and each expert is taken to get as many rows as the others, rounded up: predict_step() counts the
// collectives, the operators between the two calls, and their memory. In a world with data it does not see plain
// operators.
//
// Source: Shazeer et al., Outrageously Large Neural Networks, 2017; the exchange as in
// Lepikhin et al., GShard, 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dtensor {

namespace internal {
struct ExpertRoute;  // experts.cc
}  // namespace internal

// What the ranks of this process got; one entry per mesh.local_ranks() in each list of tensors, without data one.
struct ExpertTokens {
  std::vector<at::Tensor> rows;                  // [received, width], sorted by expert; may have no rows
  std::vector<at::Tensor> offsets;               // int32 [local experts]: the end of each one's rows, for _grouped_mm
  std::vector<std::vector<int64_t>> counts;      // rows of each local expert
  std::vector<std::vector<at::Tensor>> weights;  // of each weight: [local experts, ...]
  std::shared_ptr<const internal::ExpertRoute> route;
};

// Sends each token to the ranks of its experts. tokens: [..., width], each sharded by some dim other than the last over
// `mesh_dim`, and sharded likewise or replicated over other mesh dims. expert_ids: integers [..., k]; redistributed to
// the layout of `tokens` where it has another one. weights: one or more of the experts, [number of experts, ...] each;
// redistributed, as of fully_shard(), where they are not Shard(0) over `mesh_dim`, which may leave ranks without
// experts, and Replicate over other mesh dims. Besides, two collectives: an all_gather of one count per expert and
// rank, and the all_to_all of the tokens, whose gradients come back in one more. All ranks must call backward alike.
// In a job every process must have a rank of the mesh: a stage of a Pipeline that not all processes have a rank of
// cannot use it, since operators of a stage run in every process.
// Errors: (ValueError, TypeError) arguments and layouts other than these; (IndexError, on all ranks of the group) an id
// that is no expert; NotImplementedError: this process has ranks, but none of the tokens' mesh.
ExpertTokens moe_dispatch(const at::Tensor& tokens, const at::Tensor& expert_ids,
                          const std::vector<at::Tensor>& weights, const std::string& mesh_dim);

// Sends the experts' results back: [received, any width] for each entry of `sent.rows`. Returns, in the layout of the
// tokens, the sum of the k results of each times `shares`, [..., k]; without shares their sum. Experts without rows,
// and ranks without any, may be skipped: their weights get zeros as gradients, and all ranks still communicate alike.
// For gradients of gradients (create_graph) nothing may be skipped: a rank without rows or experts, too, must compute
// its results from `sent.rows` and `sent.weights`.
// Errors (ValueError): results of another number of rows; shares of other sizes; widths or dtypes that differ between
// ranks of this process. In a job those of other processes are not checked: a rank without rows must give the others'
// width and dtype.
at::Tensor moe_combine(const ExpertTokens& sent, const std::vector<at::Tensor>& results, const at::Tensor& shares = {});

}  // namespace dtensor
