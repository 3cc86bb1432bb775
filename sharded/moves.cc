#include "sharded/moves.h"

#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

#include "sharded/chunk_sharding_spec.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
namespace {

c10::Device current_cuda() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice(); }

// The device of a rank's shards that are moved to `device`: for CUDA the rank's own.
c10::Device target_of(c10::Device device, const World& world, int64_t rank) {
  if (!device.is_cuda()) return device;
  const c10::Device own = world.device(rank);
  return own.is_cuda() ? own : current_cuda();
}

void check_format(c10::MemoryFormat format) {
  TORCH_CHECK(format == c10::MemoryFormat::Preserve || format == c10::MemoryFormat::Contiguous,
              "Only `torch.contiguous_format` or `torch.preserve_format` is supported! Found ", format);
}

// The same spec with the shards' present devices from the metadata.
AnyShardingSpec moved_spec(const AnyShardingSpec& spec, const ShardedTensorMetadata& metadata,
                           const std::function<RemoteDevice(const RemoteDevice&)>& move) {
  const auto* chunks = spec.as<ChunkShardingSpec>();
  if (chunks == nullptr) return infer_sharding_spec(metadata.shards_metadata);
  std::vector<RemoteDevice> placements;
  for (const RemoteDevice& p : chunks->placements()) placements.push_back(move(p));
  return ChunkShardingSpec(chunks->dim(), std::move(placements));
}

struct Target {
  std::optional<c10::Device> device;
  std::optional<c10::ScalarType> dtype = std::nullopt;
  bool copy = false, non_blocking = false;
  ProcessGroup group;
};

ShardedTensor moved(const ShardedTensor& t, const Target& target) {
  Parts parts = parts_of(t);
  const World world = parts.group.world();
  const auto move = [&](const RemoteDevice& place) {
    return target.device ? place.on(target_of(*target.device, world, rank_of(place, world))) : place;
  };
  TensorProperties& properties = parts.metadata.tensor_properties;
  properties.dtype = target.dtype.value_or(properties.dtype);
  properties.requires_grad &= at::isFloatingType(properties.dtype) || at::isComplexType(properties.dtype);
  if (target.device && !target.device->is_cpu()) properties.pin_memory = false;
  for (ShardMetadata& shard : parts.metadata.shards_metadata) shard.placement = move(*shard.placement);
  parts.spec = moved_spec(parts.spec, parts.metadata, move);
  for (auto& of_rank : parts.shards) {
    for (Shard& shard : of_rank) {
      shard.metadata.placement = move(*shard.metadata.placement);
      shard.tensor =
          shard.tensor.to(shard.metadata.placement->device(), properties.dtype, target.non_blocking, target.copy);
    }
  }
  if (target.group.defined()) {
    TORCH_CHECK_VALUE(target.group.world() == world, "another world's process group: ", target.group.to_string());
    RankShards shards(target.group.owned_ranks().size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const auto& before = parts.group.owned_ranks();
      const auto at = std::find(before.begin(), before.end(), target.group.owned_ranks()[i]);
      if (at != before.end()) shards[i] = std::move(parts.shards[at - before.begin()]);
    }
    parts.shards = std::move(shards);
    parts.group = target.group;
  }
  return make_sharded_tensor(std::move(parts));
}

bool is_everywhere(const ShardedTensor& t, c10::DeviceType type) {
  const auto& shards = t.metadata().shards_metadata;
  return std::all_of(shards.begin(), shards.end(),
                     [&](const ShardMetadata& shard) { return shard.placement->device().type() == type; });
}

}  // namespace

ShardedTensor ShardedTensor::cpu(const ProcessGroup& group, c10::MemoryFormat format) const {
  check_format(format);
  if (is_everywhere(*this, c10::DeviceType::CPU)) return *this;
  return moved(*this, {.device = c10::Device(c10::DeviceType::CPU), .group = group});
}

ShardedTensor ShardedTensor::cuda(std::optional<c10::Device> device, const ProcessGroup& group,
                                  c10::MemoryFormat format) const {
  check_format(format);
  const c10::Device cuda(c10::DeviceType::CUDA);
  if (device && device->has_index()) {
    for (int64_t rank : process_group().owned_ranks()) {
      TORCH_CHECK(*device == target_of(cuda, process_group().world(), rank),
                  "Only device without device id (e.g. \"cpu\" or \"cuda\") is expected for ShardedTensor! Found ",
                  device->str(), " for rank ", rank);
    }
  }
  return moved(*this, {.device = cuda, .group = group});
}

ShardedTensor ShardedTensor::to(const MoveOptions& options) const {
  check_format(options.memory_format);
  if (options.device && options.device->is_cuda() && options.device->has_index()) {
    for (int64_t rank : process_group().owned_ranks()) {
      const c10::Device own = target_of(*options.device, process_group().world(), rank);
      if (own != *options.device)
        TORCH_WARN("ShardedTensor.to only moves tensor to its current device: ", own.str(), ", not ",
                   options.device->str());
    }
  }
  const bool same_device = !options.device || is_everywhere(*this, options.device->type());
  const bool same_dtype = !options.dtype || *options.dtype == dtype();
  const bool same_group = !options.group.defined() || options.group == process_group();
  if (same_device && same_dtype && same_group && !options.copy) return *this;
  return moved(*this, {.device = same_device ? std::nullopt : options.device,
                       .dtype = options.dtype,
                       .copy = options.copy,
                       .non_blocking = options.non_blocking,
                       .group = options.group});
}

MoveOptions MoveOptions::from_values(const std::vector<c10::IValue>& arguments) {
  const auto fail = [&] {
    std::string text;
    for (const c10::IValue& a : arguments) text += (text.empty() ? "" : ", ") + a.tagKind();
    TORCH_CHECK(false, "ShardedTensor.to() have wrong arguments: args = (", text, ")");
  };
  const auto device_of = [&](const c10::IValue& value) {
    if (value.isDevice()) return value.toDevice();
    if (value.isString()) return c10::Device(value.toStringRef());
    TORCH_INTERNAL_ASSERT(value.isInt());
    return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(value.toInt()));
  };
  // A ScalarType is an integer as an IValue: as a single argument it is a device index, as the second of two a dtype.
  MoveOptions options;
  const size_t n = arguments.size();
  if (n == 1 && arguments[0].isTensor()) return like(arguments[0].toTensor());
  const bool first = n >= 1 && (arguments[0].isDevice() || arguments[0].isString() || arguments[0].isInt());
  if (!first || n > 2 || (n == 2 && !arguments[1].isInt())) fail();
  options.device = device_of(arguments[0]);
  if (n == 2) options.dtype = static_cast<c10::ScalarType>(arguments[1].toInt());
  return options;
}

}  // namespace dtensor::sharded
