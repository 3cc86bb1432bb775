// Windows that slide along dims: convolution and pooling. Which elements, padding included, a rank's windows reach. And
// the other way round, elements that are spread along dims: upsampling and transposed convolution. Internal to ops/.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/halo/plan.h"

namespace dtensor {

// Along one dim of `elements`, `count` windows of `size` elements that lie `dilation` apart; the first begins `padding`
// before the first element, and each `stride` after the one before. Windows may end beyond the last element.
struct WindowDim {
  int64_t dim = 0;  // of the tensor
  int64_t elements = 0, count = 0;
  int64_t size = 1, stride = 1, padding = 0, dilation = 1;

  int64_t span() const { return dilation * (size - 1) + 1; }
  // From the first element, or padding, of the first of `windows` to the last of the last: places of halo_dim().map,
  // which begin with the padding. Empty for none.
  Run reach(const Runs& windows) const;
  // A rank that has some of the windows of the result wants all that they reach.
  HaloDim halo_dim() const;
};

// Along one dim of `elements`, each of which counts for `span` places of a result of `count` places; element i for
// those from i * stride + first on. Beyond the result they are cut off.
struct SpreadDim {
  int64_t dim = 0;  // of the tensor
  int64_t elements = 0, count = 0;
  int64_t stride = 1, first = 0, span = 1;

  // The elements that count for any of `places`. Empty for none.
  Run reach(const Runs& places) const;
  // A rank that has some of the places of the result wants all elements that count for them.
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

// Can ranks compute with what their part of the result reaches: has each one run of it along `dims`, whichever it has?
bool has_runs_along(const Spec& spec, const std::vector<int64_t>& dims);

}  // namespace dtensor
