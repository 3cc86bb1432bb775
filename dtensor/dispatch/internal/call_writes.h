// What a call writes to, and what has to be done around that.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

class CallWrites {
 public:
  // Valid as long as `info`.
  CallWrites(const OpInfo& info, const Inputs& in);

  // Before the call. Errors: those of observers of the memory.
  void check() const;
  // Whether the call writes to a copied view and to its base, or to two views of one base. Its result for one would not
  // be visible in the other.
  bool are_related() const;
  // After the call: counts the writes and calls the observers, which may communicate.
  void note() const;
  // After an error, when some ranks may have written: nothing derived from these tensors before is valid any more.
  void note_failed() const;

 private:
  const std::string& op_;
  absl::InlinedVector<at::Tensor, 6> tensors_;
};

}  // namespace dtensor::internal
