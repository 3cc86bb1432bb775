// Operators on lists, as used by optimizers written in Python: one operator per tensor of the list, each with its own
// layout, as in ATen's kernels for "any backend". Partial inputs that must be reduced are reduced together first.
#include <algorithm>
#include <set>
#include <string>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/tensor/representation.h"
#include "ops/pointwise/pointwise.h"
#include "ops/support/arguments.h"
#include "ops/support/plain_numbers.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// Whether Partial inputs may stay so: in sums of lists, and in products of one list with replicated tensors.
bool keeps_partials(const std::string& name, const Arguments& args) {
  static const auto* const linear = new std::set<std::string>{"add", "sub", "neg", "copy", "zero", "lerp", "clone"};
  static const auto* const products = new std::set<std::string>{"mul", "div", "addcmul", "addcdiv", "mm"};
  std::string base = name.substr(std::string("aten::_foreach_").size());
  if (!base.empty() && base.back() == '_') base.pop_back();
  if (linear->count(base) > 0) return true;
  if (products->count(base) == 0) return false;
  const auto has_partial = [&](const char* argument) {
    const c10::IValue& value = args[argument];
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(),
                       [](const at::Tensor& t) { return is_dtensor(t) && spec_of(t)->has_partial(); });
  };
  if ((base == "div" && has_partial("other")) || (base == "addcdiv" && has_partial("tensor2"))) return false;
  const auto factors = {"self", "other", "mat2", "tensor1", "tensor2"};
  return std::count_if(factors.begin(), factors.end(), has_partial) < 2;
}

void one_by_one(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd), "Operator ",
                              op.operator_name(), " does not have a form for distributed tensors.");
  // A tensor of scalars, one per tensor of the list: ATen converts it to numbers.
  Arguments args(op, stack);
  if (args["scalars"].isTensor()) args.set("scalars", plain_numbers(args.tensor("scalars"), op, "scalars"));
  if (!keeps_partials(op.operator_name().name, args)) reduce_lists(op_info(op), stack);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
}

}  // namespace

const RuleFamily foreach_handlers("foreach", [](RuleRegistry& registry) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) == 0) registry.add_handler(name.name, one_by_one);
  }
});

}  // namespace dtensor::internal
