#include "ops/halo/reduced_argument.h"

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "placement/placement.h"

namespace dtensor::internal {
namespace {

bool may_pass(const Placements& placements, Passing passing) {
  if (passing == Passing::kAll) return true;
  if (passing == Passing::kLinear) return !has_nonlinear_partial(placements);
  return placements == without_partials(placements);
}

}  // namespace

at::Tensor reduced_argument(const c10::OperatorHandle& op, Arguments& args, const char* name, Passing passing) {
  const at::Tensor t = args.tensor(name);
  const Placements& given = spec_of(t)->placements();
  if (may_pass(given, passing)) return t;
  const at::Tensor reduced = redistribute_below_autograd(t, without_partials(given), call_cause(op, name, t));
  args.set(name, reduced);
  return reduced;
}

}  // namespace dtensor::internal
