#include "dtensor/dispatch/internal/module_call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "comm/scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/parallel/hook_watch.h"
#include "dtensor/parallel/parameter_group.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// Whether the call computes with parameters of groups and with other tensors.
bool computes_with_parameters(const OpInfo& info, const Inputs& in) {
  bool any = false, others = false;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!t.defined()) continue;
    if (!parameter_group_of(t)) {
      others |= t.dim() > 0;
    } else if (info.args[in.arg_of[k]].written) {
      return false;
    } else {
      any = true;
    }
  }
  return any && others;
}

// The hooks that should have run before an operator computes with `t`.
const HookWatch* open_watch(const at::Tensor& t) {
  if (!is_dtensor(t)) return nullptr;
  const auto& traits = meta_without_sync(t).storage->parameter->traits;
  if (!traits) return nullptr;
  const auto& watches = traits->hook_watches;
  const auto open = std::find_if(watches.begin(), watches.end(), [](const auto& w) { return !w->over(); });
  return open == watches.end() ? nullptr : open->get();
}

// Whether the call is elementwise on tensors of one shape, as in optimizers and averages.
bool is_update(const OpInfo& info, const Inputs& in) {
  if (!info.pointwise && info.op.schema().name() != "aten::copy_") return false;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& t : in.tensors) {
    if (!t.defined() || t.dim() == 0) continue;
    if (first != nullptr && t.sizes() != first->sizes()) return false;
    first = &t;
  }
  return true;
}

}  // namespace

void check_hooks_ran(const OpInfo& info, const Inputs& in) {
  if (in_backward()) return;
  const HookWatch* hooks = nullptr;
  std::string argument;
  bool others = false;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    const auto& arg = info.args[in.arg_of[k]];
    const HookWatch* open = open_watch(t);
    if (open == nullptr) {
      others |= t.defined() && t.dim() > 0;
    } else if (arg.written) {
      return;
    } else if (hooks == nullptr && arg.kind == OpInfo::Arg::Kind::kTensor) {
      hooks = open;
      argument = info.op.schema().arguments()[in.arg_of[k]].name();
      if (meta_without_sync(t).name) argument += " ('" + *meta_without_sync(t).name + "')";
    }
  }
  if (hooks == nullptr || !others || is_update(info, in)) return;
  TORCH_CHECK(false, info.name, ": argument ", argument, " is of ", hooks->module(),
              ", whose hooks (input_fn, output_fn) never ran: forward() was called through a pointer to the class that "
              "was distributed, such as a member `torch::nn::Linear fc`. Declare that member as "
              "DistributedModule<torch::nn::LinearImpl> fc{nullptr}, as torch::nn::AnyModule, or put the module in a "
              "torch::nn::Sequential. To compute with its parameters without the hooks on purpose, call "
              "allow_without_hooks() of the distributed module before.");
}

void use_gathered_parameters(const OpInfo& info, Inputs& in) {
  if (info.is_view || !computes_with_parameters(info, in) || is_update(info, in)) return;
  if (absl::StartsWith(info.name, "aten::_foreach")) return;
  for (at::Tensor& t : in.tensors) {
    if (!t.defined()) continue;
    const auto group = parameter_group_of(t);
    if (!group) continue;
    at::Tensor gathered;
    try {
      gathered = group->gathered(t);
    } catch (c10::Error& e) {
      const auto& name = meta_without_sync(t).name;
      e.add_context(
          c10::str("in ", info.name, ", which takes ", name ? *name : "a parameter", " of a fully_shard() group"));
      throw;
    }
    if (!gathered.defined()) continue;
    t = std::move(gathered);
    count_otherwise();
  }
}

void keep_cast_of_parameter(const OpInfo& info, const at::Tensor& from, c10::ArrayRef<c10::IValue> results) {
  if (info.name != "aten::_to_copy") return;
  if (const auto group = parameter_group_of(from)) group->add_cast(from, results.back().toTensor());
}

}  // namespace dtensor::internal
