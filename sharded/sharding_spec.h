// How a tensor is divided into shards. Three kinds are built in; programs may derive others.
//
//   struct Halves : ShardingSpec { ... };
//   ShardedTensor st = empty(Halves(), {8, 8}, world);
//
// Source: torch.distributed._shard.sharding_spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "sharded/process_group.h"
#include "sharded/sharded_tensor_metadata.h"

namespace dtensor::sharded {

class ShardedTensor;  // sharded_tensor.h

class ShardingSpec {
 public:
  virtual ~ShardingSpec() = default;

  // The shards of a tensor of `sizes`. The same on every rank. Errors (ValueError): sizes that cannot be cut so.
  virtual ShardedTensorMetadata build_metadata(c10::IntArrayRef sizes, const TensorProperties& properties) const = 0;
  // Distributes the tensor of the rank at position `src_rank` of the group: shard_tensor() without its checks.
  // Collective. By default NotImplementedError "<name>.shard not implemented yet!".
  virtual ShardedTensor shard(const at::Tensor& tensor, int64_t src_rank, const ProcessGroup& group) const;

  virtual std::string name() const = 0;       // of the class: "ChunkShardingSpec"
  virtual std::string to_string() const = 0;  // unique description: ranks compare these texts
  virtual bool equals(const ShardingSpec& other) const {
    return name() == other.name() && to_string() == other.to_string();
  }

 protected:
  ShardingSpec() = default;
  ShardingSpec(const ShardingSpec&) = default;
  ShardingSpec& operator=(const ShardingSpec&) = default;
};

// Any spec as a value, for function arguments and tensors. Copies share it.
class AnyShardingSpec {
 public:
  AnyShardingSpec() = default;  // none; defined() is false
  template <typename S, typename = std::enable_if_t<std::is_base_of_v<ShardingSpec, std::decay_t<S>>>>
  AnyShardingSpec(S&& spec)  // NOLINT: every spec is one
      : spec_(std::make_shared<std::decay_t<S>>(std::forward<S>(spec))) {}
  AnyShardingSpec(std::shared_ptr<const ShardingSpec> spec) : spec_(std::move(spec)) {}  // NOLINT

  bool defined() const { return spec_ != nullptr; }
  const ShardingSpec* operator->() const { return spec_.get(); }
  const ShardingSpec& operator*() const { return *spec_; }
  // Null if it is of another class: spec.as<ChunkShardingSpec>()->dim().
  template <typename S>
  const S* as() const {
    return dynamic_cast<const S*>(spec_.get());
  }

  friend bool operator==(const AnyShardingSpec& a, const AnyShardingSpec& b) {
    return a.spec_ == b.spec_ || (a.defined() && b.defined() && a.spec_->equals(*b.spec_));
  }
  friend bool operator!=(const AnyShardingSpec& a, const AnyShardingSpec& b) { return !(a == b); }

 private:
  std::shared_ptr<const ShardingSpec> spec_;
};

// The device of a whole tensor; DevicePlacementSpec holds a device.
struct PlacementSpec {
  virtual ~PlacementSpec() = default;
};
struct DevicePlacementSpec : PlacementSpec {
  explicit DevicePlacementSpec(RemoteDevice d) : device(std::move(d)) {}
  RemoteDevice device;
  friend bool operator==(const DevicePlacementSpec& a, const DevicePlacementSpec& b) { return a.device == b.device; }
};

}  // namespace dtensor::sharded
