// The order in memory of the dims of an operator's results, which kernels choose, on every rank alike.
#pragma once

#include "comm/rank_tensors.h"

namespace dtensor {

class Spec;  // plan/spec.h

namespace internal {

inline bool all_contiguous(const RankTensors& parts) {
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous()) return false;
  }
  return true;
}

// Gives parts that no other tensor has the order of dims in memory that the strides of `spec` have, without gaps, if
// these strides are dense. Kernels order the dims of some parts otherwise, where sizes of 1 leave it open, and pad
// rows. Views of such parts would be copies on some ranks and share memory on others, and these ranks would later
// communicate differently.
void match_strides(const Spec& spec, RankTensors& parts);

}  // namespace internal

}  // namespace dtensor
