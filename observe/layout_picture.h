// A picture of how tensors lie on a mesh, as SVG: a card per tensor, cut where the ranks' parts meet, coloured by rank.
// Copies and addends are sheets behind one another; uneven parts have their true proportions, and ranks without a part
// are named.
//
//   write_file("layout.svg", layout_svg(parameter_layouts(*model), "GPT on mesh(dp=2, tp=2)"));
//
// Tensors of equal layout whose names differ only in numbers (layers.0.w, layers.1.w) share a card. Pure: no data, no
// communication; abstract worlds too.
#pragma once

#include <string>
#include <vector>

#include "plan/spec.h"

namespace dtensor {

struct NamedSpec {
  std::string name;
  SpecPtr spec;
};

// A complete SVG document of fixed width. Without tensors: the title alone.
std::string layout_svg(const std::vector<NamedSpec>& tensors, const std::string& title = "");

}  // namespace dtensor
