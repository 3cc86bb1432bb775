#include "dtensor/dispatch/internal/typed_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/WrapDimMinimal.h>

#include <array>
#include <type_traits>
#include <utility>

#include "dtensor/dispatch/core_fallback.h"
#include "dtensor/dispatch/internal/direct_call.h"
#include "dtensor/dispatch/internal/part_handles.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/match_strides.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/typed_operators.h"

namespace dtensor::internal {
namespace {

// Each rank's part of the result is a view of its part, with the sizes that follow from the layout.
template <typename Op>
constexpr bool is_plain_view = std::is_same_v<Op, at::_ops::view> || std::is_same_v<Op, at::_ops::_unsafe_view>;
// Each rank's part of the result is its part with the dims in another order.
template <typename Op>
constexpr bool is_permutation = std::is_same_v<Op, at::_ops::t> || std::is_same_v<Op, at::_ops::transpose_int> ||
                                std::is_same_v<Op, at::_ops::permute>;
// Views whose sizes are an argument of the operator on the parts: each rank has its own.
template <typename Op>
constexpr bool takes_sizes = std::is_same_v<Op, at::_ops::expand>;
// The result has other handles of the parts of the tensor.
template <typename Op>
constexpr bool is_identity = std::is_same_v<Op, at::_ops::detach> || std::is_same_v<Op, at::_ops::alias>;

template <size_t kCount, typename... Args>
std::array<const at::Tensor*, kCount> tensors_of(const Args&... args) {
  std::array<const at::Tensor*, kCount> tensors;
  size_t n = 0;
  const auto take = [&](const auto& arg) {
    if constexpr (is_tensor<decltype(arg)>) tensors[n++] = &arg;
  };
  (take(args), ...);
  return tensors;
}

// The order of the dims of `self` that t(), transpose() and permute() give. REQUIRES: the arguments are valid.
Shape dim_order(const at::Tensor& self) {
  return self.dim() == 2 ? Shape{1, 0} : Shape(static_cast<size_t>(self.dim()), 0);  // fewer dims stay
}
Shape dim_order(const at::Tensor& self, int64_t a, int64_t b) {
  Shape order;
  for (int64_t d = 0; d < self.dim(); ++d) order.push_back(d);
  if (!order.empty()) std::swap(order[c10::maybe_wrap_dim(a, self.dim())], order[c10::maybe_wrap_dim(b, self.dim())]);
  return order;
}
Shape dim_order(const at::Tensor& self, c10::IntArrayRef dims) {
  Shape order(dims.begin(), dims.end());
  for (int64_t& d : order) d = c10::maybe_wrap_dim(d, self.dim());
  return order;
}

template <typename Op, typename Schema = typename Op::schema>
struct TypedKernel;

template <typename Op, typename Result, typename... Args>
struct TypedKernel<Op, Result(Args...)> {
  static constexpr size_t kTensors = (static_cast<size_t>(is_tensor<Args>) + ...);
  static constexpr bool kWrites = std::is_reference_v<Result>;

  [[gnu::hot]] static Result call(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpInfo& info = op_info(op);
    const auto tensors = tensors_of<kTensors>(args...);
    size_t count = kTensors;
    if constexpr (kTensors > 1) count -= is_wrapped_number(*tensors.back()) ? 1 : 0;
    DirectCall direct(info, {tensors.data(), count});
    if (direct.begin() && has_fitting_parts(*tensors[0])) {
      size_t i = 0;
      (direct.add(i++, args), ...);
      if (direct.find_decision()) return run(direct, args...);
    }
    return boxed_kernel().call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }

 private:
  static bool has_fitting_parts(const at::Tensor& self) {
    const RankTensors& locals = meta_without_sync(self).locals;
    if constexpr (is_plain_view<Op>) {
      return may_view_parts(locals);
    } else if constexpr (is_permutation<Op>) {
      return may_permute_parts(locals);
    } else if constexpr (takes_sizes<Op>) {
      return all_contiguous(locals);
    } else {
      return true;
    }
  }

  static Result run(DirectCall& direct, Args... args) {
    if constexpr (kWrites) {
      write(direct, args...);
      return std::get<0>(std::tie(args...));
    } else if constexpr (is_identity<Op>) {
      return direct.make_result(other_handles(meta_without_sync(args...).locals));
    } else if constexpr (is_plain_view<Op>) {
      return direct.make_result(view_parts(direct, args...));
    } else if constexpr (is_permutation<Op>) {
      return direct.make_result(permuted_parts(args...));
    } else {
      return direct.make_result(direct.compute([&](size_t r) { return run_on(direct, r, args...); }));
    }
  }

  template <typename... Sizes>
  static RankTensors view_parts(const DirectCall& direct, const at::Tensor& self, const Sizes&...) {
    const RankTensors& parts = meta_without_sync(self).locals;
    RankTensors views;
    views.reserve(parts.size());
    for (size_t r = 0; r < parts.size(); ++r) {
      const Shape sizes = direct.result_sizes(r);
      views.push_back(view_part(parts[r], {sizes.data(), sizes.size()}));
    }
    return views;
  }

  template <typename... Dims>
  static RankTensors permuted_parts(const at::Tensor& self, const Dims&... dims) {
    const Shape order = dim_order(self, dims...);
    const RankTensors& parts = meta_without_sync(self).locals;
    RankTensors views;
    views.reserve(parts.size());
    for (const at::Tensor& part : parts) views.push_back(permuted_part(part, {order.data(), order.size()}));
    return views;
  }

  static at::Tensor run_on(const DirectCall& direct, size_t r, Args... args) {
    if constexpr (takes_sizes<Op>) {
      const Shape sizes = direct.result_sizes(r);
      const auto local_size = [&](const auto& arg) -> decltype(auto) {
        if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, c10::SymIntArrayRef>) {
          return c10::fromIntArrayRefUnchecked({sizes.data(), sizes.size()});
        } else {
          return local_of(arg, r);
        }
      };
      return Op::call(local_size(args)...);
    } else {
      return Op::call(local_of(args, r)...);
    }
  }

  static void write(const DirectCall& direct, Args... args) {
    try {
      direct.run([&](size_t r) { Op::call(local_of(args, r)...); });
    } catch (...) {
      direct.note_write();
      throw;
    }
    direct.note_write();
  }
};

template <typename Op>
void add_kernel() {
  register_typed_kernel(Op::name, Op::overload_name,
                        c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((TypedKernel<Op>::call))));
}

template <typename... Ops>
void add_kernels(Operators<Ops...>) {
  (add_kernel<Ops>(), ...);
}

}  // namespace

void register_typed_kernels() {
  add_kernels(TypedComputations());
  add_kernels(TypedViews());
}

}  // namespace dtensor::internal
