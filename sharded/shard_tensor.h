// Shards plain tensors and parameters.
//
//   ShardedTensor st = shard_tensor(at::rand({12, 12}), rows, world);
//   shard_parameter(*linear, "weight", rows, world);      // linear->weight is a ShardedTensor now
//
// Collective: one exchange, after the ranks have compared their arguments. The values are those of the rank at position
// `src_rank` of the group; other ranks' must have the same size. Local shards are leaves and require grad if the tensor
// does. A rank without a placement gets no shard.
#pragma once

#include <string>

#include "sharded/sharded_tensor.h"

namespace torch::nn {
class Module;
}

namespace dtensor::sharded {

// Errors (ValueError): "input tensor is not a contiguous Tensor", "src_rank=0 on rank: 0 does not match with src_rank=1
// on rank: 1", "sharding_spec=... on rank: 0 does not match with sharding_spec=... on rank: 1"; the spec's. Of a spec
// that cannot shard: NotImplementedError "EnumerableShardingSpec.shard not implemented yet!".
ShardedTensor shard_tensor(const at::Tensor& tensor, const AnyShardingSpec& spec, const ProcessGroup& group,
                           int64_t src_rank = 0);

// In place: all handles of the parameter (the module's members, an optimizer) see the sharded one. Works for a buffer,
// too. `name` has no dots. Errors as above, and AttributeError "Linear has no attribute `foo`", ValueError "Expected
// Linear.bias to be a Tensor, but found ...", "param: bias is not a contiguous Tensor". After an error the module is
// unchanged.
void shard_parameter(torch::nn::Module& module, const std::string& name, const AnyShardingSpec& spec,
                     const ProcessGroup& group, int64_t src_rank = 0);

// Replaces the parameter or buffer `name` by a sharded tensor in place: the same at::Tensor becomes sharded. Error
// (AttributeError): as above; nothing that is defined is registered so.
void set_parameter(torch::nn::Module& module, const std::string& name, const ShardedTensor& t);

}  // namespace dtensor::sharded
