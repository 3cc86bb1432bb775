// Who shares some dims of a tensor, and what each is to say of its part: of rank_summaries.h and combine_summaries.h.
// Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor {

struct SummaryRequest {
  std::vector<int64_t> dims;  // ascending
  // How many columns the rank that holds `part` has to say; 0 where it holds nothing.
  std::function<int64_t(const Part& part)> count;
  // These, of one rank's local tensor, in `width` columns: the dims have size 1, but the first of them `width`. What is
  // in columns beyond count() does not matter.
  std::function<std::vector<at::Tensor>(const at::Tensor& local, const Part& part, int64_t width)> summarize;
  std::vector<c10::ScalarType> dtypes;  // of what it gives
  // To combine: so many summaries of a part, one after the other along the first of the dims, are of groups of its
  // elements, and groups are told apart like rows. `width` is then theirs together.
  int64_t groups = 1;
};

// Does a mesh dim so placed cut one of the dims, which ascend?
bool cuts(const Placement& p, const std::vector<int64_t>& dims);

// The parts along the dims, one per coordinate of the mesh dims that cut them, row-major.
struct Shares {
  std::vector<Part> parts;
  std::vector<int64_t> counts;  // columns of each
  int64_t width = 0;            // of the widest

  int64_t position(const Spec& spec, const std::vector<int64_t>& dims, c10::ArrayRef<int64_t> coordinate) const;
};

Shares shares_of(const Spec& spec, const SummaryRequest& request);
// What the i-th local rank says.
std::vector<at::Tensor> said_by(const DTensorMeta& meta, size_t i, const Shares& shares, const SummaryRequest& request);

}  // namespace dtensor
