// Intercepts every call of an operator on this thread, above autograd: those of a program, those inside composites, and
// those of backward.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace dtensor::fuzz {

// Called with the arguments, before the call; a returned function is called with the results. Operators called by the
// interceptor are not intercepted, and not differentiated.
using AfterCall = std::function<void(const torch::jit::Stack& results)>;
using BeforeCall = std::function<AfterCall(const c10::OperatorHandle& op, const torch::jit::Stack& arguments)>;

class Interception {
 public:
  explicit Interception(BeforeCall before);
  ~Interception();
  Interception(const Interception&) = delete;

 private:
  BeforeCall before_;
  const BeforeCall* outer_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace dtensor::fuzz
