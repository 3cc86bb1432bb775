#include "ops/indexing/advanced_index.h"

#include <ATen/ops/where.h>

#include <algorithm>

#include "ops/indexing/local_index.h"

namespace dtensor::internal {
namespace {

std::vector<std::optional<Shape>> sizes_of(const OpCall& call) {
  const ArgSlot& slot = call.slots[call.arg_index("indices")];
  std::vector<std::optional<Shape>> sizes;
  for (int i = slot.first; i < slot.first + slot.count; ++i) {
    sizes.push_back(call.inputs[i] ? std::optional(call.inputs[i]->sizes()) : std::nullopt);
  }
  return sizes;
}

}  // namespace

AdvancedIndex::AdvancedIndex(const OpCall& call) : AdvancedIndex(call.inputs[0]->ndim(), sizes_of(call)) {}

AdvancedIndex::AdvancedIndex(int64_t ndim, std::vector<std::optional<Shape>> index_sizes)
    : ndim_(ndim), index_sizes_(std::move(index_sizes)) {
  for (size_t d = 0; d < index_sizes_.size(); ++d) {
    if (!index_sizes_[d]) continue;
    indexed_.push_back(static_cast<int64_t>(d));
    const Shape& sizes = *index_sizes_[d];
    if (sizes.size() > broadcast_.size()) broadcast_.insert(broadcast_.begin(), sizes.size() - broadcast_.size(), 1);
    for (size_t j = 0; j < sizes.size(); ++j) {
      int64_t& size = broadcast_[broadcast_.size() - sizes.size() + j];
      if (sizes[j] != 1) size = sizes[j];
    }
  }
  const bool adjacent =
      !indexed_.empty() && indexed_.back() - indexed_.front() + 1 == static_cast<int64_t>(indexed_.size());
  if (adjacent) position_ = indexed_.front();
}

std::vector<OutputDims> AdvancedIndex::input_factors() const {
  std::vector<OutputDims> factors = {same_dims(ndim_)};
  for (const auto& sizes : index_sizes_) {
    OutputDims& dims = factors.emplace_back();
    for (size_t j = 0; sizes && j < sizes->size(); ++j) {
      const size_t k = broadcast_.size() - sizes->size() + j;
      dims.push_back((*sizes)[j] == broadcast_[k] ? static_cast<int>(ndim_ + k) : kNoFactor);
    }
  }
  return factors;
}

OutputDims AdvancedIndex::result_factors() const {
  OutputDims dims;
  for (int d : same_dims(ndim_)) {
    if (std::find(indexed_.begin(), indexed_.end(), d) == indexed_.end()) dims.push_back(d);
  }
  for (size_t k = 0; k < broadcast_.size(); ++k) {
    dims.insert(dims.begin() + position_ + k, static_cast<int>(ndim_ + k));
  }
  return dims;
}

LocalIndices localize_indices(const LocalCall& call, const torch::jit::Stack& stack, bool writing) {
  const Spec& self = *call.inputs[0];
  const LocalLayout layout = self.local_layout(call.i);
  LocalIndices result;
  std::vector<std::optional<Shape>> sizes;
  for (const c10::IValue& value : stack[1].toListRef()) {
    const bool absent = !value.isTensor() || !value.toTensor().defined();
    result.indices.push_back(absent ? std::nullopt : std::optional(value.toTensor()));
    sizes.push_back(absent ? std::nullopt
                           : std::optional(Shape(value.toTensor().sizes().begin(), value.toTensor().sizes().end())));
  }
  const AdvancedIndex geometry(self.ndim(), std::move(sizes));
  result.end = geometry.position() + geometry.num_broadcast_dims();
  for (int64_t d : geometry.indexed_dims()) {
    if (!holds_all(layout.dims[d], self.sizes()[d])) result.partial_dims.push_back(d);
  }
  if (result.partial_dims.empty()) return result;
  for (int64_t d : geometry.indexed_dims()) {
    const int64_t size = self.sizes()[d];
    const at::Tensor index = *result.indices.get(d);
    check_range(index, -size, size, d);
    if (holds_all(layout.dims[d], size)) continue;
    const int64_t otherwise = writing ? total_size(layout.dims[d]) : 0;
    const LocalIndex mine = localize(at::where(index.lt(0), index.add(size), index), layout.dims[d], otherwise);
    result.indices.set(d, mine.index);
    result.held = result.held.defined() ? result.held.logical_and(mine.held) : mine.held;
  }
  return result;
}

}  // namespace dtensor::internal
