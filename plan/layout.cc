#include "plan/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor {
using namespace internal;

std::vector<int64_t> Layout::ranks() const {
  std::vector<int64_t> ranks;
  if (is_boxes()) {
    for (const RankBox& box : boxes()) ranks.push_back(box.rank);
  } else {
    ranks = mesh_.ranks();
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<LocalLayout> Layout::parts(c10::ArrayRef<int64_t> sizes, int64_t rank) const {
  std::vector<LocalLayout> parts;
  if (!is_boxes()) {
    if (mesh_.contains(rank)) parts.push_back(local_layout(sizes, mesh_.shape(), placements_, mesh_.coordinate(rank)));
    return parts;
  }
  for (const RankBox& box : boxes()) {
    if (box.rank == rank) parts.push_back(box_part(box.offsets, box.sizes));
  }
  return parts;
}

Layout Layout::idle() const {
  Layout layout = *this;
  if (is_boxes()) {
    layout.world_ = world_.idle();
  } else {
    layout.mesh_ = mesh_.idle();
  }
  return layout;
}

std::string Layout::to_string() const {
  if (!is_boxes()) return absl::StrCat(dtensor::to_string(placements_), " @ ", mesh_.to_string());
  return absl::StrCat(boxes().size(), boxes().size() == 1 ? " box" : " boxes", " on ranks ",
                      absl::StrJoin(ranks(), ", "));
}

}  // namespace dtensor
