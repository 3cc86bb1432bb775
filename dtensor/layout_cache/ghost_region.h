// What ranks know of a tensor around their own parts of it: the borders of the next tiles of a grid, say. Remembered as
// cached_layouts.h says. For the folders above.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"

namespace dtensor {

// Parts that come when they are first asked for.
class LazyParts {
 public:
  struct Made {
    RankTensors parts;
    std::shared_ptr<LocalStorage> storage;  // counts their bytes
  };
  // `make` may communicate, and gives nothing where what it needs was forgotten; what it has captured is let go
  // afterwards.
  explicit LazyParts(std::function<std::optional<Made>()> make) : make_(std::move(make)) {}
  explicit LazyParts(Made made) : made_(std::move(made)) {}  // those that are there

  // Null: they were forgotten before. Thread-safe. Errors: those of `make`, which is tried again then.
  const Made* get();
  const Made* if_made();  // null: nobody has asked for them yet, or they were forgotten
  bool was_got();         // has anybody asked?
  void forget();          // those that have not been made, and what they would be made of
  bool are_forgotten();

 private:
  std::mutex mutex_;
  std::function<std::optional<Made>()> make_;  // guarded by mutex_; empty: made_ is all that there will be
  std::optional<Made> made_;                   // guarded by mutex_, and never changed after make_ has gone
  bool was_got_ = false;                       // guarded by mutex_
};

// What every rank knows of a tensor, or gets when it first asks: its part and what lies around it, one box.
struct GhostRegion {
  std::vector<int64_t> dims;                 // along which the boxes go beyond the parts, ascending
  std::vector<std::vector<int64_t>> cut_by;  // per such dim: the mesh dims that cut it
  std::vector<std::vector<Run>>
      known;  // per such dim: the indices, by where a rank stands along the mesh dims that cut it
  std::shared_ptr<LazyParts> boxes;
};

// The indices in the box of a rank. REQUIRES: they are the surroundings of a tensor of `spec`.
Part box_of_rank(const GhostRegion& around, const Spec& spec, int64_t rank);
// The bytes of the largest box.
int64_t box_bytes(const GhostRegion& around, const Spec& spec);

}  // namespace dtensor
