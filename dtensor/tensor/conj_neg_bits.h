// Views that are conjugated or negated.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/rank_tensors.h"

namespace dtensor::internal {

// Whether memory is viewed conjugated, or negated. A distributed tensor has no such bits itself, its local tensors have
// them.
struct ConjNegBits {
  bool conj = false, neg = false;

  friend bool operator==(const ConjNegBits&, const ConjNegBits&) = default;
  friend ConjNegBits operator^(ConjNegBits a, ConjNegBits b) {
    return {a.conj != b.conj, a.neg != b.neg};
  }  // between the two
};

ConjNegBits conj_neg_bits(const at::Tensor& plain);
// Bits of the parts of one tensor. An empty part may have lost them, and is used only if there is no other.
ConjNegBits conj_neg_bits(const RankTensors& locals);
// A view of `t`, distributed or not, that is conjugated and negated as `bits` say.
at::Tensor with_conj_neg(at::Tensor t, ConjNegBits bits);

}  // namespace dtensor::internal
