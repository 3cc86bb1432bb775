#include "sharded/factories.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <functional>

#include "sharded/remote_table.h"
#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
namespace {

TensorProperties properties_of(const ShardedTensorOptions& options) {
  TensorProperties properties(options.dtype.value_or(c10::get_default_dtype_as_scalartype()));
  properties.layout = options.layout;
  properties.requires_grad = options.requires_grad;
  properties.memory_format = options.memory_format;
  properties.pin_memory = options.pin_memory;
  return properties;
}

// `fill`: given every local shard's tensor.
ShardedTensor make(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                   const ShardedTensorOptions& options, const std::function<void(at::Tensor&)>& fill) {
  TORCH_CHECK_VALUE(spec.defined(), "Expecting ShardingSpec but got: none");
  for (int64_t size : sizes) TORCH_CHECK_VALUE(size >= 0, "sizes of a sharded tensor must be >= 0, found ", size);
  ShardedTensorMetadata metadata = spec->build_metadata(sizes, properties_of(options));
  TORCH_CHECK_VALUE(group.defined(), "a sharded tensor needs a process group: give a World");
  TORCH_CHECK_VALUE(options.layout == c10::kStrided, "Only torch.strided layout is currently supported, but found ",
                    options.layout);
  TORCH_CHECK_VALUE(options.memory_format == c10::MemoryFormat::Contiguous,
                    "Only torch.contiguous_format memory_format is currently supported, but found ",
                    options.memory_format);
  if (options.init_rrefs) check_shard_service(group.world());
  std::vector<RankAndDevice> places;
  for (const ShardMetadata& shard : metadata.shards_metadata)
    places.push_back(validate_remote_device(group, group.ranks()[0], shard.placement));
  c10::AutoGradMode no_grad(false);
  RankShards shards;
  for (int64_t rank : group.owned_ranks()) {
    auto& of_rank = shards.emplace_back();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].rank != rank) continue;
      const ShardMetadata& shard = metadata.shards_metadata[i];
      at::Tensor t = create_tensor_from_params(shard.shard_sizes, places[i].device, metadata.tensor_properties);
      if (fill) fill(t);
      of_rank.emplace_back(std::move(t), shard);
    }
  }
  return make_sharded_tensor({spec, std::move(metadata), std::move(shards), group, options.init_rrefs});
}

}  // namespace

ShardedTensor empty(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options) {
  return make(spec, sizes, group, options, nullptr);
}

ShardedTensor full(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const c10::Scalar& value,
                   const ProcessGroup& group, const ShardedTensorOptions& options) {
  return make(spec, sizes, group, options, [&](at::Tensor& t) { t.fill_(value); });
}

ShardedTensor zeros(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options) {
  return full(spec, sizes, 0, group, options);
}

ShardedTensor ones(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                   const ShardedTensorOptions& options) {
  return full(spec, sizes, 1, group, options);
}

ShardedTensor rand(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                   const ShardedTensorOptions& options) {
  return make(spec, sizes, group, options, [](at::Tensor& t) { t.uniform_(0, 1); });
}

ShardedTensor randn(const AnyShardingSpec& spec, const std::vector<int64_t>& sizes, const ProcessGroup& group,
                    const ShardedTensorOptions& options) {
  return make(spec, sizes, group, options, [](at::Tensor& t) { t.normal_(0, 1); });
}

ShardedTensor empty_like(const ShardedTensor& st, const ShardedTensorOptions& options) {
  return empty(st.sharding_spec(), st.sizes().vec(), st.process_group(), options);
}
ShardedTensor zeros_like(const ShardedTensor& st, const ShardedTensorOptions& options) {
  return zeros(st.sharding_spec(), st.sizes().vec(), st.process_group(), options);
}
ShardedTensor ones_like(const ShardedTensor& st, const ShardedTensorOptions& options) {
  return ones(st.sharding_spec(), st.sizes().vec(), st.process_group(), options);
}
ShardedTensor full_like(const ShardedTensor& st, const c10::Scalar& value, const ShardedTensorOptions& options) {
  return full(st.sharding_spec(), st.sizes().vec(), value, st.process_group(), options);
}
ShardedTensor rand_like(const ShardedTensor& st, const ShardedTensorOptions& options) {
  return rand(st.sharding_spec(), st.sizes().vec(), st.process_group(), options);
}
ShardedTensor randn_like(const ShardedTensor& st, const ShardedTensorOptions& options) {
  return randn(st.sharding_spec(), st.sizes().vec(), st.process_group(), options);
}

std::vector<int64_t> global_size(const c10::IValue& sizes) {
  if (sizes.isInt()) return {sizes.toInt()};
  if (sizes.isIntList()) return sizes.toIntVector();
  const bool is_sequence = sizes.isList() || sizes.isTuple();
  TORCH_CHECK_TYPE(is_sequence, "size has to be a sequence of ints, found: ", sizes);
  std::vector<int64_t> result;
  const auto elements = sizes.isTuple() ? sizes.toTupleRef().elements().vec() : sizes.toListRef().vec();
  for (const c10::IValue& element : elements) {
    TORCH_CHECK_TYPE(element.isInt(), "size has to be a sequence of ints, found: ", sizes);
    result.push_back(element.toInt());
  }
  return result;
}

}  // namespace dtensor::sharded
