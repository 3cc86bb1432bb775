// Which part of a tensor each rank holds: by placements on a mesh, or box by box.
//
//   Layout a(mesh, {Shard(0)});                                    // rank i has the i-th piece of the rows
//   Layout b(world, {{0, {0, 0}, {2, 8}}, {3, {2, 0}, {6, 8}}});   // rank 0 rows 0-1, rank 3 rows 2-7, others nothing
//
// Boxes as in ShardedTensor's metadata: any number per rank, of any size. A value; compared member by member.
#pragma once

#include <c10/util/ArrayRef.h>

#include <memory>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/geometry.h"
#include "placement/placement.h"

namespace dtensor {

// A part that one rank holds as a tensor of its own.
struct RankBox {
  int64_t rank = 0;
  Shape offsets;  // first global index per dim
  Shape sizes;
  friend bool operator==(const RankBox& a, const RankBox& b) {
    return a.rank == b.rank && a.offsets == b.offsets && a.sizes == b.sizes;
  }
};

class Layout {
 public:
  Layout() = default;
  Layout(DeviceMesh mesh, Placements placements) : mesh_(std::move(mesh)), placements_(std::move(placements)) {}
  // The boxes of one rank are its tensors in the order given here.
  Layout(World world, std::vector<RankBox> boxes)
      : world_(std::move(world)), boxes_(std::make_shared<const std::vector<RankBox>>(std::move(boxes))) {}

  bool is_boxes() const { return boxes_ != nullptr; }
  const DeviceMesh& mesh() const { return mesh_; }               // undefined for boxes
  const Placements& placements() const { return placements_; }   // empty for boxes
  const std::vector<RankBox>& boxes() const { return *boxes_; }  // REQUIRES: is_boxes()
  const World& world() const { return is_boxes() ? world_ : mesh_.world(); }

  // The ranks of the layout, including those with empty parts; ascending, without duplicates.
  std::vector<int64_t> ranks() const;
  // The parts of a tensor of `sizes` on `rank`, one entry per tensor: one for a rank of the mesh, none for others; one
  // per box.
  std::vector<LocalLayout> parts(c10::ArrayRef<int64_t> sizes, int64_t rank) const;

  // The same layout as a handle that does not count as a use of its world (World::in_use()): for caches.
  Layout idle() const;

  std::string to_string() const;  // "S(0)R @ mesh(dp=2, tp=2)", "3 boxes on ranks 0, 2"

  friend bool operator==(const Layout& a, const Layout& b) {
    return a.mesh_ == b.mesh_ && a.placements_ == b.placements_ && a.is_boxes() == b.is_boxes() &&
           (!a.is_boxes() || (a.world_ == b.world_ && *a.boxes_ == *b.boxes_));
  }
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }

 private:
  DeviceMesh mesh_;
  Placements placements_;
  World world_;
  std::shared_ptr<const std::vector<RankBox>> boxes_;
};

}  // namespace dtensor
