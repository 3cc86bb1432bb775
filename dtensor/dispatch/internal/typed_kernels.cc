#include "dtensor/dispatch/internal/typed_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/core_fallback.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/part_handles.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/typed_operators.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {

bool calls_are_decided_otherwise() {
  if (c10::ThreadLocalDebugInfo::current() == nullptr) return false;
  const DispatchScope& scope = current_dispatch_scope();
  return scope.step_decider != nullptr || scope.hints.limits.any();
}

bool is_heard() { return c10::ThreadLocalDebugInfo::current() != nullptr && !current_scope().listeners.empty(); }

namespace {

// ------------------------------------------------------------ a call without a stack

// A call that can be computed without a stack: its decision is cached, no input moves, and nothing observes or decides
// the calls of this thread.
//
//   DirectCall call(info, tensors);
//   if (call.begin()) {
//     for all arguments, in schema order: call.add(...);
//     if (call.find_decision()) return call.make_result(locals);
//   }
//   // else the boxed kernel
class DirectCall {
 public:
  // `tensors`: all of the call, in schema order. Valid as long as both.
  DirectCall(const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors) : info_(info), tensors_(tensors) {}

  // False: the call needs the boxed kernel. Registers parameters, as gather_inputs() does.
  bool begin();
  void add(size_t, const at::Tensor& t) { key_.push_back(spec_of(t)->id()); }
  void add(size_t i, const at::Scalar& number) { append_number(key_, *resolved_, i, number); }
  void add(size_t i, c10::IntArrayRef ints);
  void add(size_t i, c10::SymIntArrayRef ints);
  void add(size_t i, at::OptionalIntArrayRef ints);
  template <typename T>
  void add(size_t i, const T& value) {
    add_value(i, c10::IValue(value));
  }
  // False: there is none, and the call needs the boxed kernel. REQUIRES: all arguments were added.
  bool find_decision();

  // REQUIRES for the others: find_decision() returned true.
  size_t num_ranks() const { return meta_without_sync(*tensors_[0]).locals.size(); }  // that this process owns
  Shape result_sizes(size_t r) const { return result_->local_shape(static_cast<int64_t>(r)); }
  at::Tensor make_result(RankTensors&& locals);  // call it last
  void note_write() const;                       // after the operator wrote to the first tensor, or threw

 private:
  void add_value(size_t i, const c10::IValue& value);
  bool has_ordinary_tensors() const;
  void add_context(bool scoped);

  const OpInfo& info_;
  const c10::ArrayRef<const at::Tensor*> tensors_;
  const OpInfo::Resolved* resolved_ = nullptr;
  CacheKey key_;
  SpecPtr result_;  // of the decision
};

bool DirectCall::has_ordinary_tensors() const {
  const DeviceMesh& mesh = spec_of(*tensors_[0])->mesh();
  for (const at::Tensor* t : tensors_) {
    const DTensorMeta& meta = meta_without_sync(*t);
    if (is_special(meta) || meta.storage->module_traits || meta.spec->mesh() != mesh) return false;
  }
  return true;
}

void DirectCall::add_context(bool scoped) {
  const bool changes_layout = info_.args[0].written && has_own_mutable_layout(tensors_);
  begin_key(key_, *resolved_);
  if (!changes_layout && !scoped && has_no_hints(info_, tensors_)) return CallContext::append_none_to_key(key_);
  CallContext context;
  if (changes_layout) context.mutable_layouts.push_back(0);
  note_context(info_, tensors_, context);
  context.append_to_key(key_);
}

bool DirectCall::begin() {
  resolved_ = &info_.resolve();
  if (!resolved_->rule) return false;
  const bool scoped = c10::ThreadLocalDebugInfo::current() != nullptr;
  if (scoped && (calls_are_decided_otherwise() || is_heard())) return false;
  for (const at::Tensor* t : tensors_) {
    if (!is_dtensor(*t)) return false;
  }
  // Before parameters are registered, which may communicate: an observed rank calls the hook first, too.
  if (info_.args[0].written && CallHook::watching() != nullptr) return false;
  for (const at::Tensor* t : tensors_) note_parameter(info_, *t);
  if (!has_ordinary_tensors()) return false;
  if (resolved_->rule->uses_gradient_target && in_backward()) return false;
  add_context(scoped);
  return true;
}

void DirectCall::add_value(size_t i, const c10::IValue& value) { append_argument(key_, *resolved_, i, value); }

void DirectCall::add(size_t i, c10::IntArrayRef ints) {
  if (resolved_->value_free[i]) return add_value(i, c10::IValue(ints));
  append_ints(key_, ints);
}

void DirectCall::add(size_t i, c10::SymIntArrayRef ints) {
  const auto known = c10::asIntArrayRefSlowOpt(ints);
  if (!known) return add_value(i, c10::IValue(ints));
  add(i, *known);
}

void DirectCall::add(size_t i, at::OptionalIntArrayRef ints) {
  if (!ints) return add_value(i, c10::IValue());
  add(i, *ints);
}

bool DirectCall::find_decision() {
  result_ = strategy_cache(spec_of(*tensors_[0])->mesh().world()).find_direct_result(key_);
  return result_ != nullptr;
}

at::Tensor DirectCall::make_result(RankTensors&& locals) {
  const at::Tensor& input = *tensors_[0];
  if (!info_.is_view) return make_result_of(input, std::move(result_), std::move(locals));
  set_base_of_views(input);
  return make_view(std::move(result_), std::move(locals), input, input.storage_offset());
}

void DirectCall::note_write() const { mark_written(*meta_without_sync(*tensors_[0]).storage); }

// ------------------------------------------------------------ the kernels

template <typename T>
constexpr bool is_tensor = std::is_same_v<std::decay_t<T>, at::Tensor>;
// Each rank's part of the result is a view of its part, with the sizes that follow from the layout.
template <typename Op>
constexpr bool is_plain_view = std::is_same_v<Op, at::_ops::view>;
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

bool all_contiguous(const RankTensors& locals) {
  for (const at::Tensor& local : locals) {
    if (!local.is_contiguous()) return false;
  }
  return true;
}

// An argument of the operator on local rank r.
inline at::Tensor& local_of(const at::Tensor& t, size_t r) {
  return const_cast<at::Tensor&>(meta_without_sync(t).locals[r]);  // operators that write to it keep the handle
}
template <typename T>
const T& local_of(const T& value, size_t) {
  return value;
}

template <typename Op, typename Schema = typename Op::schema>
struct TypedKernel;

template <typename Op, typename Result, typename... Args>
struct TypedKernel<Op, Result(Args...)> {
  static constexpr size_t kTensors = (static_cast<size_t>(is_tensor<Args>) + ...);
  static constexpr bool kWrites = std::is_reference_v<Result>;

  static Result call(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const OpInfo& info = op_info(op);
    const auto tensors = tensors_of<kTensors>(args...);
    DirectCall direct(info, tensors);
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
    } else {
      RankTensors locals;
      locals.reserve(direct.num_ranks());
      {
        LocalGuard guard;
        for (size_t r = 0; r < direct.num_ranks(); ++r) locals.push_back(run_on(direct, r, args...));
      }
      return direct.make_result(std::move(locals));
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
      LocalGuard guard;
      for (size_t r = 0; r < direct.num_ranks(); ++r) Op::call(local_of(args, r)...);
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
