#include "dtensor/extend/plain_beside_distributed.h"

#include <c10/util/Exception.h>

#include <string>

#include "comm/scope.h"
#include "dtensor/extend/dispatch_scope.h"
#include "dtensor/extend/library_code.h"

namespace dtensor {

bool plain_is_replicated() {
  if (current_dispatch_scope().implicit_replication || in_backward()) return true;
  const LibraryCode* code = LibraryCode::current();
  return code != nullptr && code->makes_plain();
}

// No c10::TypeError: Python's operators (`a + b`) swallow a TypeError with its text and say "unsupported operand".
void throw_plain_beside_distributed(std::string_view function, std::string_view argument, const at::Tensor& t,
                                    const DeviceMesh& mesh) {
  TORCH_CHECK_NOT_IMPLEMENTED(!t.is_nested(), std::string(function), ": argument '", std::string(argument),
                              "' is a nested tensor, which cannot be distributed, nor stand beside a distributed one. ",
                              kInPlaceOfNested);
  const bool loads = function == "aten::copy_";
  const LibraryCode* code = LibraryCode::current();  // which may have made `t` of what it was given
  const std::string called = code != nullptr ? code->called_operator() : std::string(function);
  const std::string caller = called != function ? " (called by " + called + ")" : "";
  TORCH_CHECK(
      false, std::string(function), caller, ": argument '", std::string(argument), "' is a plain tensor of shape ",
      t.sizes(), " next to a distributed one on ", mesh.to_string(),
      ". Distribute it first: distribute_tensor(t, mesh, {Replicate(), ...}). If the model makes it in forward, call "
      "the model in a MeshScope(mesh), where arange, full, zeros and other factories, but not torch::tensor and "
      "torch::empty, make distributed tensors. Or open an ImplicitReplication scope if every rank is known to hold the "
      "same values.",
      loads ? " To load whole values into parameters, call dtensor::load_state_dict(module, values) or dtensor::load()."
            : "");
}

}  // namespace dtensor
