// The geometry of x[i, :, j]: which dims of the result come from x, which from the index tensors. Internal to ops/.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ops/support/movement.h"

namespace dtensor {

// Of a call with `self` and `indices` (no masks among them). The index tensors are broadcast together; their dims stand
// in the result where the indexed dims stood, if those are side by side, else in front.
class AdvancedIndex {
 public:
  // `ndim`: of self; `index_sizes`: per index, absent ones nullopt.
  AdvancedIndex(int64_t ndim, std::vector<std::optional<Shape>> index_sizes);
  explicit AdvancedIndex(const OpCall& call);

  const std::vector<int64_t>& indexed_dims() const { return indexed_; }
  int64_t num_broadcast_dims() const { return static_cast<int64_t>(broadcast_.size()); }
  // Where the broadcast dims begin in the result.
  int64_t position() const { return position_; }

  // Factors: dim d of self is d, the k-th broadcast dim self's ndim + k.
  std::vector<OutputDims> input_factors() const;  // self and the indices
  OutputDims result_factors() const;

 private:
  int64_t ndim_;
  std::vector<std::optional<Shape>> index_sizes_;
  std::vector<int64_t> indexed_;
  Shape broadcast_;
  int64_t position_ = 0;
};

// The index tensors of a local call, brought to this rank's part of self.
struct LocalIndices {
  c10::List<std::optional<at::Tensor>> indices;
  // Which places of the broadcast index point into the part; undefined if the indexed dims are all held whole.
  at::Tensor held;
  int64_t end = 0;                    // where the broadcast dims end in the result
  std::vector<int64_t> partial_dims;  // indexed dims of which this rank has a part only
};

// Indices that point elsewhere become 0, or when writing: one past the end of the local part.
// Errors: IndexError for an index outside the global range.
LocalIndices localize_indices(const LocalCall& call, const torch::jit::Stack& stack, bool writing);

}  // namespace dtensor
