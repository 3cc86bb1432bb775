// Built-in operators of LibTorch on sharded tensors: those that modules, optimizers and copies need. Others are an
// error, or registered by the program.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "sharded/dispatch.h"
#include "sharded/factories.h"
#include "sharded/moves.h"
#include "sharded/tensor_ops.h"

namespace dtensor::sharded {
namespace {

using torch::jit::Stack;

// The arguments of a call by their names.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, Stack& stack) : schema_(op.schema()) {
    values_ = torch::jit::pop(stack, schema_.arguments().size());
  }
  // None if there is no such argument.
  c10::IValue operator[](const std::string& name) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (schema_.arguments()[i].name() == name) return values_[i];
    }
    return {};
  }
  ShardedTensor self() const { return ShardedTensor(values_.at(0).toTensor()); }
  at::Tensor tensor(size_t i) const { return values_.at(i).toTensor(); }

 private:
  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> values_;
};

using Handler = std::function<c10::IValue(const Arguments&)>;

void add(const std::string& function, Handler handler) {
  register_operator(function, [handler = std::move(handler)](const c10::OperatorHandle& op, Stack& stack) {
    const Arguments arguments(op, stack);
    c10::IValue result = handler(arguments);
    if (!op.schema().returns().empty()) stack.push_back(std::move(result));
  });
}

c10::IValue wrapped(const ShardedTensor& t) { return t.tensor(); }

// Called by modules to move and to cast: parameters stay leaves. ShardedTensor::to() is differentiable.
c10::IValue to(const Arguments& a) {
  MoveOptions options;
  if (const c10::IValue other = a["other"]; other.isTensor()) options = MoveOptions::like(other.toTensor());
  if (const c10::IValue dtype = a["dtype"]; !dtype.isNone()) options.dtype = dtype.toScalarType();
  if (const c10::IValue device = a["device"]; !device.isNone()) options.device = device.toDevice();
  if (const c10::IValue copy = a["copy"]; !copy.isNone()) options.copy = copy.toBool();
  if (const c10::IValue wait = a["non_blocking"]; !wait.isNone()) options.non_blocking = wait.toBool();
  const ShardedTensor self = a.self();
  c10::AutoGradMode no_grad(false);
  const ShardedTensor moved = self.to(options);
  if (moved.is_same(self)) return wrapped(self);
  for (int64_t rank : moved.process_group().owned_ranks()) {
    for (Shard& shard : moved.local_shards(rank)) {
      if (shard.tensor.requires_grad() != moved.requires_grad())
        shard.tensor = shard.tensor.detach().set_requires_grad(moved.requires_grad());
    }
  }
  return wrapped(moved);
}

ShardedTensorOptions like_options(const Arguments& a) {
  ShardedTensorOptions options;
  if (const c10::IValue dtype = a["dtype"]; !dtype.isNone()) options.dtype = dtype.toScalarType();
  if (const c10::IValue pin = a["pin_memory"]; !pin.isNone()) options.pin_memory = pin.toBool();
  return options;
}

// LibTorch's questions about the tensor object itself.
void pass_below(const c10::OperatorHandle& op, Stack& stack) {
  BelowSharding below;
  op.callBoxed(stack);
}

const bool builtin_operators_registered = [] {
  for (const char* function : {"_has_compatible_shallow_copy_type", "set_data", "is_leaf", "output_nr", "_version",
                               "retain_grad", "retains_grad", "is_floating_point", "is_complex", "size", "stride"})
    register_operator(function, &pass_below);
  add("to", to);
  add("clone", [](const Arguments& a) {
    const c10::IValue format = a["memory_format"];
    return wrapped(clone(a.self(), format.isNone() ? c10::MemoryFormat::Preserve : format.toMemoryFormat()));
  });
  add("detach", [](const Arguments& a) { return wrapped(detach(a.self())); });
  add("copy_", [](const Arguments& a) { return wrapped(copy_(a.self(), ShardedTensor(a.tensor(1)))); });
  add("requires_grad_",
      [](const Arguments& a) { return wrapped(requires_grad_(a.self(), a["requires_grad"].toBool())); });
  add("type_as", [](const Arguments& a) { return wrapped(type_as(a.self(), a.tensor(1))); });
  add("equal", [](const Arguments& a) { return c10::IValue(sharded::equal(a.tensor(0), a.tensor(1))); });
  add("allclose", [](const Arguments& a) {
    return c10::IValue(sharded::allclose(a.tensor(0), a.tensor(1), a["rtol"].toDouble(), a["atol"].toDouble(),
                                         a["equal_nan"].toBool()));
  });
  add("empty_like", [](const Arguments& a) { return wrapped(empty_like(a.self(), like_options(a))); });
  add("zeros_like", [](const Arguments& a) { return wrapped(zeros_like(a.self(), like_options(a))); });
  add("ones_like", [](const Arguments& a) { return wrapped(ones_like(a.self(), like_options(a))); });
  add("rand_like", [](const Arguments& a) { return wrapped(rand_like(a.self(), like_options(a))); });
  add("randn_like", [](const Arguments& a) { return wrapped(randn_like(a.self(), like_options(a))); });
  add("full_like",
      [](const Arguments& a) { return wrapped(full_like(a.self(), a["fill_value"].toScalar(), like_options(a))); });
  return true;
}();

}  // namespace
}  // namespace dtensor::sharded
