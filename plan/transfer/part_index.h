// The parts of a tensor on its ranks: by rank, and by location.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_map.h"
#include "plan/layout.h"
#include "plan/tensor_meta.h"

namespace dtensor::internal {

// Caches Layout::parts() of every rank. Boxes are traversed once.
class PartsByRank {
 public:
  // Both must outlive this.
  PartsByRank(const TensorMeta& meta, const Layout& layout);
  const std::vector<LocalLayout>& of(int64_t rank);  // valid as long as this object

 private:
  const TensorMeta& meta_;
  const Layout& layout_;
  absl::node_hash_map<int64_t, std::vector<LocalLayout>> parts_;
};

// Parts of a tensor, in a tree of their bounding boxes, each node cut in two where parts begin along the dim with the
// largest spread: finds the parts that may overlap another one without visiting all.
class PartIndex {
 public:
  struct Entry {
    int64_t rank = 0;
    int64_t number = 0;                 // of the rank's parts
    const LocalLayout* part = nullptr;  // not owned
  };

  PartIndex() = default;
  explicit PartIndex(std::vector<Entry> entries);

  // visit(entry) for every part whose box overlaps that of `part`; it returns false to stop. In no particular order.
  template <typename Visit>
  void meet(const LocalLayout& part, Visit visit) const {
    if (nodes_.empty() || part.empty()) return;
    absl::InlinedVector<int64_t, 64> open = {0};
    while (!open.empty()) {
      const Node& node = nodes_[open.back()];
      const int64_t left = open.back() + 1;
      open.pop_back();
      bool meets = true;
      for (int64_t d = 0; d < ndim_; ++d) {
        meets &= begin_of(part, d) < node.bounds[d].second && node.bounds[d].first < end_of(part, d);
      }
      if (!meets) continue;
      if (node.right >= 0) {
        open.push_back(node.right);
        open.push_back(left);
        continue;
      }
      for (int64_t i = node.first; i < node.last; ++i) {
        bool touches = true;
        for (int64_t d = 0; d < ndim_; ++d) {
          touches &=
              begin_of(part, d) < end_of(*entries_[i].part, d) && begin_of(*entries_[i].part, d) < end_of(part, d);
        }
        if (touches && !visit(entries_[i])) return;
      }
    }
  }

 private:
  static constexpr int64_t kLeaf = 4;
  struct Node {
    absl::InlinedVector<std::pair<int64_t, int64_t>, 4> bounds;
    int64_t first = 0, last = 0;  // entries
    int64_t right = -1;           // the left child comes next; -1: a leaf
  };

  static int64_t begin_of(const LocalLayout& part, int64_t d) { return part.dims[d].front().begin; }
  static int64_t end_of(const LocalLayout& part, int64_t d) {
    return part.dims[d].back().begin + part.dims[d].back().size;
  }

  int64_t add_node(int64_t first, int64_t last);

  int64_t ndim_ = 0;
  std::vector<Entry> entries_;
  std::vector<Node> nodes_;  // parents before children
};

// The ranks of `layout` that together hold the tensor once, for one receiver.
class Sources {
 public:
  // Both must outlive this.
  Sources(const TensorMeta& meta, const Layout& layout);

  size_t num_copies() const { return copies_.size(); }

  // The ranks with elements of `part`, and which of their parts: visit(entry), as PartIndex::meet(). `position`: of the
  // receiver among those of the target.
  template <typename Visit>
  void of(int64_t receiver, int64_t position, const LocalLayout& part, Visit visit) {
    index_for(receiver, position).meet(part, visit);
  }

 private:
  struct Copy {
    std::vector<int64_t> ranks;
    std::unique_ptr<PartIndex> index;  // made on first use
  };
  const PartIndex& index_for(int64_t receiver, int64_t position);

  PartsByRank parts_;
  std::vector<Copy> copies_;
  absl::flat_hash_map<int64_t, size_t> copy_of_;
};

}  // namespace dtensor::internal
