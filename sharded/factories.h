// New sharded tensors.
//
//   ChunkShardingSpec rows(0, {"rank:0/cpu", "rank:1/cpu"});
//   ShardedTensor st = ones(rows, {10, 20}, World::local(2), {.dtype = at::kDouble});
//
// Every rank fills its own shards with the ordinary operators, so that random values are those of a plain tensor of the
// shard's size; the ranks of one process draw one after the other. (dtensor::rand draws values that do not depend on
// the layout.) No communication, unless init_rrefs.
//
// Errors, in this order: the spec's; ValueError "Only torch.strided layout is currently supported", "Only
// torch.contiguous_format memory_format is currently supported"; of the placements validate_remote_device()'s.
#pragma once

#include <c10/core/Scalar.h>

#include <optional>
#include <vector>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

struct ShardedTensorOptions {
  std::optional<c10::ScalarType> dtype = std::nullopt;  // the default dtype; full() ignores its value's type
  c10::Layout layout = c10::kStrided;
  bool requires_grad = false;
  bool pin_memory = false;
  c10::MemoryFormat memory_format = c10::MemoryFormat::Contiguous;
  bool init_rrefs = false;  // remote_shard.h
};

ShardedTensor empty(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options = {});
ShardedTensor zeros(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options = {});
ShardedTensor ones(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                   const ShardedTensorOptions& options = {});
ShardedTensor full(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const c10::Scalar& value,
                   const ProcessGroup& group, const ShardedTensorOptions& options = {});
// Uniform in [0, 1), and standard normal.
ShardedTensor rand(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                   const ShardedTensorOptions& options = {});
ShardedTensor randn(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options = {});

// With spec, size and group of `st`; dtype and the others from `options` only.
ShardedTensor empty_like(const ShardedTensor& st, const ShardedTensorOptions& options = {});
ShardedTensor zeros_like(const ShardedTensor& st, const ShardedTensorOptions& options = {});
ShardedTensor ones_like(const ShardedTensor& st, const ShardedTensorOptions& options = {});
ShardedTensor full_like(const ShardedTensor& st, const c10::Scalar& value, const ShardedTensorOptions& options = {});
ShardedTensor rand_like(const ShardedTensor& st, const ShardedTensorOptions& options = {});
ShardedTensor randn_like(const ShardedTensor& st, const ShardedTensorOptions& options = {});

// Sizes that are known at run time only: one integer, or a list or tuple of them. Error (TypeError): "size has to be a
// sequence of ints, found: ...".
std::vector<int64_t> global_size(const c10::IValue& sizes);

}  // namespace dtensor::sharded
