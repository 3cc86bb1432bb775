// How a tensor lies on a mesh, as text for a terminal: a grid cut where the ranks' parts meet, with the ranks in its
// cells.
//
//   std::cout << layout_text(DTensor(t).spec());
//
//   f32[5, 8](S(0)R) @ mesh(dp=2, tp=2)
//         0:8
//       ┌─────┐
//       │     │
//   0:3 │ 0,1 │     ranks 0 and 1 hold these rows each; "0+1" would be two addends
//       │     │
//       ├─────┤
//   3:5 │ 2,3 │
//       │     │
//       └─────┘
//   2 copies
#pragma once

#include <string>

#include "plan/spec.h"

namespace dtensor {

namespace internal {
struct LayoutGrid;
}  // namespace internal

// Uneven parts have about their true proportions. Of many rows or columns of cells, and of many ranks in a cell, the
// first and the last are shown. Of more than two dims those that are cut come first, and the line above the grid names
// the two that are drawn. Pure: no data, any number of ranks.
std::string layout_text(const Spec& spec);

namespace internal {

// The grid alone; if not to scale, cells are as small as what stands in them.
std::string grid_text(const LayoutGrid& grid, bool to_scale);

}  // namespace internal

}  // namespace dtensor
