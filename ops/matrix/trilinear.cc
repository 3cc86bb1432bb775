// _trilinear, from which bilinear() is composed: the sum over some dims of the product of three tensors that lack dims
// of one another.
#include <algorithm>

#include "ops/support/core_dims.h"

namespace dtensor::internal {
namespace {

// A dim's factor is its position among the dims of all three; those in expand1 are missing in the first tensor.
CoreDims trilinear_dims(const OpCall& call) {
  CoreDims dims;
  FactorRule& rule = dims.rule;
  const char* expand[] = {"expand1", "expand2", "expand3"};
  const auto holds = [](const std::vector<int64_t>& list, int64_t x) {
    return std::find(list.begin(), list.end(), x) != list.end();
  };
  const auto summed = *call.get_ints("sumdim");
  const auto all = call.inputs[0]->ndim() + static_cast<int64_t>(call.get_ints(expand[0])->size());
  for (size_t i = 0; i < 3; ++i) {
    const auto lacking = *call.get_ints(expand[i]);
    std::vector<int>& factors = rule.inputs.emplace_back();
    for (int64_t d = 0; d < all; ++d) {
      if (!holds(lacking, d)) factors.push_back(static_cast<int>(d));
    }
    TORCH_CHECK(static_cast<int64_t>(factors.size()) == call.inputs[i]->ndim(), "_trilinear: argument ", i + 1,
                " has another number of dims than ", expand[i], " leaves, in ", call.to_string());
  }
  rule.outputs.emplace_back();
  for (int64_t d = 0; d < all; ++d) {
    if (holds(summed, d)) {
      rule.contractions.push_back({static_cast<int>(d), ReduceOp::kSum});
    } else {
      rule.outputs[0].push_back(static_cast<int>(d));
    }
  }
  rule.terms = {{0, 1, 2}};
  return dims;
}

}  // namespace

const RuleFamily trilinear_rules("trilinear", [](RuleRegistry& registry) {
  registry.add("aten::_trilinear", core_dims_rule(trilinear_dims, {}));
});

}  // namespace dtensor::internal
