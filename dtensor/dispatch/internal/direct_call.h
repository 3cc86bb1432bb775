// A call that can be computed without a stack: its decision is cached, no input moves, and nothing observes or decides
// the calls of this thread.
//
//   DirectCall call(info, tensors);
//   if (call.begin()) {
//     for all arguments, in schema order: call.add(...);
//     if (call.find_decision()) return call.make_result(locals);
//   }
//   // else the boxed kernel
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/ArrayRef.h>

#include <memory>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "propagation/decision.h"

namespace dtensor::internal {

// Whether a scope of this thread decides its calls one by one, or limits the memory of their redistributions.
bool calls_are_decided_otherwise();
// Whether a tensor has what few have: parts to bring up to date, an observer, a layout that is preferred.
inline bool is_special(const DTensorMeta& meta) {
  return (int{meta.may_need_sync} | int{meta.hints.any()} | int{meta.storage->observer != nullptr}) != 0;
}

class DirectCall {
 public:
  // `tensors`: all of the call, in schema order. Valid as long as both.
  DirectCall(const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors) : info_(info), tensors_(tensors) {}

  // False: the call needs the boxed kernel. Registers parameters, as gather_inputs() does.
  bool begin();
  void add(size_t, const at::Tensor& t) { key_.push_back(spec_of(t)->id()); }
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
  Shape result_sizes(size_t r) const { return decision_->outputs[0]->local_shape(static_cast<int64_t>(r)); }
  at::Tensor make_result(RankTensors locals) const;
  void note_write() const;         // after the operator wrote to the first tensor
  void note_failed_write() const;  // where it threw

 private:
  void add_value(size_t i, const c10::IValue& value);
  void note_mutable_layout(CallContext& context) const;

  const OpInfo& info_;
  const c10::ArrayRef<const at::Tensor*> tensors_;
  const OpInfo::Resolved* resolved_ = nullptr;
  CacheKey key_;
  std::shared_ptr<const Decision> decision_;
};

}  // namespace dtensor::internal
