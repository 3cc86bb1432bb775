#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/internal/replicated_dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "propagation/propagate.h"

namespace dtensor::internal {
namespace {

// ", by aten::quantile, in module 'encoder.0', in backward (SortBackward0)"; "" if not known.
std::string caller(const Inputs& in) {
  std::string text;
  if (const CompositeOpScope* code = CompositeOpScope::current())
    absl::StrAppend(&text, ", by ", code->called_operator());
  if (const std::string path = module_of_call(in.tensors); !path.empty())
    absl::StrAppend(&text, ", in module '", path, "'");
  if (in_backward()) {
    const auto node = torch::autograd::get_current_node();
    absl::StrAppend(&text, ", in backward", node ? absl::StrCat(" (", node->name(), ")") : "");
  }
  return text;
}

}  // namespace

void throw_missing_rule(const OpInfo& info, const Inputs& in) {
  const std::string layouts = absl::StrJoin(in.tensors, ", ", [](std::string* out, const at::Tensor& t) {
    const std::string spec = t.defined() ? spec_of(t)->to_string() : "None";
    absl::StrAppend(out, spec.substr(0, spec.find(" @ ")));  // the mesh is named once
  });
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, missing_rule_text(info.op),
      ". Without either it runs where every tensor is replicated: redistribute(t, {Replicate(), ...}). Called",
      caller(in), " with ", layouts, " on ", in.mesh.to_string());
}

}  // namespace dtensor::internal
