// What a call writes to, and what has to be done around that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

//   CallWrites writes(info, in);  // before anything communicates
//   writes.begin();
//   // the local operators, on all ranks
//   writes.done();
//
// If it ends between begin() and done(), some ranks may have written: nothing derived from these tensors before is
// valid any more.
class CallWrites {
 public:
  // Valid as long as `info`. Errors: those of observers of the memory.
  CallWrites(const OpInfo& info, const Inputs& in);
  ~CallWrites();
  CallWrites(const CallWrites&) = delete;
  CallWrites& operator=(const CallWrites&) = delete;

  // Whether the call writes to a copied view and to its base, or to two views of one base. Its result for one would not
  // be visible in the other. False if no memory has an observer.
  bool are_related() const;
  void begin() { begun_ = true; }
  // Counts the writes and calls the observers, which may communicate.
  void done();

 private:
  const OpInfo& info_;
  absl::InlinedVector<at::Tensor, 6> tensors_;
  bool begun_ = false;
};

// Runs a call whose writes are related, like ATen's fallback for lists: one tensor after the other. Error
// (NotImplementedError): the operator is not one on lists.
void run_one_by_one(const OpInfo& info, torch::jit::Stack& stack);

}  // namespace dtensor::internal
