#include "dtensor/dispatch/inner_calls.h"

namespace dtensor::internal {

void count_as_given() { ++inner_calls.continued; }

void count_otherwise() { ++inner_calls.otherwise; }

void run_composite_code(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  count_as_given();
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
}

}  // namespace dtensor::internal
