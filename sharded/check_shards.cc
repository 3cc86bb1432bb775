#include "sharded/check_shards.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "sharded/enumerable_sharding_spec.h"
#include "sharded/remote_shard.h"

namespace dtensor::sharded {
namespace {

void check_form(const Shard& shard, int64_t rank) {
  TORCH_CHECK_VALUE(shard.tensor.layout() == c10::kStrided,
                    "Only torch.strided layout is currently supported, but found ", shard.tensor.layout(),
                    " on rank:", rank, "!");
  TORCH_CHECK_VALUE(shard.tensor.is_contiguous(), "Only torch.contiguous_format memory_format is currently supported!");
}

void check_size_and_device(const Shard& shard) { Shard(shard.tensor, shard.metadata); }

template <typename T>
void check_need_same(const char* property, const T& a, const T& b, int64_t rank) {
  TORCH_CHECK_VALUE(a == b, "Local shards' tensor ", property, " property need to be the same on rank:", rank,
                    "! Found one local shard tensor ", property, "=", a, ", the other local shard tensor ", property,
                    "=", b, ".");
}

template <typename T>
void check_compatible(const char* property, const T& expected, const T& actual, const char* whose, int64_t rank) {
  TORCH_CHECK_VALUE(expected == actual, "Local shards' tensor ", property, " property is incompatible with ", whose,
                    " on rank ", rank, ": ", whose, " ", property, "=", expected, ", local shard tensor ", property,
                    "=", actual, ".");
}

}  // namespace

ShardedTensorMetadata metadata_of_local_shards(const std::vector<Shard>& shards, int64_t rank,
                                               const ProcessGroup& group) {
  ShardedTensorMetadata metadata;
  for (const Shard& shard : shards) {
    const int64_t owner = validate_remote_device(group, rank, shard.metadata.placement).rank;
    check_form(shard, rank);
    TORCH_CHECK_VALUE(
        owner == rank,
        "Local shard metadata's rank does not match with the rank in its process group! Found current rank "
        "in the process group: ",
        rank, ", local ShardMetadata placement's rank: ", owner);
    check_size_and_device(shard);
    const TensorProperties own = TensorProperties::create_from_tensor(shard.tensor);
    if (metadata.shards_metadata.empty()) metadata.tensor_properties = own;
    const TensorProperties& first = metadata.tensor_properties;
    check_need_same("pin_memory", first.pin_memory, own.pin_memory, rank);
    check_need_same("dtype", first.dtype, own.dtype, rank);
    check_need_same("requires_grad", first.requires_grad, own.requires_grad, rank);
    metadata.shards_metadata.push_back(shard.metadata);
  }
  return metadata;
}

void check_against_metadata(const std::vector<Shard>& shards, const ShardedTensorMetadata& metadata, int64_t rank,
                            const ProcessGroup& group) {
  std::vector<const ShardMetadata*> own;
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    if (validate_remote_device(group, rank, shard.placement).rank == rank) own.push_back(&shard);
  }
  TORCH_CHECK(shards.size() == own.size(), "Number of local shards (", shards.size(),
              ") does not match number of local shards metadata in sharded_tensor_metadata (", own.size(),
              ") on rank (", rank, ") ");
  TORCH_CHECK_VALUE(!metadata.shards_metadata.empty(), "shards_metadata must not be empty!");
  TORCH_CHECK_VALUE(metadata.tensor_properties.layout == c10::kStrided,
                    "Only torch.strided layout is currently supported, but found ", metadata.tensor_properties.layout);
  const char* const tensor = "tensor property";
  for (const Shard& shard : shards) {
    check_compatible("layout", metadata.tensor_properties.layout, shard.tensor.layout(), tensor, rank);
    TORCH_CHECK_VALUE(shard.tensor.is_contiguous(),
                      "Only torch.contiguous_format memory_format is currently supported!");
    check_size_and_device(shard);
    const bool listed = std::any_of(own.begin(), own.end(), [&](const ShardMetadata* md) {
      return md->shard_offsets == shard.metadata.shard_offsets && md->shard_sizes == shard.metadata.shard_sizes;
    });
    TORCH_CHECK_VALUE(listed, "Local shards' metadata is incompatible with local ShardMetadata on rank ", rank, ": ",
                      shard.metadata, " is not among the shards of the metadata");
    const TensorProperties actual = TensorProperties::create_from_tensor(shard.tensor);
    check_compatible("pin_memory", metadata.tensor_properties.pin_memory, actual.pin_memory, tensor, rank);
    check_compatible("dtype", metadata.tensor_properties.dtype, actual.dtype, tensor, rank);
    check_compatible("requires_grad", metadata.tensor_properties.requires_grad, actual.requires_grad, tensor, rank);
  }
  validate_non_overlapping(metadata.shards_metadata);
  check_tensor(metadata.shards_metadata, metadata.size);
}

void lay_below_each_other(ShardedTensorMetadata& metadata) {
  TORCH_INTERNAL_ASSERT(!metadata.shards_metadata.empty());
  metadata.size = metadata.shards_metadata[0].shard_sizes;
  TORCH_CHECK_VALUE(!metadata.size.empty(), "shards without dims cannot lie one below the other");
  int64_t rows = 0;
  for (ShardMetadata& shard : metadata.shards_metadata) {
    TORCH_CHECK_VALUE(shard.shard_sizes.size() == metadata.size.size(),
                      "Found inconsistent ranks for shards: ", metadata.size.size(), " and ", shard.shard_sizes.size());
    shard.shard_offsets.assign(shard.shard_sizes.size(), 0);
    shard.shard_offsets[0] = rows;
    rows += shard.shard_sizes[0];
  }
  metadata.size[0] = rows;
}

void put_in_order(std::vector<Shard>& shards, const ShardedTensorMetadata& metadata, int64_t rank, const World& world) {
  std::vector<Shard> ordered;
  for (const ShardMetadata& md : metadata.shards_metadata) {
    if (rank_of(*md.placement, world) != rank) continue;
    const auto at = std::find_if(shards.begin(), shards.end(), [&](const Shard& shard) {
      return shard.tensor.defined() && shard.metadata.shard_offsets == md.shard_offsets &&
             shard.metadata.shard_sizes == md.shard_sizes;
    });
    TORCH_CHECK_VALUE(at != shards.end(), "the spec gives rank ", rank, " ", md,
                      ", which is not among its local shards: they are not cut as the spec says");
    ordered.emplace_back(std::move(at->tensor), md);
    at->tensor = at::Tensor();
  }
  TORCH_CHECK_VALUE(ordered.size() == shards.size(), "rank ", rank, " has ", shards.size(),
                    " local shards, but the spec gives it ", ordered.size());
  shards = std::move(ordered);
}

}  // namespace dtensor::sharded
