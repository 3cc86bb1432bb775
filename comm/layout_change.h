// The layouts of a tensor before and after a redistribution, as values.
//
//   LayoutChange change(c10::kFloat, {8, 8}, {Shard(0)}, {Replicate()}, "mesh(tp=4)");
//   change.to().placements;   // {Replicate()}
//   to_string(change);        // "f32[8, 8](S(0)) -> (R) @ mesh(tp=4)"
//
// Immutable, so threads may share one.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "placement/placement.h"

namespace dtensor {

class LayoutChange {
 public:
  // One of the two layouts.
  struct Side {
    std::optional<Placements> placements;  // one per mesh dim; none where ranks hold boxes
    std::string where;                     // "mesh(dp=2, tp=2)"; of boxes "3 boxes on ranks 0, 2"
  };

  // `sizes`: of the whole tensor. On one mesh:
  LayoutChange(c10::ScalarType dtype, Shape sizes, Placements from, Placements to, std::string mesh);
  // Between two meshes, which may have the same text, or from or to boxes:
  LayoutChange(c10::ScalarType dtype, Shape sizes, Side from, Side to);

  c10::ScalarType dtype() const { return dtype_; }
  const Shape& sizes() const { return sizes_; }
  const Side& from() const { return from_; }
  const Side& to() const { return to_; }
  // Then both sides have placements.
  bool on_one_mesh() const { return on_one_mesh_; }

  // to_string(*this), made once: communicators between processes compare it at every call.
  const std::string& text() const { return text_; }

 private:
  c10::ScalarType dtype_;
  Shape sizes_;
  Side from_, to_;
  bool on_one_mesh_;
  std::string text_;
};

// "f32[8, 8](S(0)) -> (R) @ mesh(tp=4)"; between meshes "f32[8, 8](S(0) @ mesh(tp=4)) -> (R @ mesh(dp=2))". Of several
// tensors that travel together the first is named: "... and 2 more".
std::string to_string(const LayoutChange& change, int64_t more_tensors = 0);
// "S(0) @ mesh(tp=4)", "3 boxes on ranks 0, 2"
std::string to_string(const LayoutChange::Side& side);

}  // namespace dtensor
