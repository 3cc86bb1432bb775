// Collectives on plain tensors, for algorithms that no layout expresses, such as rings and routing. redistribute()
// moves distributed tensors.
//
//   std::vector<at::Tensor> parts = to_local(x);                        // one per mesh.local_ranks()
//   auto sums = all_reduce(parts, mesh, "tp");
//   auto rows = all_gather_tensor(parts, mesh, "tp", /*gather_dim=*/0);
//   auto next = permute_tensor(parts, mesh, "tp", {1, 2, 3, 0});        // position 0 sends to 1, ..., 3 to 0
//
// `tensors` has one plain tensor for each rank of mesh.local_ranks(), in that order, and so has the result, in memory
// of its own. A collective is one for each group of ranks along `mesh_dim`; positions count along it. The tensors of a
// group have equal dtypes, and equal sizes but where `sizes` or splits say otherwise. All ranks of a group make the
// same calls in the same order; send_recv() is a call of two positions only. CommDebugMode counts these calls as
// explicit; in an abstract world, which has no tensors, with 0 bytes.
//
// all_reduce, all_gather_tensor, reduce_scatter_tensor, all_to_all_single and permute_tensor are differentiable: the
// gradients are those of the sum of all ranks' losses. Their backward is a collective, too, so the tensors of all ranks
// of a group must require gradients, or none, and backward of all must reach it. Results of the others have no autograd
// history.
//
// Errors before anything is sent: no such mesh dim; another number of tensors than ranks (ValueError); an undefined or
// distributed tensor, or one on another device than its rank's (TypeError); tensors of this process that differ within
// a group, positions, dims, sizes or splits that do not fit (ValueError). If tensors of other processes differ, the
// call fails on all ranks of the group.
//
// Sources: torch.distributed._functional_collectives, torch.distributed.nn.functional.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor {

// The sum (or another reduction) of a group's tensors, on each of its ranks. Errors (ValueError): kNorm2; gradients of
// another op than kSum and kAvg.
std::vector<at::Tensor> all_reduce(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                   std::string_view mesh_dim, ReduceOp op = ReduceOp::kSum);

// A group's tensors, concatenated along `gather_dim` in the order of positions, on each of its ranks. `sizes`: of the
// tensors along gather_dim, one per position, in all groups alike; empty: all equal.
std::vector<at::Tensor> all_gather_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                          std::string_view mesh_dim, int64_t gather_dim = 0,
                                          c10::IntArrayRef sizes = {});

// The sum (or another reduction) of a group's tensors, split along `scatter_dim`: position i gets the i-th part.
// `sizes`: of the parts, one per position; empty: all equal. Errors as of all_reduce(), and that the size along
// scatter_dim is no multiple of the group's, or not the sum of `sizes`.
std::vector<at::Tensor> reduce_scatter_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                              std::string_view mesh_dim, int64_t scatter_dim = 0,
                                              ReduceOp op = ReduceOp::kSum, c10::IntArrayRef sizes = {});

// Splits each tensor along its first dim, and sends the i-th part to position i; the result has the parts that arrive,
// concatenated in the order of positions. Splits: one list for each rank of mesh.local_ranks(), with the sizes of the
// parts that it sends (`input_split_sizes`) and receives (`output_split_sizes`), one per position. Both empty: all
// equal. Tensors may differ in the first dim if there are splits.
struct AllToAllSplits {
  std::vector<std::vector<int64_t>> output_split_sizes = {}, input_split_sizes = {};
};
std::vector<at::Tensor> all_to_all_single(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                          std::string_view mesh_dim, const AllToAllSplits& splits = {});

// Position i sends its tensor to position src_dst[i]; -1: to none. Positions that get none have zeros.
// Error (ValueError): two positions send to one.
std::vector<at::Tensor> permute_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                       std::string_view mesh_dim, c10::IntArrayRef src_dst);

// The tensor at position `src`, on each rank of its group. Of the others only sizes and dtype count.
std::vector<at::Tensor> broadcast(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                  std::string_view mesh_dim, int64_t src = 0);

// The tensor at position `src`, split along `scatter_dim`: position i gets the i-th part. Of the other tensors only
// sizes and dtype count. `sizes`: as of reduce_scatter_tensor().
std::vector<at::Tensor> scatter(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                std::string_view mesh_dim, int64_t src = 0, int64_t scatter_dim = 0,
                                c10::IntArrayRef sizes = {});

// all_gather_tensor() to position `dst` only: the results of other ranks are undefined.
std::vector<at::Tensor> gather(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                               std::string_view mesh_dim, int64_t dst = 0, int64_t gather_dim = 0,
                               c10::IntArrayRef sizes = {});

// torch.distributed's send() of position `src` and recv() of position `dst` in one call: `dst` gets the tensor of
// `src`, and results of other ranks are undefined. Of the tensor at `dst` only sizes and dtype count. Only processes
// with ranks at `src` or `dst` need to call it; for others it does nothing. Error (ValueError): src is dst.
std::vector<at::Tensor> send_recv(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                  std::string_view mesh_dim, int64_t src, int64_t dst);

// Returns when all ranks of the mesh have called it; monitored_barrier() of processes/monitored_barrier.h names those
// that have not.
void barrier(const DeviceMesh& mesh);

}  // namespace dtensor
