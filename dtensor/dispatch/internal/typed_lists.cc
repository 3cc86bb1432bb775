// Typed kernels (typed_kernels.h) of the operators on lists that optimizers call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_sub_ops.h>

#include <type_traits>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/core_fallback.h"
#include "dtensor/dispatch/internal/direct_call.h"
#include "dtensor/dispatch/internal/typed_kernels.h"
#include "dtensor/dispatch/list_call.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/typed_operators.h"

namespace dtensor::internal {
namespace {

// An operator, and the one for one tensor of the lists.
template <typename Op, typename Element, typename Schema = typename Op::schema>
struct TypedList;

template <typename Op, typename Element, typename Result, typename... Args>
struct TypedList<Op, Element, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpInfo &info = op_info(op), &element = op_info(c10::Dispatcher::singleton().findSchemaOrThrow(
                                                 Element::name, Element::overload_name));
    // Before parameters are registered, which may communicate, as in DirectCall::begin().
    const bool is_watched = std::is_void_v<Result> && CallHook::watching() != nullptr;
    if (!is_watched && !has_listeners()) {
      ListCall call(info, element);
      (call.add(args), ...);
      call.prepare_parameters();
      if (call.decide()) return run(call, std::index_sequence_for<Args...>(), args...);
    }
    return boxed_kernel().call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }

 private:
  template <size_t... kIndices>
  static Result run(const ListCall& call, std::index_sequence<kIndices...>, Args... args) {
    if constexpr (std::is_void_v<Result>) {
      call.run([&](size_t r) {
        Op::call(local_of(call, kIndices, r, args)...);
        return std::vector<at::Tensor>();
      });
    } else {
      return call.run([&](size_t r) { return Op::call(local_of(call, kIndices, r, args)...); });
    }
  }

  static BorrowedTensors local_of(const ListCall& call, size_t a, size_t r, at::TensorList) {
    return call.local_list(a, r);
  }
  static const at::Tensor& local_of(const ListCall& call, size_t a, size_t r, const at::Tensor&) {
    return call.local_tensor(a, r);
  }
  template <typename T>
  static const T& local_of(const ListCall&, size_t, size_t, const T& value) {
    return value;
  }
};

template <typename Op, typename Element>
void add_kernel() {
  register_typed_kernel(Op::name, Op::overload_name,
                        c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((TypedList<Op, Element>::call))));
}

}  // namespace

void register_typed_lists() {
  add_kernel<at::_ops::_foreach_add__Scalar, at::_ops::add__Scalar>();
  add_kernel<at::_ops::_foreach_add__List, at::_ops::add__Tensor>();
  add_kernel<at::_ops::_foreach_sub__List, at::_ops::sub__Tensor>();
  add_kernel<at::_ops::_foreach_mul__Scalar, at::_ops::mul__Scalar>();
  add_kernel<at::_ops::_foreach_mul__List, at::_ops::mul__Tensor>();
  add_kernel<at::_ops::_foreach_mul__Tensor, at::_ops::mul__Tensor>();
  add_kernel<at::_ops::_foreach_div__Scalar, at::_ops::div__Scalar>();
  add_kernel<at::_ops::_foreach_div__ScalarList, at::_ops::div__Scalar>();
  add_kernel<at::_ops::_foreach_div__List, at::_ops::div__Tensor>();
  add_kernel<at::_ops::_foreach_lerp__Scalar, at::_ops::lerp__Scalar>();
  add_kernel<at::_ops::_foreach_addcmul__Scalar, at::_ops::addcmul_>();
  add_kernel<at::_ops::_foreach_addcdiv__Scalar, at::_ops::addcdiv_>();
  add_kernel<at::_ops::_foreach_addcdiv__ScalarList, at::_ops::addcdiv_>();
  add_kernel<at::_ops::_foreach_sqrt, at::_ops::sqrt>();
}

}  // namespace dtensor::internal
