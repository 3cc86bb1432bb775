// Disturbs the last digits of tensors while operators read them: composites and gradient formulas round in between, and
// a rank that computes on addends rounds those.
#pragma once

#include <c10/core/Storage.h>

#include <map>
#include <random>
#include <utility>

#include "tests/fuzz/intercept.h"

namespace dtensor::fuzz {

class NoisyReads {
 public:
  explicit NoisyReads(std::mt19937_64& random) : random_(random) {}

  // Its memory, and results computed from it, hold addends of that size.
  void mark(const at::Tensor& t, double scale);

  // For an Interception that does not outlive this object.
  BeforeCall before();

 private:
  AfterCall read(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  double scale_of_addends(const at::Tensor& t) const;  // 0: they are none

  std::mt19937_64& random_;
  std::map<const c10::StorageImpl*, std::pair<c10::Storage, double>> marks_;  // and the memory is kept
};

}  // namespace dtensor::fuzz
