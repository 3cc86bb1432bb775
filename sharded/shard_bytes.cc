#include "sharded/shard_bytes.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <cstring>

#include "dtensor/dispatch_key.h"
#include "sharded/sharded_tensor_metadata.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

// The tensor as the only shard of metadata with its dtype and sizes.
std::string with_header(const at::Tensor& tensor, const ShardMetadata& shard) {
  ShardedTensorMetadata header;
  header.shards_metadata = {shard};
  header.size = tensor.sizes().vec();
  header.tensor_properties = TensorProperties(tensor.scalar_type());
  header.tensor_properties.requires_grad = tensor.requires_grad();
  const at::Tensor plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
  std::string bytes = serialize(header) + "\n";
  const size_t at = bytes.size();
  bytes.resize(at + plain.nbytes());
  if (plain.nbytes() > 0) std::memcpy(bytes.data() + at, plain.const_data_ptr(), plain.nbytes());
  return bytes;
}

struct Read {
  at::Tensor tensor;
  ShardMetadata metadata;
};

Read read(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  TORCH_CHECK(end != bytes.npos, "a shard's bytes: damaged: no end of the header");
  const ShardedTensorMetadata header = deserialize_metadata(bytes.substr(0, end));
  bytes.remove_prefix(end + 1);
  TORCH_CHECK(header.shards_metadata.size() == 1, "a shard's bytes: damaged: metadata of ",
              header.shards_metadata.size(), " shards");
  uint64_t numel = 0, size = 0;
  const bool overflows = c10::safe_multiplies_u64(c10::IntArrayRef(header.size), &numel) ||
                         c10::mul_overflows(numel, c10::elementSize(header.tensor_properties.dtype), &size);
  TORCH_CHECK(!overflows && size == bytes.size(), "a shard's bytes: damaged: ", bytes.size(), " bytes of a tensor of ",
              c10::IntArrayRef(header.size), " ", header.tensor_properties.dtype);
  const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);  // also inside a MeshScope
  at::Tensor t = at::empty(header.size, at::TensorOptions().dtype(header.tensor_properties.dtype));
  if (size > 0) std::memcpy(t.mutable_data_ptr(), bytes.data(), size);
  t.set_requires_grad(header.tensor_properties.requires_grad);
  return {std::move(t), header.shards_metadata[0]};
}

}  // namespace

std::string to_bytes(const at::Tensor& tensor) {
  return with_header(tensor, ShardMetadata(std::vector<int64_t>(tensor.dim(), 0), tensor.sizes().vec()));
}

std::string to_bytes(const Shard& shard) { return with_header(shard.tensor, shard.metadata); }

at::Tensor tensor_from_bytes(std::string_view bytes) { return read(bytes).tensor; }

Shard shard_from_bytes(std::string_view bytes) {
  Read r = read(bytes);
  Shard shard(std::move(r.tensor), ShardMetadata(r.metadata.shard_offsets, r.metadata.shard_sizes));
  shard.metadata.placement = r.metadata.placement;
  return shard;
}

}  // namespace dtensor::sharded
