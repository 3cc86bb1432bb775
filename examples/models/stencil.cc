#include "examples/models/stencil.h"

#include <torch/nn/functional/padding.h>

namespace examples {

torch::Tensor heat_by_roll(const torch::Tensor& grid, double rate) {
  const auto around = grid.roll(1, 0) + grid.roll(-1, 0) + grid.roll(1, 1) + grid.roll(-1, 1);
  return grid + rate * (around - 4 * grid);
}

torch::Tensor heat_by_pad(const torch::Tensor& grid, double rate) {
  const int64_t height = grid.size(0), width = grid.size(1);
  const auto wide = torch::constant_pad_nd(grid, {1, 1, 1, 1});
  const auto part = [&](int64_t row, int64_t column) {
    return wide.slice(0, row, row + height).slice(1, column, column + width);
  };
  return grid + rate * (part(0, 1) + part(2, 1) + part(1, 0) + part(1, 2) - 4 * grid);
}

torch::Tensor heat_in_place(const torch::Tensor& grid, double rate) {
  const int64_t height = grid.size(0) - 2, width = grid.size(1) - 2;
  const auto part = [&](const torch::Tensor& t, int64_t row, int64_t column) {
    return t.narrow(0, row, height).narrow(1, column, width);
  };
  const auto around = part(grid, 0, 1) + part(grid, 2, 1) + part(grid, 1, 0) + part(grid, 1, 2);
  const auto next = grid.clone();
  part(next, 1, 1).add_(rate * (around - 4 * part(grid, 1, 1)));
  return next;
}

}  // namespace examples
