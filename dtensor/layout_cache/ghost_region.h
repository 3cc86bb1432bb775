// The ghost region of a tensor: elements around each rank's part, such as the borders of neighbouring tiles of a grid,
// cached until the next write by the rules of storage_cache.h. ops/halo/declared_region.h fetches the regions of the
// widths that set_ghost_width() declares, and views/write_back.cc updates them with what is written through a slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/rank_tensors.h"
#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"

namespace dtensor::internal {

// Local tensors that are made when first requested.
class LazyParts {
 public:
  struct Made {
    RankTensors parts;
    std::shared_ptr<LocalStorage> storage;  // counts their bytes
  };
  // `make` may communicate; its captures are released afterwards.
  explicit LazyParts(std::function<Made()> make) : make_(std::move(make)) {}
  explicit LazyParts(Made made) : made_(std::move(made)) {}  // local tensors that are available now

  // Null: they are forgotten. Thread-safe. Errors: those of `make`, which is tried again then.
  const Made* get();
  const Made* if_made();  // null: not requested yet, or forgotten
  bool was_got();         // whether get() was called
  void forget();          // drops local tensors that have not been made, and what they would be made from
  bool are_forgotten();

 private:
  std::mutex mutex_;
  std::function<Made()> make_;  // guarded by mutex_; empty: made_ is final
  std::optional<Made> made_;    // guarded by mutex_, and constant once make_ is empty
  bool was_got_ = false;        // guarded by mutex_
};

// A tensor's ghost region: for every rank a box of its part and the elements around it, available now or on first
// request.
struct GhostRegion {
  struct Dim {
    int64_t dim;
    std::vector<int64_t> cut_by;    // the mesh dims that cut it
    std::vector<IndexRange> known;  // indices in the boxes, by a rank's position along these mesh dims

    friend bool operator==(const Dim&, const Dim&) = default;
  };
  std::vector<Dim> dims;  // along which the boxes go beyond the parts, ascending
  std::shared_ptr<LazyParts> boxes;
  bool periodic = false;  // index -1 of a dim is its last element

  const Dim* along(int64_t dim) const;  // null: the boxes do not go beyond the parts
};

// The indices in the box of a rank. REQUIRES: `around` belongs to a tensor of `spec`.
LocalLayout box_of_rank(const GhostRegion& around, const Spec& spec, int64_t rank);
// The boxes of the owned ranks; along dims that are not in `dims` only what the ranks' parts have. Makes the boxes.
LazyParts::Made boxes_along(const GhostRegion& around, const Spec& spec, const std::vector<int64_t>& dims);
// The bytes of the largest box.
int64_t box_bytes(const GhostRegion& around, const Spec& spec);

void cache_ghost_region(const at::Tensor& t, GhostRegion region);
// Null: not cached. For a copied view call meta_for_read() first, since the region is of its last refresh. A write
// through a copied view keeps the region if the same exchange brings its new elements, or none are needed
// (ViewOrigin::after_write() in copied_view.h).
std::shared_ptr<const GhostRegion> cached_ghost_region(const at::Tensor& t, bool periodic = false);
void drop_ghost_region(const at::Tensor& t, bool periodic);

}  // namespace dtensor::internal
