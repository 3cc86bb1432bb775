// The operators that torch.distributed.checkpoint needs for a distributed tensor, for dtensor_torch.py.
#include <torch/library.h>

#include <vector>

#include "checkpoint/sharded/boxes.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

const DTensorMeta& checked(const at::Tensor& tensor) {
  constexpr char kCaller[] = "[torch.distributed.checkpoint]";
  TORCH_CHECK_TYPE(is_dtensor(tensor), kCaller, " the tensor is not distributed");
  const DTensorMeta& meta = meta_without_sync(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.spec->has_partial(), kCaller, " a tensor laid out as ",
                              to_string(meta.spec->placements()),
                              " has addends, not values: redistribute() it to Shard or Replicate first");
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.spec->mesh().world().is_meta(), kCaller,
                              " the tensor is on the device 'meta' and has no data: call to_empty() first");
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.storage->observer, kCaller,
                              " the tensor is a view whose parts had to move: clone() it first");
  return meta;
}

// For every box that a rank of this process holds: the rank's position in local_tensors(), the first index per dim in
// the whole tensor, the sizes, and the first index per dim in the rank's part. Copies of one box are all there.
std::vector<int64_t> part_boxes(const at::Tensor& tensor) {
  const Spec& spec = *checked(tensor).spec;
  std::vector<int64_t> result;
  for (size_t i = 0; i < spec.mesh().local_ranks().size(); ++i) {
    const LocalLayout part = spec.local_layout(static_cast<int64_t>(i));
    for (const Box& box : boxes_of(part)) {
      const Block block = overlap(part, part_of(box)).at(0);
      result.push_back(static_cast<int64_t>(i));
      for (const Shape& numbers : {box.offsets, box.sizes, block.from})
        result.insert(result.end(), numbers.begin(), numbers.end());
    }
  }
  return result;
}

// The memory of the parts, which a load writes to.
std::vector<at::Tensor> part_memory(const at::Tensor& tensor) {
  checked(tensor);
  const DTensorMeta& meta = meta_for_read(tensor);
  LocalGuard guard;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& local : meta.locals) parts.push_back(local.detach());
  return parts;
}

// The parts will be written to before the tensor is used again: drops cached layouts of its values.
void note_load(const at::Tensor& tensor) {
  checked(tensor);
  note_write(tensor, "torch.distributed.checkpoint");
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_FRAGMENT(dtensor, m) {
  using namespace dtensor;
  using namespace dtensor::internal;
  m.def("part_boxes(Tensor tensor) -> int[]", &part_boxes);
  m.def("part_memory(Tensor tensor) -> Tensor[]", &part_memory);
  m.def("note_load(Tensor tensor) -> ()", &note_load);
}
