// Which call of a group moved a tensor last. Ranks compare that, too: one that moves a tensor again, of which the
// others remember what it became, makes a call that looks like the others' next one.
//
// Depends on the calls of the group alone, so that it is the same on all ranks, whatever else they do with the tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace dtensor::internal {

class MovedTensors {
 public:
  // Call `call` moves a distributed tensor whose part of this rank is `part`; undefined: it is not known which. Returns
  // the call that moved it before; 0: none after call - kCalls did, or it is not known. Keeps no memory of tensors.
  // REQUIRES: `call` grows by 1 from 1.
  int64_t move(int64_t call, const at::Tensor& part);

  static constexpr int64_t kCalls = 1024;

 private:
  using WeakPart = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Moved {
    WeakPart part;  // no other tensor gets its address while this is here
    int64_t call;
  };
  absl::flat_hash_map<const c10::TensorImpl*, Moved> last_;
  std::array<const c10::TensorImpl*, kCalls> of_calls_{};  // tensors moved by the last calls; null: not known
};

}  // namespace dtensor::internal
