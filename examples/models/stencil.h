// A step of the heat equation on a grid [height, width], by its four neighbours, in plain ATen.
#pragma once

#include <torch/types.h>

namespace examples {

// Periodic borders. A program on a mesh calls dtensor::set_ghost_width(grid, {1, 1}) before each step, for one exchange
// instead of one per dim.
torch::Tensor heat_by_roll(const torch::Tensor& grid, double rate);
// Zero beyond the borders.
torch::Tensor heat_by_pad(const torch::Tensor& grid, double rate);
// The border is constant; the interior is written in place, as loops over slices do. A program on a mesh calls
// dtensor::set_ghost_width(grid, {1, 1}) once: the result is a clone of the grid, and has the width, too.
torch::Tensor heat_in_place(const torch::Tensor& grid, double rate);

}  // namespace examples
