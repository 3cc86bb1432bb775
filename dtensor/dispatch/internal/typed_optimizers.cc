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
#include "dtensor/tensor/each_rank.h"

namespace dtensor::internal {
namespace {

// A tensor's parts on the local ranks.
struct Parts {
  const at::Tensor* first = nullptr;
  LocalStorage* storage = nullptr;  // null: a plain tensor, which all ranks have

  const at::Tensor& on(size_t r) const { return storage != nullptr ? first[r] : *first; }
};

struct List {
  at::TensorList tensors;
  bool written = false;
  std::vector<Parts> parts = {};  // found once, as reading tensors again takes most of a call's time
};

// Those of a call, the parameters first.
using Lists = absl::InlinedVector<List, 6>;

// Whether the parts of `param` can be updated on `mesh`: it has elements of its own, and its parts are up to date.
bool is_ordinary(const DTensorMeta& param, const DeviceMesh& mesh) {
  return !needs_boxed_kernel(param) && !param.spec->has_partial() && param.spec->mesh() == mesh;
}

// Whether `t` needs no move next to `param`, whose layout it does not have: it is one number, which all ranks have.
bool is_number(const at::Tensor& t, const at::Tensor& param) {
  if (!t.defined() || t.numel() != 1 || t.sizes() == param.sizes()) return false;
  return !is_dtensor(t) || (spec_of(t)->is_replicated() && spec_of(t)->mesh() == spec_of(param)->mesh());
}

// Whether plain `t` lies where each local rank has its part of a parameter.
bool lies_beside(const at::Tensor& t, const Parts& param, size_t ranks) {
  for (size_t r = 0; r < ranks; ++r) {
    if (param.on(r).device() != t.device()) return false;
  }
  return true;
}

// Fills in the parts of `list`, and their layouts. False: not all of them can be updated without a move.
bool find_parameters(List& list, std::vector<const Spec*>& specs) {
  if (list.tensors.empty() || !is_dtensor(list.tensors[0])) return false;
  const DeviceMesh& mesh = spec_of(list.tensors[0])->mesh();
  list.parts.resize(list.tensors.size());
  specs.resize(list.tensors.size());
  for (size_t n = 0; n < specs.size(); ++n) {
    const at::Tensor& t = list.tensors[n];
    if (!is_dtensor(t)) return false;
    const DTensorMeta& meta = meta_without_sync(t);
    if (!is_ordinary(meta, mesh)) return false;
    list.parts[n] = {meta.locals.data(), meta.storage.get()};
    specs[n] = meta.spec.get();
  }
  return true;
}

size_t num_local_ranks(const List& params) { return meta_without_sync(params.tensors[0]).locals.size(); }

// The same for another list, which may be empty, beside `of_params` with these layouts.
bool find_parts(List& list, const List& of_params, const std::vector<const Spec*>& specs) {
  if (list.tensors.empty()) return true;
  const at::TensorList params = of_params.tensors;
  if (list.tensors.size() != params.size()) return false;
  list.parts.resize(params.size());
  for (size_t n = 0; n < params.size(); ++n) {
    const at::Tensor& t = list.tensors[n];
    if (is_dtensor(t)) {
      const DTensorMeta& meta = meta_without_sync(t);
      if (needs_boxed_kernel(meta) || (meta.spec.get() != specs[n] && !is_number(t, params[n]))) return false;
      list.parts[n] = {meta.locals.data(), meta.storage.get()};
    } else {
      if (!is_number(t, params[n]) || !lies_beside(t, of_params.parts[n], num_local_ranks(of_params))) return false;
      list.parts[n] = {&t, nullptr};
    }
  }
  return true;
}

bool find_parts(Lists& lists) {
  std::vector<const Spec*> specs;
  const auto fits = [&](List& list) { return find_parts(list, lists[0], specs); };
  return find_parameters(lists[0], specs) && std::all_of(lists.begin() + 1, lists.end(), fits);
}

void prepare_parameters(const OpInfo& info, const Lists& lists) {
  for (const List& list : lists) {
    for (const at::Tensor& t : list.tensors) {
      if (is_dtensor(t)) prepare_parameter(info, t);
    }
  }
}

// The numbers of the parameters that have elements on local rank r.
std::vector<size_t> with_elements(const List& params, size_t r) {
  std::vector<size_t> found;
  found.reserve(params.parts.size());
  for (size_t n = 0; n < params.parts.size(); ++n) {
    if (params.parts[n].on(r).numel() > 0) found.push_back(n);
  }
  return found;
}

// The parts on local rank r of those of `list`, which may be empty.
BorrowedTensors parts_of(const List& list, const std::vector<size_t>& numbers, size_t r) {
  BorrowedTensors parts;
  if (list.parts.empty()) return parts;
  parts.reserve(numbers.size());
  for (const size_t n : numbers) parts.add(list.parts[n].on(r));
  return parts;
}

// Those of the first local rank.
int64_t num_elements_to_read(const Lists& lists) {
  int64_t num = 0;
  for (const List& list : lists) {
    for (const Parts& parts : list.parts) num += num_cpu_elements(parts.on(0));
  }
  return num;
}

void note_writes(const Lists& lists) {
  for (const List& list : lists) {
    if (!list.written) continue;
    for (const Parts& parts : list.parts) {
      if (parts.storage != nullptr) mark_written(*parts.storage);
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
    absl::InlinedVector<const at::Tensor*, 3> numbers;
    size_t a = 0;
    const auto look_at = [&](const auto& arg) {
      using Arg = std::decay_t<decltype(arg)>;
      if constexpr (std::is_same_v<Arg, at::TensorList>) lists.push_back({arg, info.args[a].written});
      if constexpr (std::is_same_v<Arg, at::Tensor>) {
        is_plain &= !is_dtensor(arg);
        if (!arg.is_cpu()) numbers.push_back(&arg);  // a learning rate, which kernels take from host memory, too
      }
      if constexpr (std::is_same_v<Arg, std::optional<at::Tensor>>) {
        is_plain &= !arg || !is_dtensor(*arg);
        if (arg && arg->defined()) numbers.push_back(&*arg);
      }
      ++a;
    };
    (look_at(args), ...);
    // Before parameters are registered, which may communicate, as in DirectCall::begin().
    const bool is_seen = CallHook::watching() != nullptr || has_listeners() || calls_are_decided_otherwise();
    if (!is_seen && is_plain) {
      prepare_parameters(info, lists);
      const auto lies_there = [&](const at::Tensor* t) {
        return std::all_of(lists[0].parts.begin(), lists[0].parts.end(),
                           [&](const Parts& param) { return lies_beside(*t, param, num_local_ranks(lists[0])); });
      };
      if (find_parts(lists) && std::all_of(numbers.begin(), numbers.end(), lies_there)) return run(lists, args...);
    }
    boxed_kernel().call<void, Args...>(op, keys, std::forward<Args>(args)...);
  }

 private:
  static void run(const Lists& lists, Args... args) {
    try {
      LocalGuard guard;
      run_on_each_rank(
          num_local_ranks(lists[0]), [&] { return num_elements_to_read(lists); },
          [&](size_t r) {
            const std::vector<size_t> numbers = with_elements(lists[0], r);
            if (!numbers.empty()) run_on(r, lists, numbers, std::make_index_sequence<sizeof...(Args)>(), args...);
          });
    } catch (...) {
      note_writes(lists);
      throw;
    }
    note_writes(lists);
  }

  template <size_t... kIndices>
  static void run_on(size_t r, const Lists& lists, const std::vector<size_t>& numbers, std::index_sequence<kIndices...>,
                     Args... args) {
    // The lists come first among the arguments.
    const auto local_of = [&](size_t a, const auto& arg) -> decltype(auto) {
      if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, at::TensorList>) {
        return parts_of(lists[a], numbers, r);
      } else {
        return (arg);
      }
    };
    Op::call(local_of(kIndices, args)...);
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
