#include "sharded/from_shards.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "sharded/check_shards.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/remote_table.h"
#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
namespace {

// A rank's text: whether it requests new offsets, and its shards and the global size as metadata.
constexpr char kAsIs = '=', kRecalculate = '?';

size_t slot_of(const ProcessGroup& group, int64_t rank) {
  const auto& owned = group.owned_ranks();
  return std::find(owned.begin(), owned.end(), rank) - owned.begin();
}

void check_lists(const RankShards& shards, const ProcessGroup& group) {
  TORCH_CHECK_VALUE(group.defined(), "shards need a process group: give a World");
  TORCH_CHECK_VALUE(shards.size() == group.owned_ranks().size(), "shards of ", shards.size(), " rank(s), but ",
                    group.owned_ranks().size(), " of ", group.to_string(),
                    " are this process's: give one list for each of group.owned_ranks()");
}

struct Merged {
  ShardedTensorMetadata metadata;
  std::vector<int64_t> owners;  // of each shard
};

template <typename T>
void check_same(const char* property, const T& a, int64_t rank_a, const T& b, int64_t rank_b) {
  TORCH_CHECK_VALUE(a == b, "ShardedTensor ", property, " property does not match from different ranks! Found ",
                    property, "=", a, " on rank:", rank_a, ", and ", property, "=", b, " on rank:", rank_b, ".");
}

// Merges the texts of all ranks, in their order. The same errors everywhere.
Merged merge(const std::vector<std::string>& rank_texts, const ProcessGroup& group) {
  std::optional<int64_t> first;
  bool recalculate = false;
  Merged merged;
  for (int64_t i = 0; i < group.size(); ++i) {
    if (rank_texts[i].empty()) continue;
    const int64_t rank = group.ranks()[i];
    const ShardedTensorMetadata own = deserialize_metadata(std::string_view(rank_texts[i]).substr(1));
    if (!first) {
      first = rank;
      recalculate = rank_texts[i][0] == kRecalculate;
      merged.metadata.size = own.size;
      merged.metadata.tensor_properties = own.tensor_properties;
    }
    const TensorProperties &a = merged.metadata.tensor_properties, &b = own.tensor_properties;
    check_same("global_size", c10::IntArrayRef(merged.metadata.size), *first, c10::IntArrayRef(own.size), rank);
    check_same("recalculate", recalculate, *first, rank_texts[i][0] == kRecalculate, rank);
    check_same("dtype", a.dtype, *first, b.dtype, rank);
    check_same("requires_grad", a.requires_grad, *first, b.requires_grad, rank);
    check_same("pin_memory", a.pin_memory, *first, b.pin_memory, rank);
    for (const ShardMetadata& shard : own.shards_metadata) {
      merged.metadata.shards_metadata.push_back(shard);
      merged.owners.push_back(rank);
    }
  }
  TORCH_CHECK_VALUE(first.has_value(), "ShardedTensor have no local shards on all ranks!");
  if (!recalculate) return merged;
  for (int64_t rank : group.ranks()) {
    const auto count = std::count(merged.owners.begin(), merged.owners.end(), rank);
    TORCH_CHECK_VALUE(count == 1, "should has and only has one metadata for local rank, actual: ", count, " of rank ",
                      rank);
  }
  lay_below_each_other(merged.metadata);
  return merged;
}

// The shards of every owned rank as the metadata has them.
void take_metadata(RankShards& shards, const ProcessGroup& group, const Merged& merged) {
  for (size_t i = 0; i < shards.size(); ++i) {
    auto at = shards[i].begin();
    for (size_t s = 0; s < merged.owners.size(); ++s) {
      if (merged.owners[s] == group.owned_ranks()[i]) (at++)->metadata = merged.metadata.shards_metadata[s];
    }
  }
}

ShardedTensor attach(RankShards shards, const ShardedTensorMetadata& metadata, AnyShardingSpec spec,
                     const ProcessGroup& group, bool init_rrefs) {
  ShardedTensorMetadata built = spec->build_metadata(metadata.size, metadata.tensor_properties);
  for (size_t i = 0; i < shards.size(); ++i) put_in_order(shards[i], built, group.owned_ranks()[i], group.world());
  return make_sharded_tensor({std::move(spec), std::move(built), std::move(shards), group, init_rrefs});
}

}  // namespace

ShardedTensor init_from_local_shards(RankShards shards, const GlobalSize& sizes, const ProcessGroup& group,
                                     const FromShardsOptions& options) {
  check_lists(shards, group);
  TORCH_CHECK_VALUE(!group.owned_ranks().empty() || !group.world().has_data(), "this process has no rank of ",
                    group.to_string(), ", so it cannot know what its ranks have");
  if (options.init_rrefs) check_shard_service(group.world());
  const bool recalculate = std::any_of(sizes.begin(), sizes.end(), [](const auto& s) { return !s.has_value(); });
  const auto rank_texts = exchange_texts(group, "init_from_local_shards", [&](int64_t rank) {
    const auto& own = shards[slot_of(group, rank)];
    if (own.empty()) return std::string();
    ShardedTensorMetadata metadata = metadata_of_local_shards(own, rank, group);
    for (const auto& size : sizes) metadata.size.push_back(size.value_or(0));
    for (int64_t size : metadata.size) TORCH_CHECK_VALUE(size >= 0, "a global size must be >= 0, found ", size);
    return (recalculate ? kRecalculate : kAsIs) + serialize(metadata);
  });
  const Merged merged = merge(rank_texts, group);
  validate_non_overlapping(merged.metadata.shards_metadata);
  check_tensor(merged.metadata.shards_metadata, merged.metadata.size);
  take_metadata(shards, group, merged);
  return attach(std::move(shards), merged.metadata, infer_sharding_spec(merged.metadata.shards_metadata), group,
                options.init_rrefs);
}

ShardedTensor init_from_local_shards_and_global_metadata(RankShards shards, const ShardedTensorMetadata& metadata,
                                                         const ProcessGroup& group, AnyShardingSpec spec,
                                                         const FromShardsOptions& options) {
  check_lists(shards, group);
  if (options.init_rrefs) check_shard_service(group.world());
  check_on_all_ranks(group, "init_from_local_shards_and_global_metadata", [&](int64_t rank) {
    check_against_metadata(shards[slot_of(group, rank)], metadata, rank, group);
  });
  if (!spec.defined()) spec = infer_sharding_spec(metadata.shards_metadata);
  return attach(std::move(shards), metadata, std::move(spec), group, options.init_rrefs);
}

ShardedTensor init_from_local_tensor(const std::vector<at::Tensor>& tensors, const AnyShardingSpec& spec,
                                     const std::vector<int64_t>& sizes, const ProcessGroup& group,
                                     const FromShardsOptions& options) {
  TORCH_CHECK_VALUE(group.defined() && spec.defined(), "a local tensor needs a process group and a spec");
  TORCH_CHECK_VALUE(tensors.size() == group.owned_ranks().size(), tensors.size(), " local tensors for ",
                    group.owned_ranks().size(), " ranks of this process in ", group.to_string());
  ShardedTensorMetadata metadata = spec->build_metadata(sizes, {});
  RankShards shards(tensors.size());
  const auto rank_texts = exchange_texts(group, "init_from_local_tensor", [&](int64_t rank) {
    const size_t slot = slot_of(group, rank);
    const at::Tensor& t = tensors[slot];
    TORCH_CHECK_VALUE(!t.defined() || t.is_contiguous(), "local_tensor is not a contiguous Tensor.");
    for (const ShardMetadata& shard : metadata.shards_metadata) {
      if (validate_remote_device(group, rank, shard.placement).rank != rank) continue;
      TORCH_CHECK_VALUE(t.defined(), "rank ", rank, " has ", shard, ", but its tensor is undefined");
      shards[slot].emplace_back(t, shard);
    }
    if (!t.defined()) return std::string();
    ShardedTensorMetadata own;
    own.tensor_properties = TensorProperties::create_from_tensor(t);
    return serialize(own);
  });
  const auto one =
      std::find_if(rank_texts.begin(), rank_texts.end(), [](const std::string& text) { return !text.empty(); });
  if (one != rank_texts.end()) metadata.tensor_properties = deserialize_metadata(*one).tensor_properties;
  return init_from_local_shards_and_global_metadata(std::move(shards), metadata, group, spec, options);
}

}  // namespace dtensor::sharded
