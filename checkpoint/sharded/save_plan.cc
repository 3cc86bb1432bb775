#include "checkpoint/sharded/save_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace dtensor::internal {
namespace {

// Replicas are cut into pieces of about as much, so that their holders share the work.
constexpr int64_t kPieceBytes = int64_t{16} << 20;

}  // namespace

// Every part once, with the ranks that hold it.
std::vector<SavePlanner::Held> SavePlanner::held_boxes(const Spec& spec) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, Held> all;
  for (const int64_t rank : spec.mesh().ranks()) {
    for (Box& box : boxes_of(spec.layout_of_rank(rank))) {
      Held& held = all[{{box.offsets.begin(), box.offsets.end()}, {box.sizes.begin(), box.sizes.end()}}];
      held.box = std::move(box);
      held.ranks.push_back(rank);
    }
  }
  std::vector<Held> result;
  for (auto& [key, held] : all) {
    std::sort(held.ranks.begin(), held.ranks.end());
    result.push_back(std::move(held));
  }
  return result;
}

int64_t SavePlanner::least_loaded(const std::vector<int64_t>& ranks) const {
  if (ranks.empty()) return std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin();
  return *std::min_element(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) { return bytes_[a] < bytes_[b]; });
}

void SavePlanner::assign(const Box& box, const std::vector<int64_t>& ranks, int64_t element_size,
                         std::vector<RankBox>& boxes) {
  const int64_t holders = static_cast<int64_t>(ranks.empty() ? bytes_.size() : ranks.size());
  const int64_t pieces = std::min(holders, 1 + box.numel() * element_size / kPieceBytes);
  for (Box& piece : cut(box, pieces)) {
    const int64_t rank = least_loaded(ranks);
    bytes_[rank] += piece.numel() * element_size;
    boxes.push_back({rank, std::move(piece.offsets), std::move(piece.sizes)});
  }
}

std::vector<RankBox> SavePlanner::add(const SpecPtr& spec) {
  std::vector<RankBox> boxes;
  const auto element_size = static_cast<int64_t>(c10::elementSize(spec->dtype()));
  const auto [known, fresh] = held_.try_emplace(spec);
  if (fresh) known->second = held_boxes(*spec);
  for (const Held& held : known->second) assign(held.box, held.ranks, element_size, boxes);
  // No rank has a part of a tensor without elements; its name and shape are saved all the same.
  if (boxes.empty()) boxes.push_back({least_loaded({}), Shape(spec->sizes().size(), 0), spec->sizes()});
  return boxes;
}

std::vector<RankBox> SavePlanner::add_replicated(const TensorMeta& meta) {
  std::vector<RankBox> boxes;
  assign({Shape(meta.sizes.size(), 0), meta.sizes}, {}, static_cast<int64_t>(c10::elementSize(meta.dtype)), boxes);
  return boxes;
}

}  // namespace dtensor::internal
