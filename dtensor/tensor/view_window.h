// Maps the elements of a view to those of its base, and writes through a view, rank by rank.
//
// A view is described as in ATen: sizes, strides and an offset within the memory of its base, here the memory that a
// single device would hold. So one function serves all view operators and chains of them.
//
//   x of [5, 4], strides [4, 1];  x.slice(0, 1, 5, 2): sizes [2, 4], strides [8, 1], offset 4
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor::internal {

struct Window {
  Shape sizes, strides;
  int64_t offset = 0;

  friend bool operator==(const Window&, const Window&) = default;
};

// The window of a tensor that begins `offset` elements after the beginning of its memory.
inline Window window_of(const Spec& spec, int64_t offset) { return {spec.sizes(), spec.strides(), offset}; }

// A window on global memory, and the part of it that a rank holds.
struct WindowPart {
  Window window;
  LocalLayout layout;
  at::Tensor part;  // of layout.sizes()
};

// A view that steps along dims of its base.
struct DimMap {
  std::vector<int> base_dim;  // per dim of the view; -1: it has one element, or is expanded
  Shape step;                 // per dim of the view, along that dim
  Shape start;                // per dim of the base: where the view begins
};

// nullopt: some dim of `view` steps along more than one dim of `base`. REQUIRES: `view` lies within `base`, no two
// elements of which share memory.
std::optional<DimMap> map_dims(const Window& view, const Window& base);

// The indices of the view, per dim of it, that store_through() writes to a rank's part `held` of the base; nullopt:
// none. Of several view elements for one base element, the first. REQUIRES: map == map_dims(view, base).
std::optional<LocalLayout> stored_part(const Window& view, const Window& base, const DimMap& map,
                                       const LocalLayout& held);

// Writes the elements of `view.part` that `base.part` holds to their places there. Offsets count elements of each one's
// own dtype. Several view elements for one base element must be equal. Below autograd, on plain tensors. REQUIRES: no
// two elements of `base` share memory, except in expanded dims; why_not_storable() is "".
void store_through(WindowPart view, WindowPart base);

// Why store_through() cannot write elements of `view_dtype` through `view` to `base`, on any rank; "" if it can.
std::string why_not_storable(Window view, c10::ScalarType view_dtype, Window base, c10::ScalarType base_dtype);

// dest.copy_(src), also where dims of `dest` are expanded: their elements share memory.
void copy_values(at::Tensor dest, at::Tensor src);

}  // namespace dtensor::internal
