#include "sharded/sharded_tensor_state.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>

#include "sharded/enumerable_sharding_spec.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

// Declared in remote_table.h, which needs ShardedTensor.
void register_shards(const ShardedTensor& t);
void forget_shards(int64_t id) noexcept;

namespace {

constexpr char kNoStorage[] =
    "a ShardedTensor, whose data is in the shards of its ranks: see dtensor::sharded::ShardedTensor(t).local_shards()";

class ShardedTensorImpl final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

 protected:
  const char* tensorimpl_type_name() const override { return kNoStorage; }
};

c10::DispatchKeySet key_set(c10::DeviceType device) {
  const auto backend = device == c10::DeviceType::CUDA   ? c10::DispatchKey::CUDA
                       : device == c10::DeviceType::Meta ? c10::DispatchKey::Meta
                                                         : c10::DispatchKey::CPU;
  return c10::DispatchKeySet(backend) | c10::DispatchKeySet(kShardedKey);
}

std::optional<c10::Device> shard_device(const RankShards& shards) {
  for (const auto& of_rank : shards) {
    for (const Shard& shard : of_rank) return shard.tensor.device();
  }
  return std::nullopt;
}

c10::Device own_device(const ProcessGroup& group) {
  const auto& ranks = group.owned_ranks().empty() ? group.ranks_of_process() : group.owned_ranks();
  return group.world().device(ranks.empty() ? group.ranks()[0] : ranks[0]);
}

}  // namespace

ShardedTensorState::~ShardedTensorState() {
  if (id >= 0) forget_shards(id);
}

ShardedTensor make_sharded_tensor(Parts parts) {
  BelowSharding below;
  const TensorProperties& properties = parts.metadata.tensor_properties;
  const c10::Device device = shard_device(parts.shards).value_or(own_device(parts.group));
  auto impl = c10::make_intrusive<ShardedTensorImpl>(key_set(device.type()),
                                                     c10::scalarTypeToTypeMeta(properties.dtype), device);
  impl->set_sizes_contiguous(parts.metadata.size);
  impl->set_storage_access_should_throw();
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(c10::str("Cannot access the data of ", kNoStorage));
  auto state = c10::make_intrusive<ShardedTensorState>();
  const bool requires_grad = properties.requires_grad;
  state->group = std::move(parts.group);
  state->spec = std::move(parts.spec);
  state->metadata = std::move(parts.metadata);
  state->shards = std::move(parts.shards);
  state->init_rrefs = parts.init_rrefs;
  auto* raw = state.get();
  impl->set_backend_meta(std::move(state));
  at::Tensor tensor(std::move(impl));
  if (requires_grad) tensor.set_requires_grad(true);
  ShardedTensor result(std::move(tensor));
  if (raw->init_rrefs) register_shards(result);
  return result;
}

Parts parts_of(const ShardedTensor& t) {
  const ShardedTensorState& state = t.state();
  return {state.spec, state.metadata, state.shards, state.group, state.init_rrefs};
}

void replace_shards(const ShardedTensor& t, AnyShardingSpec spec, ShardedTensorMetadata metadata, RankShards shards) {
  ShardedTensorState& state = t.state();
  TORCH_INTERNAL_ASSERT(metadata.size == state.metadata.size);
  state.spec = std::move(spec);
  state.metadata = std::move(metadata);
  state.shards = std::move(shards);
}

std::vector<RankBox> boxes_of(const ShardedTensorMetadata& metadata, const ProcessGroup& group) {
  std::vector<RankBox> boxes;
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    TORCH_CHECK_VALUE(shard.placement.has_value(), "remote device is None, of shard ", shard);
    RankBox& box = boxes.emplace_back();
    box.rank = rank_of(*shard.placement, group.world());
    box.sizes.assign(shard.shard_sizes.begin(), shard.shard_sizes.end());
    for (size_t d = 0; d < metadata.size.size(); ++d)
      box.offsets.push_back(std::min(shard.shard_offsets[d], metadata.size[d]));
    // An empty shard may be anywhere, also where its other dims exceed the tensor.
    for (size_t d = 0; shard.empty() && d < box.sizes.size(); ++d)
      box.offsets[d] = std::min(box.offsets[d], std::max<int64_t>(0, metadata.size[d] - box.sizes[d]));
  }
  return boxes;
}

ShardedTensor::ShardedTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {
  TORCH_CHECK_TYPE(is_sharded(tensor_), "Expected a ShardedTensor, but found ",
                   !tensor_.defined() ? "an undefined tensor" : "a tensor that is not sharded",
                   ": make one by shard_tensor(), a factory, or init_from_local_shards()");
}

ShardedTensorState& ShardedTensor::state() const {
  return *static_cast<ShardedTensorState*>(tensor_.unsafeGetTensorImpl()->get_backend_meta());
}

const ShardedTensorMetadata& ShardedTensor::metadata() const { return state().metadata; }
const AnyShardingSpec& ShardedTensor::sharding_spec() const { return state().spec; }
const ProcessGroup& ShardedTensor::process_group() const { return state().group; }
bool ShardedTensor::init_rrefs() const { return state().init_rrefs; }

std::vector<Shard>& ShardedTensor::local_shards() const {
  const auto& ranks = process_group().ranks_of_process();
  TORCH_CHECK_VALUE(ranks.size() <= 1, "this process owns ranks ", ranks_text(ranks),
                    ": say whose local shards, local_shards(rank)");
  TORCH_CHECK_VALUE(ranks.size() == 1, "this process owns no rank of ", process_group().world().name(),
                    ", so it has no local shards");
  return local_shards(ranks[0]);
}

std::vector<Shard>& ShardedTensor::local_shards(int64_t rank) const {
  ShardedTensorState& s = state();
  const auto& owned = s.group.owned_ranks();
  const auto at = std::find(owned.begin(), owned.end(), rank);
  if (at != owned.end()) return s.shards[at - owned.begin()];
  const auto& all = s.group.ranks_of_process();
  TORCH_CHECK_VALUE(std::find(all.begin(), all.end(), rank) != all.end(), "local shards of rank ", rank,
                    ", but this process owns ", all.empty() ? "none" : ranks_text(all), " of ", s.group.world().name());
  static thread_local std::vector<Shard> none;  // of a rank outside the group
  none.clear();
  return none;
}

const at::Tensor& ShardedTensor::local_tensor() const {
  const auto& shards = local_shards();
  TORCH_CHECK_NOT_IMPLEMENTED(shards.size() == 1, "Only single local shard is supported. Found ", shards.size());
  return shards[0].tensor;
}

const at::Tensor& ShardedTensor::local_tensor(int64_t rank) const {
  const auto& shards = local_shards(rank);
  TORCH_CHECK_NOT_IMPLEMENTED(shards.size() == 1, "Only single local shard is supported. Found ", shards.size(),
                              " on rank ", rank);
  return shards[0].tensor;
}

int64_t ShardedTensor::size(int64_t d) const {
  const int64_t ndim = dim();
  TORCH_CHECK_INDEX(d >= -ndim && d < ndim, "Dimension out of range (expected to be in range of [", -ndim, ", ",
                    ndim - 1, "], but got ", d, ")");
  return sizes()[d < 0 ? d + ndim : d];
}

c10::ScalarType ShardedTensor::dtype() const { return metadata().tensor_properties.dtype; }
c10::Layout ShardedTensor::layout() const { return metadata().tensor_properties.layout; }
bool ShardedTensor::requires_grad() const { return metadata().tensor_properties.requires_grad; }
bool ShardedTensor::is_pinned() const { return metadata().tensor_properties.pin_memory; }

bool ShardedTensor::is_meta() const {
  const auto device = shard_device(state().shards);
  return device && device->is_meta();
}

c10::Device ShardedTensor::device() const { return shard_device(state().shards).value_or(own_device(process_group())); }

void ShardedTensor::set_requires_grad(bool) const {
  TORCH_CHECK(
      false,
      "torch function '__set__', with args: requires_grad, not supported for ShardedTensor! Its shards would not "
      "follow: call requires_grad_(st)");
}

std::string ShardedTensor::to_string() const { return "ShardedTensor(" + metadata().to_string() + ")"; }

std::ostream& operator<<(std::ostream& os, const ShardedTensor& t) { return os << t.to_string(); }

ShardedTensorBase ShardedTensorBase::init_from_local_shards_and_global_metadata(std::vector<Shard> shards,
                                                                                const ShardedTensorMetadata& metadata,
                                                                                AnyShardingSpec spec) {
  TORCH_CHECK_VALUE(!metadata.shards_metadata.empty(), "shards_metadata must not be empty!");
  TORCH_CHECK_VALUE(metadata.tensor_properties.layout == c10::kStrided,
                    "Only torch.strided layout is currently supported, but found ", metadata.tensor_properties.layout);
  ShardedTensorBase base;
  base.spec_ = spec.defined() ? std::move(spec) : infer_sharding_spec(metadata.shards_metadata);
  validate_non_overlapping(metadata.shards_metadata);
  check_tensor(metadata.shards_metadata, metadata.size);
  base.metadata_ = base.spec_->build_metadata(metadata.size, metadata.tensor_properties);
  base.shards_ = std::move(shards);
  return base;
}

}  // namespace dtensor::sharded
