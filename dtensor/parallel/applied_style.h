// The styles of parallelize_module() at work. C++ modules have no forward hooks, so what a style says of the input and
// the output of a module travels with its parameters: the memory of each has an AppliedStyle, and an operator above
// autograd that takes the parameter and another distributed tensor redistributes that tensor, and its own result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/parallel_style.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

// The style of one module on one mesh dim, with the defaults of the module's type; and what its operators did.
struct ModuleStyle {
  const void* module = nullptr;                 // its torch::nn::Module, only to compare
  std::vector<const c10::TensorImpl*> tensors;  // its own parameters, only to compare: others may share their memory
  std::string path;                             // of the module: "layers.0.attn.wq"
  ParallelStyle style;                          // without a kind: none was given, and operators are only observed
  DeviceMesh mesh;                              // idle, with data
  int64_t mesh_dim = 0;
  std::optional<Placement> input, output;      // dims may be negative
  std::vector<ParameterPlacement> parameters;  // the module's own
  bool is_table = false;                       // of an Embedding or EmbeddingBag

  bool given() const { return !style.kind.empty(); }
  // "ColwiseParallel of 'layers.0.attn.wq'"
  std::string name() const { return style.kind + " of " + (path.empty() ? "the module" : "'" + path + "'"); }

  struct Seen {
    SpecPtr input, output;  // of the last call, with the style's layouts; null: none
    int64_t calls = 0;      // of operators that followed the style
    bool since_check = false;
  };
  Seen seen() const;
  void record(const SpecPtr& in, const at::Tensor& out);
  // Whether `t` is in the memory of the last recorded result.
  bool is_last_result(const at::Tensor& t) const;
  void begin_check();  // seen().since_check is false afterwards

 private:
  mutable std::mutex mutex_;
  Seen seen_;
  std::weak_ptr<LocalStorage> last_result_;
};

// The styles of a parameter: one, or one for each module that shares it.
class AppliedStyle {
 public:
  explicit AppliedStyle(std::vector<std::shared_ptr<ModuleStyle>> modules) : modules_(std::move(modules)) {}
  const std::vector<std::shared_ptr<ModuleStyle>>& modules() const { return modules_; }

 private:
  std::vector<std::shared_ptr<ModuleStyle>> modules_;
};

// Whether `t` belongs to a parameter of a module with a style. Cheap.
inline bool has_style(const at::TensorBase& t) {
  return is_dtensor(t) && meta_without_sync(t).storage->parameter->style;
}

// One call of an operator that follows a style. Made before the call: redistributes the input among the arguments on
// the stack. finish() after it: redistributes the first result there. In an OverlapCommunication scope the former may
// run the call, too. Both do nothing if no style applies: no parameter
// among the arguments or no other distributed tensor, parameters that went to another mesh than the style's, an
// operator that writes, a view, or one that is elementwise on tensors of one shape as in optimizers and averages; in
// backward; and during another such call. An elementwise operator on the style's last result (a bias that is added by
// hand) takes it as it is: it is no input of the module. The style of a table governs lookups alone. Errors
// (ValueError): input and parameter are on several meshes; the input or the result lacks the dim that the style shards.
class StyledCall {
 public:
  StyledCall(const c10::OperatorHandle& op, bool is_view, torch::jit::Stack& stack);
  ~StyledCall();
  StyledCall(const StyledCall&) = delete;
  StyledCall& operator=(const StyledCall&) = delete;
  // Whether the call follows a style.
  bool applies() const { return !styles_.empty(); }
  // The operator has run: call finish() at once.
  bool has_run() const { return result_.defined(); }
  void finish(torch::jit::Stack& stack) const;

 private:
  // The placements that `t` is to have, as the style says on its mesh dim.
  Placements layout(const at::Tensor& t, const Placement& to, const char* what) const;
  CommCause cause(const char* what) const;
  at::Tensor run_in_chunks(const at::Tensor& given, c10::ArrayRef<c10::IValue> args) const;
  at::Tensor moved(const at::Tensor& t, const std::optional<Placement>& to, const char* what) const;

  const c10::OperatorHandle& op_;
  std::vector<std::shared_ptr<ModuleStyle>> styles_;  // the first is followed, all are recorded; empty: none applies
  at::Tensor input_;
  SpecPtr input_layout_;  // in which the operator takes it
  at::Tensor result_;     // of an operator that has run
};

}  // namespace dtensor::internal
