#include "dtensor/tensor/match_strides.h"

#include "dtensor/tensor/conj_neg_bits.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/local_guard.h"
#include "plan/sized_impl.h"
#include "plan/spec.h"

namespace dtensor::internal {
namespace {

// Whether a part is dense, and its dims have the order in memory that `strides`, of a dense tensor, have.
bool has_order_of(c10::IntArrayRef strides, const at::Tensor& part) {
  if (!part.is_non_overlapping_and_dense()) return false;
  for (int64_t a = 0; a < part.dim(); ++a) {
    for (int64_t b = 0; b < a; ++b) {
      if (part.size(a) <= 1 || part.size(b) <= 1) continue;
      if ((strides[a] < strides[b]) != (part.stride(a) < part.stride(b))) return false;
    }
  }
  return true;
}

}  // namespace

void match_strides(const Spec& spec, RankTensors& parts) {
  if (parts.empty()) return;
  const SizedImpl& tensor = spec.sized_impl();
  const bool is_row_major = tensor.is_contiguous();
  if (!tensor.is_non_overlapping_and_dense()) return;
  for (at::Tensor& part : parts) {
    if (is_row_major ? part.is_contiguous() : has_order_of(spec.strides(), part)) continue;
    const auto strides = dense_in_order_of(spec.strides(), part.sizes());
    const LocalGuard guard;
    const ConjNegBits bits = conj_neg_bits(part);
    at::Tensor values = with_conj_neg(part, bits);  // without the bits
    ensure_strides(values, strides);
    part = with_conj_neg(values, bits);
  }
}

}  // namespace dtensor::internal
