#include "dtensor/dispatch/plain_beside_distributed.h"

#include <c10/util/Exception.h>

#include <string>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

bool plain_is_replicated() {
  if (current_dispatch_scope().implicit_replication || in_backward()) return true;
  const CompositeOpScope* code = CompositeOpScope::current();
  return code != nullptr && code->makes_plain();
}

// Not a c10::TypeError: Python's operators (`a + b`) replace the text of a TypeError by "unsupported operand".
void throw_plain_beside_distributed(std::string_view function, std::string_view argument, const at::Tensor& t,
                                    const DeviceMesh& mesh) {
  TORCH_CHECK_NOT_IMPLEMENTED(!t.is_nested(), std::string(function), ": argument '", std::string(argument),
                              "' is a nested tensor, which cannot be distributed, nor stand beside a distributed one. ",
                              kInPlaceOfNested);
  const bool loads = function == "aten::copy_";
  const CompositeOpScope* code = CompositeOpScope::current();  // which may have made `t` from its arguments
  const std::string called = code != nullptr ? code->called_operator() : std::string(function);
  const std::string caller = called != function ? " (called by " + called + ")" : "";
  const std::string& path = current_scope().module_path;
  TORCH_CHECK(
      false, std::string(function), caller, ": argument '", std::string(argument), "' is a plain tensor of shape ",
      t.sizes(), " next to a distributed one on ", mesh.to_string(), path.empty() ? "" : ", in module '" + path + "'",
      ". If it is a constant that a module keeps as a plain member, call replicate_members(module, {&module.member}) "
      "after distribute_module(). If it is a batch, distribute_tensor(t, mesh, {Replicate(), ...}). If the model makes "
      "it in forward, call the model in a MeshScope(mesh), where arange, zeros, empty and other factories, but not "
      "torch::tensor, make distributed tensors. If every rank is known to hold the same values, open an "
      "ImplicitReplication scope.",
      loads ? " To load whole values into parameters, call dtensor::load_state_dict(module, values) or dtensor::load()."
            : "");
}

void throw_plain_in_place_of(std::string_view function, const at::Tensor& self, const at::Tensor& plain) {
  const DTensorMeta& meta = meta_without_sync(self);
  TORCH_CHECK(false, "[", std::string(function), "] a plain tensor of shape ", plain.sizes(),
              " cannot take the place of ", meta.name ? "'" + *meta.name + "', " : "", "a distributed tensor ",
              meta.spec->to_string(),
              ". Instead of torch::load() call dtensor::load(module, path), which keeps the layouts, or "
              "dtensor::load_state_dict(module, values) for plain values at hand; or distribute the tensor first: "
              "distribute_tensor(t, mesh, placements).");
}

}  // namespace dtensor::internal
