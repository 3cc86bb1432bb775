// Typed kernels (typed_kernels.h) of fused optimizers, for parameters whose gradients and states have their layouts.
// The boxed kernels, which redistribute those that do not, are in ops/network/fused_optimizers.cc.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adagrad_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/core_fallback.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/direct_call.h"
#include "dtensor/dispatch/internal/typed_kernels.h"
#include "dtensor/dispatch/list_call.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {
namespace {

struct List {
  at::TensorList tensors;
  bool written = false;
};

// Those of a call, the parameters first.
using Lists = absl::InlinedVector<List, 6>;

// Whether the parts of `param` can be updated: it is on the mesh of `first`, has elements of its own, and its parts are
// up to date.
bool is_ordinary(const at::Tensor& param, const at::Tensor& first) {
  if (!is_dtensor(param) || !is_dtensor(first)) return false;
  const DTensorMeta& meta = meta_without_sync(param);
  return !is_special(meta) && !meta.spec->has_partial() && meta.spec->mesh() == spec_of(first)->mesh();
}

// Whether `t` needs no move next to `param`: it has the same layout, or is one number, which all ranks have.
bool fits(const at::Tensor& t, const at::Tensor& param) {
  if (is_dtensor(t) && (is_special(meta_without_sync(t)) || spec_of(t)->mesh() != spec_of(param)->mesh())) return false;
  if (is_dtensor(t) && spec_of(t) == spec_of(param)) return true;
  return t.defined() && t.numel() == 1 && t.sizes() != param.sizes() && (!is_dtensor(t) || spec_of(t)->is_replicated());
}

bool all_fit(const Lists& lists) {
  const at::TensorList params = lists[0].tensors;
  if (params.empty()) return false;
  for (const at::Tensor& param : params) {
    if (!is_ordinary(param, params[0])) return false;
  }
  for (const List& list : lists) {
    if (list.tensors.empty()) continue;
    if (list.tensors.size() != params.size()) return false;
    for (size_t n = 0; n < params.size(); ++n) {
      if (!fits(list.tensors[n], params[n])) return false;
    }
  }
  return true;
}

void note_parameters(const OpInfo& info, const Lists& lists) {
  for (const List& list : lists) {
    for (const at::Tensor& t : list.tensors) {
      if (is_dtensor(t)) note_parameter(info, t);
    }
  }
}

const at::Tensor& part_of(const at::Tensor& t, size_t r) { return is_dtensor(t) ? meta_without_sync(t).locals[r] : t; }

// The parts of `list` on local rank r that belong to parameters with elements there.
BorrowedTensors parts_of(at::TensorList list, at::TensorList params, size_t r) {
  BorrowedTensors parts;
  parts.reserve(list.size());
  for (size_t n = 0; n < list.size(); ++n) {
    if (part_of(params[n], r).numel() > 0) parts.add(part_of(list[n], r));
  }
  return parts;
}

bool has_elements(at::TensorList params, size_t r) {
  return std::any_of(params.begin(), params.end(), [r](const at::Tensor& t) { return part_of(t, r).numel() > 0; });
}

void note_writes(const Lists& lists) {
  for (const List& list : lists) {
    for (const at::Tensor& t : list.tensors) {
      if (list.written && is_dtensor(t)) mark_written(*meta_without_sync(t).storage);
    }
  }
}

template <typename Op, typename Schema = typename Op::schema>
struct TypedOptimizer;

template <typename Op, typename... Args>
struct TypedOptimizer<Op, void(Args...)> {
  static void call(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpInfo& info = op_info(op);
    Lists lists;
    bool is_plain = true;  // all but the lists
    size_t a = 0;
    const auto look_at = [&](const auto& arg) {
      using Arg = std::decay_t<decltype(arg)>;
      if constexpr (std::is_same_v<Arg, at::TensorList>) lists.push_back({arg, info.args[a].written});
      if constexpr (std::is_same_v<Arg, at::Tensor>) is_plain &= !is_dtensor(arg);
      if constexpr (std::is_same_v<Arg, std::optional<at::Tensor>>) is_plain &= !arg || !is_dtensor(*arg);
      ++a;
    };
    (look_at(args), ...);
    // Before parameters are registered, which may communicate, as in DirectCall::begin().
    const bool is_seen = CallHook::watching() != nullptr || is_heard() || calls_are_decided_otherwise();
    if (!is_seen && is_plain) {
      note_parameters(info, lists);
      if (all_fit(lists)) return run(lists, args...);
    }
    boxed_kernel().call<void, Args...>(op, keys, std::forward<Args>(args)...);
  }

 private:
  static void run(const Lists& lists, Args... args) {
    const at::TensorList params = lists[0].tensors;
    const auto local_of = [&](const auto& arg, size_t r) -> decltype(auto) {
      if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, at::TensorList>) {
        return parts_of(arg, params, r);
      } else {
        return (arg);
      }
    };
    try {
      LocalGuard guard;
      for (size_t r = 0; r < meta_without_sync(params[0]).locals.size(); ++r) {
        if (has_elements(params, r)) Op::call(local_of(args, r)...);
      }
    } catch (...) {
      note_writes(lists);
      throw;
    }
    note_writes(lists);
  }
};

template <typename... Ops>
void add_kernels() {
  (register_typed_kernel(Ops::name, Ops::overload_name,
                         c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((TypedOptimizer<Ops>::call)))),
   ...);
}

}  // namespace

void register_typed_optimizers() {
  add_kernels<at::_ops::_fused_adam_, at::_ops::_fused_adam__tensor_lr, at::_ops::_fused_adamw_,
              at::_ops::_fused_adamw__tensor_lr, at::_ops::_fused_sgd_, at::_ops::_fused_sgd__tensor_lr,
              at::_ops::_fused_adagrad_>();
}

}  // namespace dtensor::internal
