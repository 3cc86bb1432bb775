// Leaves whose gradients are reduced together as soon as all of them have arrived: the parameters of one fully_shard(),
// or of a bucket that set_gradient_buckets() was given the order of.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::internal {

class LeafGroup {
 public:
  // Keeps none of the leaves alive. `reduce_dtype`: nullopt: gradients are reduced in their own.
  explicit LeafGroup(const std::vector<at::Tensor>& leaves, std::optional<c10::ScalarType> reduce_dtype = std::nullopt);
  // Those that are alive.
  std::vector<at::Tensor> leaves() const;
  // In which floating-point gradients are reduced.
  std::optional<c10::ScalarType> reduce_dtype() const { return reduce_dtype_; }

 private:
  struct Leaves;
  struct AtEnd;
  static void watch(const at::Tensor& leaf, const std::shared_ptr<Leaves>& leaves);
  std::shared_ptr<Leaves> leaves_;
  const std::optional<c10::ScalarType> reduce_dtype_;
};

// Its group of fully_shard(); null: none. REQUIRES: is_dtensor(leaf).
std::shared_ptr<const LeafGroup> leaf_group_of(const at::Tensor& leaf);
// The leaves that its gradient is reduced with: that group, else its bucket of set_gradient_buckets(); null: those that
// arrive next to it. REQUIRES: is_dtensor(leaf).
std::shared_ptr<const LeafGroup> reduced_with(const at::Tensor& leaf);

// "layers.0" for leaves called "layers.0.weight" and "layers.0.norm.weight"; "" if they have none in common.
std::string common_module(const std::vector<at::Tensor>& leaves);

}  // namespace dtensor::internal
