// Typed kernels of composite operators (composite_dispatch.h).
//
// Any may have one that returns one tensor and takes no written ones. It is of use for calls without a handler.
//
// An operator may be decided as one if the local tensors of its result are what it computes from the local tensors of
// its arguments, wherever the operators that it is composed of compute theirs so: not if its arguments or its code have
// sizes of the whole tensors (reshape, the mean of a loss), if its result shares memory with an argument (dropout in
// eval mode), or if it draws random numbers by its own code, not by an operator. An operator that chooses another one
// by the sizes of its arguments, as attention does, chooses by those of the local tensors.
#include <ATen/core/Tensor.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/dropout_ops.h>
#include <ATen/ops/einsum_ops.h>
#include <ATen/ops/flatten_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/rms_norm_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/to_ops.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/composite_dispatch.h"
#include "dtensor/dispatch/internal/direct_call.h"
#include "dtensor/parallel/applied_style.h"
#include "propagation/decision.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

using TensorsOfComposite = absl::InlinedVector<const at::Tensor*, 4>;

inline void append_tensors(TensorsOfComposite& to, const at::Tensor& t) { to.push_back(&t); }
inline void append_tensors(TensorsOfComposite& to, const std::optional<at::Tensor>& t) {
  if (t && t->defined()) to.push_back(&*t);
}
inline void append_tensors(TensorsOfComposite& to, at::TensorList list) {
  for (const at::Tensor& t : list) to.push_back(&t);
}
template <typename T>
void append_tensors(TensorsOfComposite&, const T&) {}

bool has_empty_part(const at::Tensor& t) {
  const RankTensors& locals = meta_without_sync(t).locals;
  return std::any_of(locals.begin(), locals.end(), [](const at::Tensor& local) { return local.numel() == 0; });
}

// Whether a result like this can be made of the local tensors of further calls: its memory is its own, and no part is
// empty, for which rules have computations of their own (ATen's kernels for attention divide by the number of heads).
bool can_be_one(const TensorsOfComposite& tensors, const at::Tensor& result) {
  if (!is_dtensor(result) || result.is_view() || result.storage_offset() != 0) return false;
  const DTensorMeta& meta = meta_without_sync(result);
  const auto prevents = [&](const at::Tensor* t) {
    return meta_without_sync(*t).storage == meta.storage || has_empty_part(*t);
  };
  return !needs_boxed_kernel(meta) && std::none_of(tensors.begin(), tensors.end(), prevents);
}

// Keeps the layout of `result` for calls with the same key.
void keep_result(const OpInfo& info, const CacheKey& key, c10::ArrayRef<c10::IValue> args, const at::Tensor& result) {
  const DTensorMeta& meta = meta_without_sync(result);
  Inputs in = gather_inputs(info, args);
  const auto inputs = in.pointers();
  find_hints(info, {inputs.data(), inputs.size()}, in.context);
  auto decision = std::make_shared<Decision>();
  decision->call = to_keep(make_call(info, in, args));
  decision->outputs = {meta.spec};
  decision->output_counts = {-1};
  decision->direct = true;
  decision->shares_memory = meta.storage->shared.load(std::memory_order_relaxed);
  strategy_cache(meta.spec->mesh().world()).insert_derived(key, std::move(decision));
}

template <typename Op, bool kAsOne, typename Schema = typename Op::schema>
struct CompositeKernel;

template <typename Op, bool kAsOne, typename... Args>
struct CompositeKernel<Op, kAsOne, at::Tensor(Args...)> {
  static at::Tensor call(c10::DispatchKeySet keys, Args... args) {
    const TensorsOfComposite tensors = tensors_of(args...);
    // In the code of another operator, styles and param_dtypes do not apply.
    const bool outermost = CompositeOpScope::current() == nullptr;
    if constexpr (kAsOne) {
      const bool styled = outermost && std::any_of(tensors.begin(), tensors.end(), is_styled);
      at::Tensor result = styled ? at::Tensor() : compute_as_one(tensors, keys, args...);
      if (result.defined()) return result;
    }
    if (runs_own_code(tensors, outermost)) {
      const CompositeOpScope scope(handle(), c10::ArrayRef<const at::Tensor*>(tensors.data(), tensors.size()));
      return distribute_result(scope, Op::redispatch(keys_of_own_code(info(), keys), std::forward<Args>(args)...));
    }
    static const auto boxed = c10::KernelFunction::makeFromBoxedFunction<&run_composite>();
    return boxed.call<at::Tensor, Args...>(handle(), keys, std::forward<Args>(args)...);
  }

  // Undefined: the call cannot be decided as one.
  static at::Tensor attempt(c10::DispatchKeySet keys, Args... args) {
    return compute_as_one(tensors_of(args...), keys, args...);
  }

 private:
  static const c10::OperatorHandle& handle() {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return op;
  }

  static const OpInfo& info() {
    static const OpInfo& known = op_info(handle());
    return known;
  }

  static TensorsOfComposite tensors_of(const Args&... args) {
    TensorsOfComposite tensors;
    (append_tensors(tensors, args), ...);
    return tensors;
  }

  static at::Tensor compute_as_one(const TensorsOfComposite& tensors, c10::DispatchKeySet keys, const Args&... args) {
    DirectCall direct(info(), {tensors.data(), tensors.size()});
    if (!direct.begin_composite(keys)) return {};
    size_t i = 0;
    (direct.add(i++, args), ...);
    if (direct.find_decision()) return compute(direct, args...);
    static const auto by_parts = c10::KernelFunction::makeFromBoxedFunction<&run_code_of_composite>();
    const InnerCallsSince inner;
    at::Tensor result = by_parts.call<at::Tensor, Args...>(handle(), keys, args...);
    if (!inner.are_as_given() || !can_be_one(tensors, result)) return result;
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    keep_result(info(), direct.key(), stack, result);
    return result;
  }

  // Whether the operator's own code is to run on the arguments as they are.
  static bool runs_own_code(const TensorsOfComposite& tensors, bool outermost) {
    bool distributed = false;
    for (const at::Tensor* t : tensors) {
      if (!is_dtensor(*t)) continue;
      distributed = true;
      if (outermost && (has_style(*t) || memory_viewed_by(*t)->parameter->traits)) return false;
      if (needs_handler(info(), *t)) return false;
    }
    return distributed;
  }

  static bool is_styled(const at::Tensor* t) { return is_dtensor(*t) && has_style(*t); }

  static at::Tensor compute(DirectCall& direct, const Args&... args) {
    return direct.make_result(direct.compute([&](size_t r) { return Op::call(local_of(args, r)...); }));
  }
};

struct CompositeKernels {
  c10::KernelFunction kernel, attempt;  // attempt: invalid if the operator is not decided as one
};

// By the names of the operators.
const absl::flat_hash_map<c10::OperatorName, CompositeKernels, std::hash<c10::OperatorName>>& composite_kernels() {
  static const auto* const kernels = [] {
    auto* all = new absl::flat_hash_map<c10::OperatorName, CompositeKernels, std::hash<c10::OperatorName>>;
    const auto add = [all]<typename Op>(Op) {
      using Kernel = CompositeKernel<Op, /*kAsOne=*/true>;
      all->emplace(c10::OperatorName(Op::name, Op::overload_name),
                   CompositeKernels{c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(Kernel::call)),
                                    c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(Kernel::attempt))});
    };
    const auto add_by_parts = [all]<typename Op>(Op) {
      using Kernel = CompositeKernel<Op, /*kAsOne=*/false>;
      all->emplace(c10::OperatorName(Op::name, Op::overload_name),
                   CompositeKernels{c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(Kernel::call)), {}});
    };
    add(at::_ops::linear());
    add(at::_ops::matmul());
    add(at::_ops::einsum());
    add(at::_ops::layer_norm());
    add(at::_ops::rms_norm());
    add(at::_ops::softmax_int());
    add(at::_ops::log_softmax_int());
    add(at::_ops::scaled_dot_product_attention());
    add_by_parts(at::_ops::reshape());
    add_by_parts(at::_ops::flatten_using_ints());
    add_by_parts(at::_ops::contiguous());
    add_by_parts(at::_ops::to_dtype());
    add_by_parts(at::_ops::dropout());
    return all;
  }();
  return *kernels;
}

}  // namespace

std::optional<c10::KernelFunction> typed_composite_kernel(const c10::OperatorHandle& op) {
  const auto found = composite_kernels().find(op.operator_name());
  if (found == composite_kernels().end()) return std::nullopt;
  return found->second.kernel;
}

bool run_as_one(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto found = composite_kernels().find(op.operator_name());
  if (found == composite_kernels().end() || !found->second.attempt.isValid()) return false;
  const auto args = torch::jit::last(*stack, op.schema().arguments().size());
  torch::jit::Stack result(args.begin(), args.end());
  found->second.attempt.callBoxed(op, keys, &result);
  if (!result[0].toTensor().defined()) return false;
  torch::jit::drop(*stack, args.size());
  stack->push_back(std::move(result[0]));
  return true;
}

}  // namespace dtensor::internal
