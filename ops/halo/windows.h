// Windows that slide along dims: convolution and pooling. Computes which elements, padding included, a rank's windows
// reach. Also the transpose, elements that spread along dims: upsampling and transposed convolution.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/halo/plan.h"

namespace dtensor::internal {

// Along one dim of `elements`, `count` windows of `size` elements spaced `dilation` apart; the first begins `padding`
// before the first element, and each `stride` after the one before. Windows may end beyond the last element.
struct WindowDim {
  int64_t dim = 0;  // of the tensor
  int64_t elements = 0, count = 0;
  int64_t size = 1, stride = 1, padding = 0, dilation = 1;

  int64_t span() const { return dilation * (size - 1) + 1; }
  // The run from the first element, or padding, of the first of `windows` to the last element of the last one, as
  // places of halo_dim().map, which begin with the padding. Empty for none.
  IndexRange reach(const IndexRanges& windows) const;
  // A rank that holds some windows of the result needs all that they reach.
  HaloDim halo_dim() const;
};

// Along one dim of `elements`, each element contributes to `span` places of a result of `count` places; element i to
// those from i * stride + first on. Places beyond the result are dropped.
struct SpreadDim {
  int64_t dim = 0;  // of the tensor
  int64_t elements = 0, count = 0;
  int64_t stride = 1, first = 0, span = 1;

  // The elements that contribute to any of `places`. Empty for none.
  IndexRange reach(const IndexRanges& places) const;
  // A rank that holds some places of the result needs all elements that contribute to them.
  HaloDim halo_dim() const;
};

template <typename Dim>
std::vector<HaloDim> halo_dims_of(const std::vector<Dim>& dims) {
  std::vector<HaloDim> result;
  for (const Dim& d : dims) result.push_back(d.halo_dim());
  return result;
}
template <typename Dim>
std::vector<int64_t> numbers_of(const std::vector<Dim>& dims) {
  std::vector<int64_t> result;
  for (const Dim& d : dims) result.push_back(d.dim);
  return result;
}

// Whether every rank holds one run of the part along each of `dims`, so that it can compute with what its part reaches.
bool has_runs_along(const Spec& spec, const std::vector<int64_t>& dims);

}  // namespace dtensor::internal
