// Operators on lists, as used by optimizers written in Python: one operator per tensor of the list, each with its own
// layout, as in ATen's kernels for "any backend"; where no tensor moves, the same operator on the lists of local
// tensors. Partial inputs that must be reduced are reduced together first.
#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "dtensor/dispatch/list_call.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/tensor/representation.h"
#include "ops/pointwise/pointwise.h"
#include "ops/support/arguments.h"
#include "ops/support/plain_numbers.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

constexpr std::string_view kPrefix = "aten::_foreach_";

// Whether Partial inputs may stay so: in sums of lists, and in products of one list with replicated tensors.
bool keeps_partials(const std::string& name, const Arguments& args) {
  static const auto* const linear = new std::set<std::string>{"add", "sub", "neg", "copy", "zero", "lerp", "clone"};
  static const auto* const products = new std::set<std::string>{"mul", "div", "addcmul", "addcdiv", "mm"};
  std::string base = name.substr(kPrefix.size());
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

// Whether `element` takes the arguments of `op` with one element in place of each list, and else defaults.
bool takes_elements(const c10::FunctionSchema& op, const c10::FunctionSchema& element) {
  const auto &lists = op.arguments(), &single = element.arguments();
  if (single.size() < lists.size()) return false;
  for (size_t i = 0; i < single.size(); ++i) {
    if (i >= lists.size()) {
      if (!single[i].default_value()) return false;
      continue;
    }
    const auto* list = lists[i].type()->castRaw<c10::ListType>();
    if (*(list != nullptr ? list->getElementType() : lists[i].type()) != *single[i].type()) return false;
  }
  return true;
}

const OpInfo* find_element_operator(const c10::OperatorHandle& op) {
  const std::string name = "aten::" + op.operator_name().name.substr(kPrefix.size());
  for (const c10::OperatorName& other : c10::Dispatcher::singleton().getAllOpNames()) {
    if (other.name != name) continue;
    const auto element = c10::Dispatcher::singleton().findSchema(other);
    if (element && !op_info(*element).has_outs && takes_elements(op.schema(), element->schema()))
      return &op_info(*element);
  }
  return nullptr;
}

// The operator for one tensor of the lists: aten::add_.Scalar for aten::_foreach_add_.Scalar. Null: there is none.
const OpInfo* element_operator(const c10::OperatorHandle& op) {
  static auto* const mutex = new std::mutex;
  static auto* const known =
      new absl::flat_hash_map<c10::OperatorHandle, const OpInfo*, std::hash<c10::OperatorHandle>>;
  std::lock_guard lock(*mutex);
  const auto [entry, is_new] = known->try_emplace(op, nullptr);
  if (is_new) entry->second = find_element_operator(op);
  return entry->second;
}

void run_foreach(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const OpInfo* element = element_operator(op);
  if (element != nullptr && run_on_local_lists(op_info(op), *element, stack)) return;
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
    if (name.name.rfind(kPrefix, 0) == 0) registry.add_handler(name.name, run_foreach);
  }
});

}  // namespace dtensor::internal
