#include "propagation/trial_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/PythonOpRegistrationTrampoline.h>
#include <ATen/core/stack.h>
#include <ATen/ops/ones.h>

#include <mutex>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace dtensor::internal {
namespace {

// Restores the generator: random operators draw from the default generator even on stand-ins. Trials run one after the
// other: two at once would each restore a state that lacks the other's draws. (The operator takes the generator's own
// lock meanwhile.)
class KeepGenerator {
 public:
  explicit KeepGenerator(bool needed) {
    if (!needed) return;
    // Not asked for otherwise: LibTorch destroys it at exit, when static tensors may still compute.
    generator_ = at::detail::getDefaultCPUGenerator();
    trial_ = std::unique_lock<std::mutex>(trials());
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepGenerator() {
    if (!trial_) return;
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  static std::mutex& trials() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }

  std::unique_lock<std::mutex> trial_;
  at::Generator generator_;
  at::Tensor state_;
};

// The arguments of the call on `device`.
torch::jit::Stack stack_of(const OpCall& call, c10::Device device, const std::function<at::Tensor(int)>& stand_in) {
  torch::jit::Stack stack;
  const auto& arguments = call.schema().arguments();
  stack.reserve(arguments.size());
  for (size_t a = 0; a < arguments.size(); ++a) {
    const ArgSlot& slot = call.slots[a];
    if (slot.kind == ArgSlot::Kind::kTensor) {
      if (slot.count == 1 && call.inputs[slot.first]) {
        stack.emplace_back(stand_in(slot.first));
      } else if (arguments[a].type()->kind() == c10::TypeKind::TensorType) {
        stack.emplace_back(at::Tensor());
      } else {
        stack.emplace_back();
      }
    } else if (slot.kind == ArgSlot::Kind::kTensorList) {
      auto type = arguments[a].type();
      if (auto optional = type->cast<c10::OptionalType>()) {
        if (slot.count == 0) {
          stack.emplace_back();
          continue;
        }
        type = optional->getElementType();
      }
      const bool optional_elements =
          type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
      c10::List<std::optional<at::Tensor>> maybe;
      c10::List<at::Tensor> all;
      for (int i = slot.first; i < slot.first + slot.count; ++i) {
        std::optional<at::Tensor> element;
        if (call.inputs[i]) element = stand_in(i);
        maybe.push_back(element);
        all.push_back(element.value_or(at::Tensor()));
      }
      if (optional_elements) {
        stack.emplace_back(maybe);
      } else {
        stack.emplace_back(all);
      }
    } else if (call.args[a].isDevice()) {
      stack.emplace_back(device);
    } else if (call.args[a].isGenerator()) {
      stack.emplace_back();
    } else {
      stack.push_back(call.args[a]);
    }
  }
  return stack;
}

OutputMetas read_metas(const torch::jit::Stack& stack) {
  OutputMetas result;
  auto append = [&](const at::Tensor& tensor) {
    result.tensors.push_back(tensor.defined() ? std::optional(read_meta(tensor)) : std::nullopt);
    result.offsets.push_back(tensor.defined() ? tensor.storage_offset() : 0);
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      append(value.toTensor());
      result.counts.push_back(-1);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) append(tensor);
      result.counts.push_back(static_cast<int>(value.toTensorVector().size()));
    } else if (value.isNone()) {
      append(at::Tensor());
      result.counts.push_back(-1);
    } else {
      result.counts.push_back(0);
    }
  }
  return result;
}

struct MetaKernels {
  bool of_python = false;  // Python's is the one that a call on meta tensors runs
  bool of_aten = false;    // ATen has one, be it replaced
};

// Python's kernels describe strides and shapes of some results otherwise than the operators compute them.
MetaKernels meta_kernels(const c10::OperatorHandle& op) {
  MetaKernels result = {.of_aten = op.hasKernelForDispatchKey(c10::DispatchKey::Meta)};
  if (!result.of_aten || !has_meta_kernels_of_python()) return result;
  if (!absl::StartsWith(op.operator_name().name, "aten::")) return result;  // nothing else describes others
  result.of_aten = false;
  const std::string state = op.dumpState();  // has the sources of kernels, also of those that Python's replace
  for (const absl::string_view line : absl::StrSplit(state, '\n')) {
    if (!absl::StartsWith(line, "Meta: ") && !absl::StartsWith(line, "Meta (inactive): ")) continue;
    (absl::StrContains(line, ".py:") ? result.of_python : result.of_aten) = true;
  }
  return result;
}

// Calls the operator on meta tensors, as if Python had registered no kernel for it. Error (c10::NotImplementedError):
// it has no other one.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  using enum c10::DispatchKey;
  const MetaKernels kernels = meta_kernels(op);
  if (!kernels.of_python) return op.callBoxed(stack);
  // ATen's meta kernel, which allocates results, and then the kernel that writes them, which may be Python's: it
  // refuses some dtypes of elementwise operators.
  constexpr auto kAllocates = CompositeExplicitAutogradNonFunctional;
  const bool may_allocate = !op.schema().is_mutable() && !op.hasTag(at::Tag::pointwise);
  if (may_allocate && op.hasKernelForDispatchKey(kAllocates)) return op.callBoxedForDispatchKey(kAllocates, stack);
  if (kernels.of_aten) return op.callBoxed(stack);  // Python's has replaced it
  for (const auto key : {CompositeExplicitAutograd, CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return op.callBoxedForDispatchKey(key, stack);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, dotted_name(op), " has no meta kernel");
}

}  // namespace

bool has_meta_kernels_of_python() { return at::impl::PythonOpRegistrationTrampoline::getInterpreter() != nullptr; }

bool has_meta_kernel(const c10::OperatorHandle& op) { return meta_kernels(op).of_aten; }

bool is_random(const c10::OperatorHandle& op) {
  const auto takes_generator = [](const c10::Argument& arg) {
    const auto* optional = arg.type()->castRaw<c10::OptionalType>();
    return (optional != nullptr ? optional->getElementType() : arg.type())->kind() == c10::TypeKind::GeneratorType;
  };
  return op.hasTag(at::Tag::nondeterministic_seeded) || absl::c_any_of(op.schema().arguments(), takes_generator);
}

TensorMeta read_meta(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  meta.dtype = tensor.scalar_type();
  return meta;
}

at::Tensor meta_tensor(const Spec& spec) {
  at::Tensor result(at::detail::empty_strided_meta(spec.sizes(), spec.strides(), spec.dtype()));
  if (spec.meta().wrapped_number) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

at::Tensor tensor_of_ones(const Spec& spec, int64_t size) {
  at::Tensor result = at::ones(std::vector<int64_t>(spec.ndim(), size), spec.dtype());
  if (spec.meta().wrapped_number) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

OutputMetas trial_run(const OpCall& call, c10::Device device, const std::function<at::Tensor(int)>& stand_in) {
  const StandInGuard guard;
  const KeepGenerator keep(is_random(call.op) && !device.is_meta());  // kernels of meta tensors draw nothing
  torch::jit::Stack stack = stack_of(call, device, stand_in);
  device.is_meta() ? call_on_meta(call.op, stack) : call.op.callBoxed(stack);
  return read_metas(stack);
}

std::optional<OutputMetas> run_meta(const OpCall& call) {
  std::vector<at::Tensor> stand_ins(call.inputs.size());
  // A number is never on the meta device, and meta kernels defined in Python read its value.
  const auto stand_in = [&](int i) {
    const Spec& spec = *call.inputs[i];
    return stand_ins[i] = spec.meta().wrapped_number ? tensor_of_ones(spec, 1) : meta_tensor(spec);
  };
  OutputMetas metas;
  try {
    metas = trial_run(call, c10::DeviceType::Meta, stand_in);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  } catch (const c10::Error& e) {
    // Kernels that read a value: "Tensor.item() cannot be called on meta tensors".
    if (!absl::StrContains(e.what_without_backtrace(), "meta tensor")) throw;
    return std::nullopt;
  }
  // Operators such as t_() change the shape of the tensor itself; the handle of a distributed one could not follow.
  const auto& arguments = call.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    const auto* alias = arguments[a].alias_info();
    if (alias == nullptr || !alias->isWrite() || arguments[a].is_out()) continue;
    for (int i = call.slots[a].first; i < call.slots[a].first + call.slots[a].count; ++i) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          !stand_ins[i].defined() || read_meta(stand_ins[i]) == call.inputs[i]->meta(), "Operator ",
          dotted_name(call.op),
          ": in-place operations that change the shape of a distributed tensor are not supported; use ",
          "the form that returns a new tensor");
    }
  }
  return metas;
}

}  // namespace dtensor::internal
