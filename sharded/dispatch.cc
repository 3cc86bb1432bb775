#include "sharded/dispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "absl/container/flat_hash_map.h"
#include "sharded/op_registry.h"
#include "sharded/sharded_key.h"

namespace dtensor::sharded {
namespace {

absl::flat_hash_map<std::string, OperatorHandler>& handlers() {
  static auto* const table = new absl::flat_hash_map<std::string, OperatorHandler>;
  return *table;
}

bool has_sharded(c10::ArrayRef<c10::IValue> values) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && is_sharded(value.toTensor())) return true;
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        if (is_sharded(t)) return true;
      }
    }
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        if (t && is_sharded(*t)) return true;
      }
    }
  }
  return false;
}

// "add" of "aten::add"; other libraries' names are left whole.
std::string name_of(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  return name.compare(0, 6, "aten::") == 0 ? name.substr(6) : name;
}

AnyShardingSpec first_spec(c10::ArrayRef<c10::IValue> values) {
  const OpTypes types = sharded_tensors_in(values);
  return types.at(0).sharding_spec();
}

// The registry takes what can be passed by name alone apart.
void call_registered(const std::string& name, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  OpArguments args = torch::jit::pop(stack, schema.arguments().size());
  OpKeywords kwargs;
  for (size_t i = args.size(); i-- > 0 && schema.arguments()[i].kwarg_only();) {
    kwargs[schema.arguments()[i].name()] = std::move(args[i]);
    args.pop_back();
  }
  c10::IValue result = call_sharded_op(name, args, kwargs);
  const size_t count = schema.returns().size();
  if (count == 1) stack.push_back(std::move(result));
  if (count <= 1) return;
  TORCH_CHECK_TYPE(result.isTuple() && result.toTupleRef().elements().size() == count, "the handler of '", name,
                   "' must give a tuple of ", count, " results, and gave ", result.tagKind());
  for (const c10::IValue& v : result.toTupleRef().elements()) stack.push_back(v);
}

}  // namespace

void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto args = torch::jit::last(*stack, op.schema().arguments().size());
  if (!has_sharded(args)) {
    BelowSharding below;
    return op.callBoxed(*stack);
  }
  const std::string name = name_of(op.schema());
  if (!find_op(name, first_spec(args))) {
    if (const auto it = handlers().find(name); it != handlers().end()) return it->second(op, *stack);
  }
  call_registered(name, op, *stack);
}

void register_operator(const std::string& function, OperatorHandler handler) {
  handlers()[function] = std::move(handler);
}

}  // namespace dtensor::sharded

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  static_assert(dtensor::sharded::kShardedKey == c10::DispatchKey::TESTING_ONLY_GenericWrapper,
                "register the fallback at kShardedKey");
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dtensor::sharded::dispatch>());
}
