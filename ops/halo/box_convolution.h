// A convolution, transposed or not, on the box of its input that a rank has for its part of the result. Internal to
// ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/halo/boxes.h"
#include "ops/halo/windows.h"
#include "ops/support/arguments.h"

namespace dtensor {

struct Convolution {
  bool transposed = false;
  // Per dim but batch and channels: the windows that slide along it, or of a transposed one what its elements are
  // spread over.
  std::vector<WindowDim> windows;
  std::vector<SpreadDim> spread;
  std::vector<int64_t> stride, dilation;
  int64_t groups = 1;
  int64_t channels = 0;  // of the result

  std::vector<HaloDim> halo_dims() const { return transposed ? halo_dims_of(spread) : halo_dims_of(windows); }
  std::vector<int64_t> dims() const { return transposed ? numbers_of(spread) : numbers_of(windows); }
  Shape output_sizes(const Shape& input) const;
  // Says which boxes the parts of a result want that lie as the input's do.
  BoxKey box_key() const;
};

// Of convolution() and convolution_backward(). nullopt: an error that the operator itself tells.
std::optional<Convolution> convolution_of(const Arguments& args);

// The part of the result. `bias` may be undefined. Of channels the box, the weight and the bias may have a rank's own.
at::Tensor convolved(const Convolution& c, const Part& part, const at::Tensor& box, const at::Tensor& weight,
                     const at::Tensor& bias);

// Gradients of the box, the weight and the bias, of that of the part; undefined where nobody asks.
std::array<at::Tensor, 3> gradients(const Convolution& c, const Part& part, const at::Tensor& grad,
                                    const at::Tensor& box, const at::Tensor& weight, const std::array<bool, 3>& mask);

}  // namespace dtensor
