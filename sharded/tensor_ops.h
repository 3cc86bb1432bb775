// Operators that work shard by shard, and comparisons.
//
//   ShardedTensor copy = clone(st);
//   equal(st, copy);                   // true, on every rank
//   uniform_(st, 10, 20);
#pragma once

#include <optional>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// Same spec and group, other memory. Error of clone (c10::Error): "Only support torch.preserve_format for
// ShardedTensor!".
ShardedTensor clone(const ShardedTensor& st, c10::MemoryFormat format = c10::MemoryFormat::Preserve);
ShardedTensor deepcopy(const ShardedTensor& st);  // also the gradients' flags; leaves
// Error (c10::Error): "inplace copy can only happen between two ShardedTensor with same metadata!".
const ShardedTensor& copy_(const ShardedTensor& to, const ShardedTensor& from);
ShardedTensor detach(const ShardedTensor& st);  // requires no grad, nor do its shards; the same memory
const ShardedTensor& requires_grad_(const ShardedTensor& st, bool requires_grad = true);  // and its shards
// `like`: plain or sharded. Returns `st` itself if the dtype is the same.
ShardedTensor type_as(const ShardedTensor& st, const at::Tensor& like);

// Applies the ordinary operator to each rank's shards: a shard gets the values of a plain tensor of its size. Kaiming's
// fan is that of the shard.
const ShardedTensor& uniform_(const ShardedTensor& st, double from = 0, double to = 1);
const ShardedTensor& normal_(const ShardedTensor& st, double mean = 0, double std = 1);
const ShardedTensor& constant_(const ShardedTensor& st, const c10::Scalar& value);
enum class FanMode { kFanIn, kFanOut };
const ShardedTensor& kaiming_uniform_(const ShardedTensor& st, double a = 0, FanMode mode = FanMode::kFanIn,
                                      const std::string& nonlinearity = "leaky_relu");

// Collective, the same answer on every rank; true for a process outside the group. Both sharded alike, with the same
// metadata (dtype, requires_grad and pinning among it), and values equal, or close to each other.
// Error (c10::Error): "All distributed tensors should use the same ProcessGroup if used together in an op."; TypeError
// "Both arguments to torch.equal need to be of type ShardedTensor".
bool equal(const at::Tensor& a, const at::Tensor& b);
bool allclose(const at::Tensor& a, const at::Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
// Better matches than ATen's overloads, next to which they may be called unqualified.
inline bool equal(const ShardedTensor& a, const ShardedTensor& b) { return sharded::equal(a.tensor(), b.tensor()); }
inline bool allclose(const ShardedTensor& a, const ShardedTensor& b, double rtol = 1e-5, double atol = 1e-8,
                     bool equal_nan = false) {
  return sharded::allclose(a.tensor(), b.tensor(), rtol, atol, equal_nan);
}

}  // namespace dtensor::sharded
