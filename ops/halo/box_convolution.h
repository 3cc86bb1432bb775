// A convolution, transposed or not, on the box of the input that a rank needs for its part of the result.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/halo/boxes.h"
#include "ops/halo/windows.h"
#include "ops/support/arguments.h"

namespace dtensor::internal {

struct Convolution {
  bool transposed = false;
  // One entry per spatial dim: the sliding windows, or for a transposed convolution how its elements spread.
  std::vector<WindowDim> windows;
  std::vector<SpreadDim> spread;
  std::vector<int64_t> stride, dilation;
  int64_t groups = 1;
  int64_t channels = 0;  // of the result

  std::vector<HaloDim> halo_dims() const { return transposed ? halo_dims_of(spread) : halo_dims_of(windows); }
  std::vector<int64_t> dims() const { return transposed ? numbers_of(spread) : numbers_of(windows); }
  Shape output_sizes(const Shape& input) const;
  // Identifies the boxes that the parts of a result need if the result is laid out like the input.
  BoxKey box_key() const;
};

// For convolution() and convolution_backward(). nullopt: the arguments are invalid, and the operator itself reports the
// error.
std::optional<Convolution> convolution_of(const Arguments& args);

// This rank's part of the result. `bias` may be undefined. Box, weight and bias may hold only this rank's channels.
at::Tensor convolved(const Convolution& c, const LocalLayout& part, const at::Tensor& box, const at::Tensor& weight,
                     const at::Tensor& bias);

// Gradients of the box, the weight and the bias, from the gradient of the part; undefined where not requested.
std::array<at::Tensor, 3> gradients(const Convolution& c, const LocalLayout& part, const at::Tensor& grad,
                                    const at::Tensor& box, const at::Tensor& weight, const std::array<bool, 3>& mask);

}  // namespace dtensor::internal
