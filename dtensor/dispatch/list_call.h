// A call of an operator on lists of tensors, such as _foreach_add_, as one call on the lists of their local tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "mesh/device_mesh.h"

namespace dtensor {
struct Decision;  // propagation/decision.h
}  // namespace dtensor

namespace dtensor::internal {

// A list of tensors without references to them, which cost much of the time of a call. Valid as long as they are.
class BorrowedTensors {
 public:
  BorrowedTensors() = default;
  BorrowedTensors(BorrowedTensors&&) = default;
  BorrowedTensors(const BorrowedTensors&) = delete;
  BorrowedTensors& operator=(BorrowedTensors&&) = delete;
  ~BorrowedTensors() {
    for (at::Tensor& t : tensors_) c10::MaybeOwnedTraits<at::Tensor>::destroyBorrow(t);
  }
  void reserve(size_t n) { tensors_.reserve(n); }
  // REQUIRES: within what reserve() has reserved.
  void add(const at::Tensor& t) { tensors_.push_back(c10::MaybeOwnedTraits<at::Tensor>::createBorrow(t)); }
  operator at::TensorList() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

// `op` is to be called once per owned rank, on the rank's local tensors. `element` computes one tensor of the lists: it
// takes the arguments of `op`, with one element in place of each list, and further ones have defaults; it writes to no
// other argument than its first tensor.
//
//   ListCall call(op, element);
//   for all arguments of `op`, in schema order: call.add(...);
//   if (call.decide()) return call.run([&](size_t rank) { ... });
//   // else `element` for one tensor of the lists after the other
class ListCall {
 public:
  ListCall(const OpInfo& op, const OpInfo& element) : op_(op), element_(element) {}

  // Tensors are valid as long as the caller's are.
  void add(at::TensorList list) { args_.push_back({.tensors = list.data(), .count = list.size()}); }
  void add(const at::Tensor& t) { args_.push_back({.tensors = &t}); }
  void add(c10::ArrayRef<at::Scalar> numbers);
  void add(const at::Scalar& number) { add(c10::IValue(number)); }
  void add(c10::IValue value) { args_.push_back({.value = std::move(value)}); }
  void add_values(c10::ArrayRef<c10::IValue> values) {
    args_.push_back({.values = values.vec(), .count = values.size()});
  }

  // Registers parameters among the arguments, as gather_inputs() does.
  void prepare_parameters() const;
  // False unless all calls of `element` are as those of typed kernels (internal/typed_kernels.h): their decisions are
  // cached, no tensor is plain, moves or is Partial, and no scope decides or limits the calls of this thread. Listeners
  // make no difference, as one rank may have some. Either way gives the same results, in the same layouts.
  bool decide();

  // REQUIRES for the others: decide() returned true.
  // `call_op` calls `op` on local rank r, and returns its results; none if it writes to its first list. Returns the
  // results of the whole call.
  std::vector<at::Tensor> run(const std::function<std::vector<at::Tensor>(size_t r)>& call_op) const;
  // Argument a on local rank r, a list or one tensor.
  BorrowedTensors local_list(size_t a, size_t r) const;
  const at::Tensor& local_tensor(size_t a, size_t r) const { return args_[a].parts[0][r]; }
  bool is_list(size_t a) const { return args_[a].count != kNoList; }

 private:
  static constexpr size_t kNoList = static_cast<size_t>(-1);
  using Tensors = absl::InlinedVector<const at::Tensor*, 4>;

  struct Argument {
    const at::Tensor* tensors = nullptr;  // null: a value
    c10::IValue value = {};
    std::vector<c10::IValue> values = {};  // of a list
    size_t count = kNoList;                // of a list: the same for all calls of `element` if it is none
    // By tensor, those of the local ranks: found once, as reading tensors again takes most of a call's time.
    std::vector<const at::Tensor*> parts = {};

    const at::Tensor& tensor(size_t n) const { return tensors[count == kNoList ? 0 : n]; }
    const c10::IValue& value_of(size_t n) const { return count == kNoList ? value : values[n]; }
  };

  bool read_arguments();
  Tensors tensors_of(size_t n) const;  // of the n-th call
  // Reads the tensors of argument a, the i-th argument that has some, into the members below. False: decide() returns
  // false.
  bool read_tensors(size_t a, size_t i);
  bool find_decisions();
  bool writes_one_memory_twice() const;
  void check_hooks() const;
  std::shared_ptr<const Decision> find_decision(size_t n);
  void note_writes() const;
  void report_works() const;
  const at::Tensor& first_tensor(size_t n) const { return args_[first_tensor_].tensor(n); }

  const OpInfo& op_;
  const OpInfo& element_;
  absl::InlinedVector<Argument, 5> args_;
  size_t count_ = 0;         // of calls of `element`
  size_t first_tensor_ = 0;  // the first argument that is a tensor of `element`
  bool writes_ = false;      // to that argument
  DeviceMesh mesh_;
  size_t num_tensors_ = 0;                             // of a call
  std::vector<uint64_t> words_;                        // what decisions depend on, a word per tensor, call by call
  bool has_module_traits_ = false;                     // of some tensor
  std::vector<LocalStorage*> firsts_;                  // the memory of the first tensor of each call
  std::vector<std::shared_ptr<const Decision>> kept_;  // keeps decisions_ alive
  std::vector<const Decision*> decisions_;             // by call of `element`
};

// The call on the stack: see ListCall. False, and nothing was done, if ListCall::decide() returns false.
bool run_on_local_lists(const OpInfo& op, const OpInfo& element, torch::jit::Stack& stack);

}  // namespace dtensor::internal
