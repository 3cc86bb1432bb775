#include "ops/support/plain_numbers.h"

#include <c10/util/Exception.h>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

at::Tensor plain_numbers(const at::Tensor& t, const c10::OperatorHandle& op, const std::string& argument) {
  if (!is_dtensor(t)) return t;
  const Spec& spec = *spec_of(t);
  TORCH_CHECK_NOT_IMPLEMENTED(!meta_without_sync(t).locals.empty(), op.operator_name(),
                              ": needs the numbers in argument '", argument, "', ", spec.to_string(),
                              ", which are not known to this process: it owns no rank of the mesh");
  const at::Tensor whole =
      redistribute_below_autograd(t.detach(), Placements(spec.mesh().ndim(), Replicate()), call_cause(op, argument, t));
  LocalGuard guard;
  return meta_for_read(whole).locals.front().cpu();
}

}  // namespace dtensor::internal
