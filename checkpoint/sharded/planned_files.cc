#include "checkpoint/sharded/planned_files.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/formats/safetensors_dtypes.h"
#include "checkpoint/sharded/save_plan.h"
#include "dtensor/tensor/representation.h"
#include "plan/spec.h"

namespace dtensor::internal {
namespace {

LocalLayout whole_of(const Shape& shape) { return part_of({Shape(shape.size(), 0), shape}); }

// The values of `box` in `local`, whose part is `part`.
at::Tensor cut_out(at::Tensor local, const LocalLayout& part, const Box& box) {
  LocalGuard guard;
  if (box.numel() == 0) return local.new_empty(at::IntArrayRef(box.sizes.data(), box.sizes.size()));
  const std::vector<Block> blocks = overlap(part, part_of(box));
  TORCH_INTERNAL_ASSERT(blocks.size() == 1, "a box is of one part");
  for (size_t d = 0; d < box.sizes.size(); ++d) local = local.narrow(d, blocks[0].from[d], blocks[0].sizes[d]);
  return local;
}

// The same of a distributed tensor, whose part on `rank`, which this process owns, has all of `box`.
at::Tensor values_of_rank(const at::Tensor& t, int64_t rank, const Box& box) {
  const DTensorMeta& meta = meta_for_read(t);
  const auto& ranks = meta.spec->mesh().local_ranks();
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  LocalGuard guard;       // plain also inside a MeshScope
  if (it == ranks.end())  // of no elements, which any rank of the world may write
    return at::empty(at::IntArrayRef(box.sizes.data(), box.sizes.size()), at::TensorOptions(t.scalar_type()));
  const int64_t i = it - ranks.begin();
  return cut_out(meta.locals[i].detach(), meta.spec->local_layout(i), box);
}

ManifestTensor described(const std::string& name, const at::Tensor& t) {
  ManifestTensor tensor;
  tensor.dtype = t.scalar_type();
  tensor.shape.assign(t.sizes().begin(), t.sizes().end());
  try {
    safetensors_dtype_name(tensor.dtype);
  } catch (c10::Error& e) {
    e.add_context(absl::StrCat("for '", name, "'"));
    throw;
  }
  if (!is_dtensor(t)) return tensor;
  const Spec& spec = *spec_of(t);
  TORCH_CHECK_VALUE(!spec.has_partial(), "'", name, "' is ", spec.to_string(),
                    ", whose addends are no values yet: redistribute it first");
  tensor.layout = absl::StrCat(to_string(spec.placements()), " @ ", spec.mesh().to_string());
  return tensor;
}

}  // namespace

int64_t PlannedFile::bytes() const {
  int64_t total = 0;
  for (const TensorPart& p : parts) total += p.box.numel() * static_cast<int64_t>(p.values.element_size());
  return total;
}

PlannedSave plan_files(const NamedTensors& tensors, const World& world) {
  const std::vector<int64_t> alone = {0};
  const std::vector<int64_t>& owned = world.defined() ? world.owned_ranks() : alone;
  SavePlanner planner(world.defined() ? world.size() : 1);
  PlannedSave save;
  std::map<std::string, PlannedFile> mine;
  for (const auto& [name, t] : tensors) {
    ManifestTensor& tensor = save.tensors[name] = described(name, t);
    const auto boxes =
        is_dtensor(t) ? planner.add(spec_of(t)) : planner.add_replicated({tensor.shape, {}, tensor.dtype});
    std::map<int64_t, int64_t> so_far;  // boxes by rank: a file has one of each name
    for (const RankBox& b : boxes) {
      const std::string file = part_file_name("", b.rank, so_far[b.rank]++);
      const Box box{b.offsets, b.sizes};
      tensor.boxes.push_back({file, box});
      if (std::find(owned.begin(), owned.end(), b.rank) == owned.end()) continue;
      const at::Tensor values =
          is_dtensor(t) ? values_of_rank(t, b.rank, box) : cut_out(t.detach(), whole_of(tensor.shape), box);
      mine[file].parts.push_back({name, box, values});
    }
  }
  for (auto& [name, file] : mine) {
    file.name = name;
    save.files.push_back(std::move(file));
  }
  return save;
}

}  // namespace dtensor::internal
