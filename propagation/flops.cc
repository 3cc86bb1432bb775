// The floating-point operations of a rule's summed products.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "propagation/factor_rule.h"

namespace dtensor {

Flops flops(const FactorRule& rule) {
  // Factors that a product sums over.
  const auto is_product = [&](const FactorRule::Contraction& c) {
    return std::any_of(rule.terms.begin(), rule.terms.end(), [&](const std::vector<int>& term) {
      return std::count_if(term.begin(), term.end(),
                           [&](int i) { return absl::c_linear_search(rule.inputs[i], c.factor); }) > 1;
    });
  };
  if (std::none_of(rule.contractions.begin(), rule.contractions.end(), is_product)) return {};
  absl::InlinedVector<absl::InlinedVector<int, 4>, 4> factors;
  for (const std::vector<int>& of_input : rule.inputs) factors.emplace_back(of_input.begin(), of_input.end());
  return [factors = std::move(factors)](const std::vector<Shape>& inputs) {
    absl::InlinedVector<int64_t, 8> sizes;  // by factor
    for (size_t i = 0; i < factors.size(); ++i) {
      for (size_t d = 0; d < inputs[i].size(); ++d) {
        const int factor = factors[i][d];
        if (factor < 0) continue;
        if (factor >= static_cast<int>(sizes.size())) sizes.resize(static_cast<size_t>(factor) + 1, 1);
        sizes[factor] = inputs[i][d];
      }
    }
    double product = 2;
    for (const int64_t size : sizes) product *= static_cast<double>(size);
    return product;
  };
}

}  // namespace dtensor
