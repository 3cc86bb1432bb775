#include "dtensor/tensor/conj_neg_bits.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>

#include <algorithm>

namespace dtensor::internal {

ConjNegBits conj_neg_bits(const at::Tensor& plain) { return {plain.is_conj(), plain.is_neg()}; }

ConjNegBits conj_neg_bits(const RankTensors& locals) {
  if (locals.empty()) return {};  // an abstract world
  const auto has_elements = [](const at::Tensor& local) { return local.numel() > 0; };
  const auto asked = std::find_if(locals.begin(), locals.end(), has_elements);
  return conj_neg_bits(asked == locals.end() ? locals.front() : *asked);
}

at::Tensor with_conj_neg(at::Tensor t, ConjNegBits bits) {
  if (bits.conj) t = at::_conj(t);
  if (bits.neg) t = at::_neg_view(t);
  return t;
}

}  // namespace dtensor::internal
