#include "tests/fuzz/refusals.h"

namespace dtensor::fuzz {

const std::vector<Refusal>& refusals() {
  static const auto* const table = new std::vector<Refusal>{
      {"does not have a sharding strategy registered", "no rule, and the inputs are not replicated"},
      {"in-place operations that require placement changes", "what is written to keeps its layout"},
      // docs/propagation.md, "Which Partials pass"; run.cc checks whether there is such a tensor
      {"is nan, should be", "addends beside a tensor that is infinite or a divisor of zero"},
      // docs/errors.md: strides over memory that no rank has
      {"reach beyond the tensor laid out as", "as_strided of a view, beside or between whose elements lie others"},
      {"a product of another dtype that is not reduced yet", "bits of a product are no bits of its factors"},
      {"writing through a view that regroups the dims of an expanded tensor",
       "docs/dispatch.md: what cannot be taken back"},
      {"writing to the real or imaginary parts of a conjugated", "docs/dispatch.md: what cannot be taken back"},
      {"gives a tensor of layout Sparse", "sparse tensors have no layout on a mesh"},
      {"cannot be cast to that of the out= argument", "as most of ATen's operators refuse"},
      {"iter.ninputs() == traits::arity INTERNAL ASSERT",
       "LibTorch's index_reduce of half-precision slices of one element"},
      {"some elements of the input tensor and the written-to tensor refer to a single memory location",
       "one memory seen with other strides along dims of one element, which a part may have where the whole has none"},
      {"elements, one a channel, but has shape", "batch norm with as many weights, but not in a list"},
      {"not implemented for 'ComplexHalf'", "no kernel for what plain LibTorch does without one"},
      {"draws random numbers, so replicated runs of it would not agree", "random operator without a rule"},
  };
  return *table;
}

const Refusal* reason_to_refuse(const std::string&, const std::string& error) {
  for (const Refusal& refusal : refusals()) {
    if (error.find(refusal.text) != std::string::npos) return &refusal;
  }
  return nullptr;
}

}  // namespace dtensor::fuzz
