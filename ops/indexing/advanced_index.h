// The geometry of x[i, :, j]: which dims of the result come from x, which from the index tensors.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ops/support/movement.h"

namespace dtensor::internal {

// Geometry of a call with `self` and `indices` (masks excluded). The index tensors are broadcast together; their dims
// replace the indexed dims in the result if those are adjacent, else they come first.
class AdvancedIndex {
 public:
  // `ndim`: rank of self; `index_sizes`: one entry per index, nullopt for an absent one.
  AdvancedIndex(int64_t ndim, std::vector<std::optional<Shape>> index_sizes);
  explicit AdvancedIndex(const OpCall& call);

  const std::vector<int64_t>& indexed_dims() const { return indexed_; }
  int64_t num_broadcast_dims() const { return static_cast<int64_t>(broadcast_.size()); }
  // Where the broadcast dims begin in the result.
  int64_t position() const { return position_; }

  // Factor d is dim d of self; factor ndim + k is the k-th broadcast dim.
  std::vector<OutputDims> input_factors() const;  // self and the indices
  OutputDims result_factors() const;

 private:
  int64_t ndim_;
  std::vector<std::optional<Shape>> index_sizes_;
  std::vector<int64_t> indexed_;
  Shape broadcast_;
  int64_t position_ = 0;
};

// The index tensors of a local call, localized to this rank's part of self.
struct LocalIndices {
  c10::List<std::optional<at::Tensor>> indices;
  // Mask of the broadcast indices that point into the local part; undefined if all indexed dims are held whole.
  at::Tensor held;
  int64_t end = 0;                    // where the broadcast dims end in the result
  std::vector<int64_t> partial_dims;  // indexed dims of which this rank has a part only
};

// Indices that point elsewhere become 0, or when writing: one past the end of the local part.
// Errors: IndexError for an index outside the global range.
LocalIndices localize_indices(const LocalCall& call, const torch::jit::Stack& stack, bool writing);

}  // namespace dtensor::internal
