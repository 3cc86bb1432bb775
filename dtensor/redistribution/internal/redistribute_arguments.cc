#include "dtensor/redistribution/internal/redistribute_arguments.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "placement/parse_placements.h"

namespace dtensor::internal {

const DTensorMeta& checked_layout(const at::Tensor& t, const char* function) {
  TORCH_CHECK_TYPE(is_dtensor(t), "[", function, "] the tensor",
                   (t.defined() ? c10::str(" of shape ", t.sizes()) : std::string()),
                   " is not distributed; call distribute_tensor(t, mesh, placements) first");
  return meta_without_sync(t);
}

absl::StatusOr<Placements> fitting_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim) {
  if (static_cast<int64_t>(placements.size()) == mesh.ndim()) return normalize_placements(placements, ndim);
  return absl::InvalidArgumentError(absl::StrCat("`placements` ", to_string(placements), " has ", placements.size(),
                                                 " entries, but ", mesh.to_string(), " has ", mesh.ndim(),
                                                 " dims: give one placement per mesh dim"));
}

Placements checked_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim,
                              const char* function) {
  auto normal = fitting_placements(placements, mesh, ndim);
  TORCH_CHECK_VALUE(normal.ok(), "[", function, "] ", std::string(normal.status().message()));
  return *std::move(normal);
}

}  // namespace dtensor::internal
