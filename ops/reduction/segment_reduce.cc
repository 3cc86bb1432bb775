// Sums, means, products and extremes of segments of a dim: that dim is whole, all others may be split.
#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <string>
#include <utility>

#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

// Sizes of the result: as many segments as there are lengths, or offsets but one.
OutputMetas segment_reduce_metas(const OpCall& call) {
  const Spec& data = *call.input("data");
  const Spec *lengths = call.input("lengths"), *offsets = call.input("offsets");
  TORCH_CHECK(lengths != nullptr || offsets != nullptr,
              "segment_reduce(): Either lengths or offsets must be defined, in ", call.to_string());
  TORCH_CHECK(call.input("indices") == nullptr, "segment_reduce(): indices based reduction is not supported yet, in ",
              call.to_string());
  const Spec& segments = lengths != nullptr ? *lengths : *offsets;
  const int64_t axis = wrap_dim(call.get_int("axis"), data.ndim());
  TORCH_CHECK(segments.ndim() == axis + 1, "segment_reduce(): Expected axis to be the last dimension of ",
              lengths != nullptr ? "lengths" : "offsets", " but got ", axis, " in ", call.to_string());
  std::vector<int64_t> sizes(data.sizes().begin(), data.sizes().end());
  sizes[axis] = segments.sizes()[axis] - (lengths != nullptr ? 0 : 1);
  TORCH_CHECK(sizes[axis] >= 0, "segment_reduce(): offsets are one more than segments, in ", call.to_string());
  return contiguous_metas(sizes, {data.dtype()});
}

OutputMetas segment_reduce_backward_metas(const OpCall& call) {
  return contiguous_metas(call.input("data")->sizes(), {call.input("data")->dtype()});
}

CoreDims dims(const OpCall& call) {
  const Spec& data = *call.input("data");
  const int axis = static_cast<int>(wrap_dim(call.get_int("axis"), data.ndim()));
  const bool backward = call.has_arg("grad");
  CoreDims result;
  FactorRule& rule = result.rule;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    auto& factors = rule.inputs.emplace_back();
    for (int d = 0; call.inputs[i] && d < call.inputs[i]->ndim(); ++d) factors.push_back(d == axis ? kNoFactor : d);
  }
  rule.outputs.push_back(rule.inputs[call.input_index("data")]);
  const std::string reduce = call.arg("reduce").toStringRef();
  if (backward) {
    rule.terms = {{call.input_index("grad")}};
  } else if ((reduce == "sum" || reduce == "mean") && call.arg("initial").isNone()) {
    rule.terms = {{call.input_index("data")}};
    rule.maths = reduce == "mean" ? PartialSemantics::kReal : PartialSemantics::kRing;
  }
  return result;
}

// The lengths of stand-ins for an empty part do not add up to the number of rows.
void trust_stand_ins(const LocalCall& local, Arguments& args) {
  if (args["unsafe"].isNone()) return;
  for (const SpecPtr& input : local.inputs) {
    if (!input || c10::multiply_integers(input->sizes()) == 0) continue;
    for (const int64_t size : input->local_shape(local.i)) {
      if (size == 0) args.set("unsafe", true);
    }
  }
}

}  // namespace

const RuleFamily segment_reduce_rules("segment_reduce", [](RuleRegistry& registry) {
  registry.add("aten::segment_reduce", core_dims_rule(dims, segment_reduce_metas, trust_stand_ins));
  registry.add("aten::_segment_reduce_backward", core_dims_rule(dims, segment_reduce_backward_metas));
});

}  // namespace dtensor::internal
