// A call of an operator that is computed without a stack: nothing observes or decides the calls of this thread, no
// tensor has what few have, and the strategy cache has the layout of the result, for inputs that stay where they are.
//
//   DirectCall call(info, tensors);
//   if (call.begin()) {                // or begin_composite()
//     for all arguments, in schema order: call.add(...);
//     if (call.find_decision()) return call.make_result(locals);
//   }
//   // else the boxed kernel
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/each_rank.h"
#include "dtensor/tensor/representation.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {

// Whether a scope of this thread decides its calls one by one, or limits the memory of their redistributions.
bool calls_are_decided_otherwise();
// Whether calls with a tensor need the boxed kernel, since it has what few have: parts to bring up to date, hints, an
// observer.
inline bool needs_boxed_kernel(const DTensorMeta& meta) {
  return (int{meta.may_need_sync} | int{meta.hints.any()} | int{meta.storage->observer != nullptr}) != 0;
}

class DirectCall {
 public:
  // `tensors`: all of the call that are defined, in schema order, but for a wrapped number at the end. Valid as long as
  // both.
  DirectCall(const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors)
      : info_(info), tensors_(tensors), key_(info) {}

  // For an operator at kDTensorKey. False: the call needs the boxed kernel. Registers parameters, as gather_inputs()
  // does.
  bool begin();
  // The same for a composite operator at kAboveAutogradKey, for a call that autograd does not record. `keys`: of the
  // call. Whether the call follows styles of parameters is not asked.
  bool begin_composite(c10::DispatchKeySet keys);
  void add(size_t, const at::Tensor& t) { is_dtensor(t) ? key_.words.push_back(spec_of(t)->id()) : add_number(t); }
  void add(size_t, const std::optional<at::Tensor>& t) {
    key_.words.push_back(t && t->defined() ? spec_of(*t)->id() : 0);
  }
  void add(size_t i, at::TensorList list);
  void add(size_t i, const at::Scalar& number) { key_.add(i, number); }
  void add(size_t i, c10::IntArrayRef ints) { key_.add(i, ints); }
  void add(size_t i, c10::SymIntArrayRef ints);
  void add(size_t i, at::OptionalIntArrayRef ints);
  template <typename T>
  void add(size_t i, const T& value) {
    key_.add(i, c10::IValue(value));
  }
  // False: there is none, and the call needs the boxed kernel. REQUIRES: all arguments were added.
  bool find_decision();
  // Of all arguments.
  const CacheKey& key() const { return key_.words; }

  // REQUIRES for the others: find_decision() returned true.
  size_t num_ranks() const { return meta_without_sync(*tensors_[0]).locals.size(); }  // that this process owns
  Shape result_sizes(size_t r) const { return result_.spec->local_shape(static_cast<int64_t>(r)); }
  // f(r), the operator on local rank r, on plain tensors: its results, or for an operator that writes none.
  template <typename F>
  RankTensors compute(const F& f) const {
    const LocalGuard guard;
    return compute_on_each_rank(
        num_ranks(), [this] { return num_elements_to_read(); }, [&](size_t r) { return named(f, r); });
  }
  template <typename F>
  void run(const F& f) const {
    const LocalGuard guard;
    run_on_each_rank(
        num_ranks(), [this] { return num_elements_to_read(); }, [&](size_t r) { named(f, r); });
  }
  at::Tensor make_result(RankTensors&& locals);  // call it last
  void note_write() const;                       // after the operator wrote to the first tensor, or threw

 private:
  // f(r), whose error names the call.
  template <typename F>
  auto named(const F& f, size_t r) const {
    try {
      return f(r);
    } catch (c10::Error& e) {
      add_context(e, r);
      throw;
    }
  }
  void add_context(c10::Error& e, size_t r) const;
  int64_t num_elements_to_read() const;  // by the first local rank
  // Appends the hints of the call to its key. False: it needs the boxed kernel, as a tensor has what few have, or they
  // are on several meshes.
  bool add_hints_if_ordinary(bool scoped);
  void add_number(const at::Tensor& number);

  const OpInfo& info_;
  const c10::ArrayRef<const at::Tensor*> tensors_;
  bool has_number_ = false;
  DirectResult result_;  // of the decision
  CallKey key_;          // last: it is large, and the offsets of other members take less code
};

// An argument of the operator on local rank r.
inline at::Tensor& local_of(const at::Tensor& t, size_t r) {
  // Operators that write to it keep the handle. A number is every rank's.
  return const_cast<at::Tensor&>(is_dtensor(t) ? meta_without_sync(t).locals[r] : t);
}
inline std::optional<at::Tensor> local_of(const std::optional<at::Tensor>& t, size_t r) {
  return t && t->defined() ? std::optional(meta_without_sync(*t).locals[r]) : t;
}
inline std::vector<at::Tensor> local_of(at::TensorList list, size_t r) {
  std::vector<at::Tensor> locals;
  locals.reserve(list.size());
  for (const at::Tensor& t : list) locals.push_back(meta_without_sync(t).locals[r]);
  return locals;
}
template <typename T>
const T& local_of(const T& value, size_t) {
  return value;
}

template <typename T>
constexpr bool is_tensor = std::is_same_v<std::decay_t<T>, at::Tensor>;

}  // namespace dtensor::internal
