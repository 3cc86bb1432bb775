#include "plan/transfer/part_index.h"

#include <algorithm>
#include <limits>

namespace dtensor::internal {

PartsByRank::PartsByRank(const TensorMeta& meta, const Layout& layout) : meta_(meta), layout_(layout) {
  if (!layout.is_boxes()) return;
  for (const RankBox& box : layout.boxes()) parts_[box.rank].push_back(box_part(box.offsets, box.sizes));
}

const std::vector<LocalLayout>& PartsByRank::of(int64_t rank) {
  const auto [it, is_new] = parts_.try_emplace(rank);
  if (is_new && !layout_.is_boxes()) it->second = layout_.parts(meta_.sizes, rank);
  return it->second;
}

PartIndex::PartIndex(std::vector<Entry> entries) : entries_(std::move(entries)) {
  // Empty parts overlap nothing.
  const auto is_empty = [](const Entry& e) { return e.part->empty(); };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), is_empty), entries_.end());
  if (entries_.empty()) return;
  ndim_ = static_cast<int64_t>(entries_[0].part->dims.size());
  add_node(0, static_cast<int64_t>(entries_.size()));
}

int64_t PartIndex::add_node(int64_t first, int64_t last) {
  const auto index = static_cast<int64_t>(nodes_.size());
  nodes_.emplace_back();
  Node node;
  node.first = first;
  node.last = last;
  int64_t widest = 0, spread = 0;
  for (int64_t d = 0; d < ndim_; ++d) {
    auto& [low, high] = node.bounds.emplace_back(std::numeric_limits<int64_t>::max(), 0);
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;  // where parts begin
    for (int64_t i = first; i < last; ++i) {
      low = std::min(low, begin_of(*entries_[i].part, d));
      high = std::max(high, end_of(*entries_[i].part, d));
      least = std::min(least, begin_of(*entries_[i].part, d));
      most = std::max(most, begin_of(*entries_[i].part, d));
    }
    if (most - least > spread) widest = d, spread = most - least;
  }
  if (last - first > kLeaf && spread > 0) {
    const int64_t middle = first + (last - first) / 2;
    std::nth_element(
        entries_.begin() + first, entries_.begin() + middle, entries_.begin() + last,
        [&](const Entry& a, const Entry& b) { return begin_of(*a.part, widest) < begin_of(*b.part, widest); });
    add_node(first, middle);
    node.right = add_node(middle, last);
  }
  nodes_[index] = std::move(node);
  return index;
}

Sources::Sources(const TensorMeta& meta, const Layout& layout) : parts_(meta, layout) {
  if (layout.is_boxes()) {
    copies_.push_back({layout.ranks(), nullptr});
    return;
  }
  // Ranks that differ only in mesh dims that cut nothing hold copies.
  const DeviceMesh& mesh = layout.mesh();
  absl::flat_hash_map<std::vector<int64_t>, size_t> index;
  for (int64_t rank : mesh.ranks()) {
    std::vector<int64_t> coordinate = mesh.coordinate(rank);
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (layout.placements()[m].is_sharded()) coordinate[m] = 0;
    }
    const auto [it, is_new] = index.try_emplace(std::move(coordinate), copies_.size());
    if (is_new) copies_.emplace_back();
    copies_[it->second].ranks.push_back(rank);
    copy_of_[rank] = it->second;
  }
}

const PartIndex& Sources::index_for(int64_t receiver, int64_t position) {
  const auto it = copy_of_.find(receiver);
  Copy& copy = copies_[it != copy_of_.end() ? it->second : static_cast<size_t>(position) % copies_.size()];
  if (copy.index == nullptr) {
    std::vector<PartIndex::Entry> entries;
    for (int64_t rank : copy.ranks) {
      const auto& parts = parts_.of(rank);
      for (size_t i = 0; i < parts.size(); ++i) entries.push_back({rank, static_cast<int64_t>(i), &parts[i]});
    }
    copy.index = std::make_unique<PartIndex>(std::move(entries));
  }
  return *copy.index;
}

}  // namespace dtensor::internal
