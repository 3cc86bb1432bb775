// A tensor whose shards are on the ranks of a group (torch.distributed._shard.sharded_tensor.ShardedTensor). PyTorch
// deprecates it in favour of DTensor, and so does this library: see docs/sharded_tensor.md for the migration.
//
//   ShardedTensor st = rand(ChunkShardingSpec(0, {"rank:0/cpu", "rank:1/cpu"}), {10, 20}, World::local(2));
//   st.local_shards(1)[0].tensor;      // rows 5-9
//   st.metadata().size;                // [10, 20]
//
// A handle to an at::Tensor of the global size without data of its own, so that modules take it as a parameter. A
// process may own several ranks: functions about one rank take it as an argument; without it they mean the only rank of
// the process. Functions are collective where stated: every process with a rank of the group calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sharded/process_group.h"
#include "sharded/remote_shard.h"
#include "sharded/shard.h"
#include "sharded/sharded_key.h"
#include "sharded/sharding_spec.h"

namespace dtensor::sharded {

struct ShardedTensorState;  // sharded_tensor_state.h
struct MoveOptions;         // moves.h

class ShardedTensor {
 public:
  // Error (TypeError): the tensor is not a sharded one.
  explicit ShardedTensor(at::Tensor tensor);
  operator const at::Tensor&() const { return tensor_; }
  const at::Tensor& tensor() const { return tensor_; }
  // Whether both are handles of one tensor.
  bool is_same(const ShardedTensor& other) const { return tensor_.is_same(other.tensor_); }

  const ShardedTensorMetadata& metadata() const;
  const AnyShardingSpec& sharding_spec() const;
  const ProcessGroup& process_group() const;
  bool init_rrefs() const;

  // The shards of a rank, none if it hosts none; their tensors may be replaced.
  // Errors (ValueError): a rank that this process does not own; without a rank, a process that owns several.
  std::vector<Shard>& local_shards() const;
  std::vector<Shard>& local_shards(int64_t rank) const;
  // The tensor of the only shard. Error (NotImplementedError): "Only single local shard is supported."
  const at::Tensor& local_tensor() const;
  const at::Tensor& local_tensor(int64_t rank) const;

  // As of an at::Tensor of the global size. Error of size(i) (IndexError): "Dimension out of range ...".
  c10::IntArrayRef sizes() const { return tensor_.sizes(); }
  int64_t size(int64_t dim) const;
  int64_t dim() const { return tensor_.dim(); }
  int64_t numel() const { return tensor_.numel(); }
  c10::ScalarType dtype() const;
  c10::Layout layout() const;
  bool requires_grad() const;
  bool is_pinned() const;
  bool is_contiguous() const { return true; }
  bool is_floating_point() const { return c10::isFloatingType(dtype()); }
  bool is_meta() const;  // the first local shard is
  // Device of the first local shard; without one, of the process's first rank.
  c10::Device device() const;
  // Error, always (c10::Error): "torch function '__set__' ... not supported for ShardedTensor!"; see requires_grad_()
  // in tensor_ops.h.
  void set_requires_grad(bool) const;

  // Collective. `out`, of the global size, becomes the whole value on the rank at position `dst` of the group; other
  // processes pass none. No gradient. `dtype`: in which the values travel; by default the tensor's own.
  // Errors (ValueError), on all ranks: "Argument ``dst_tensor`` must be specified on destination rank 1", "... must NOT
  // be specified on non-destination ranks.", "... have size ...,but should be ...".
  void gather(int64_t dst = 0, const at::Tensor& out = {}, std::optional<c10::ScalarType> dtype = std::nullopt) const;

  // Collective, in place: from one chunk spec to another, of one shard per rank. Gradients come back to the shards
  // before. Metadata is in the order of the ranks afterwards, offsets add up. The same spec changes nothing.
  // Errors (NotImplementedError): "Only ChunkShardingSpec supported for reshard.", "Only single local shard supported
  // for reshard."
  const ShardedTensor& reshard(const AnyShardingSpec& spec) const;
  // Collective. The same values with any other spec, as a new tensor; differentiable as reshard() is.
  ShardedTensor resharded(const AnyShardingSpec& spec) const;

  // On other devices, see moves.h. Returns the tensor itself if it is there already, except cuda().
  ShardedTensor cpu(const ProcessGroup& group = {}, c10::MemoryFormat format = c10::MemoryFormat::Preserve) const;
  ShardedTensor cuda(std::optional<c10::Device> device = std::nullopt, const ProcessGroup& group = {},
                     c10::MemoryFormat format = c10::MemoryFormat::Preserve) const;
  ShardedTensor to(const MoveOptions& options) const;

  // The shards of other ranks, by rank. Error (c10::Error): "ShardedTensor created with init_rrefs=False, no RRefs to
  // remote shards available".
  std::map<int64_t, std::vector<RemoteShard>> remote_shards() const;
  std::map<int64_t, std::vector<RemoteShard>> remote_shards(int64_t rank) const;

  std::string to_string() const;  // "ShardedTensor(ShardedTensorMetadata(...))"

  ShardedTensorState& state() const;  // for operators: sharded_tensor_state.h

 private:
  at::Tensor tensor_;
};

std::ostream& operator<<(std::ostream& os, const ShardedTensor& t);

// A tensor with shards and metadata alone: no group, no communication, any number of ranks' shards in one process.
class ShardedTensorBase {
 public:
  // Errors (ValueError): "shards_metadata must not be empty!", "Only torch.strided layout is currently supported",
  // shards that overlap or leave something out. The shards' tensors are not looked at.
  static ShardedTensorBase init_from_local_shards_and_global_metadata(std::vector<Shard> shards,
                                                                      const ShardedTensorMetadata& metadata,
                                                                      AnyShardingSpec spec = {});
  const ShardedTensorMetadata& metadata() const { return metadata_; }
  const AnyShardingSpec& sharding_spec() const { return spec_; }
  std::vector<Shard>& local_shards() { return shards_; }
  c10::IntArrayRef sizes() const { return metadata_.size; }

 private:
  std::vector<Shard> shards_;
  ShardedTensorMetadata metadata_;
  AnyShardingSpec spec_;
};

}  // namespace dtensor::sharded
