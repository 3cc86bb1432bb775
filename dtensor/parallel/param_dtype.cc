#include "dtensor/parallel/param_dtype.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/parallel/program_call.h"
#include "dtensor/tensor/autocast.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// The traits of a parameter with a group or a param_dtype, or of one that `t` is a view of, be it a view with copied
// parts, or, of a group, was cast from; null: it is none.
const ModuleTraits* traits_of_parameter(const at::TensorBase& t) {
  const ModuleTraits* traits = memory_viewed_by(t)->parameter->traits.get();
  return traits != nullptr && (traits->group || traits->mixed_precision.param_dtype) ? traits : nullptr;
}

// nullopt: it has none, and the tensor is used as it is.
std::optional<c10::ScalarType> param_dtype_of(const at::TensorBase& t) {
  if (!is_dtensor(t) || !c10::isFloatingType(spec_of(t)->dtype())) return std::nullopt;
  const ModuleTraits* traits = traits_of_parameter(t);
  return traits == nullptr || traits->cast_of ? std::nullopt : traits->mixed_precision.param_dtype;
}

bool has_running_statistics(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& a) { return a.name() == "running_mean"; });
}

}  // namespace

bool has_param_dtype(const at::TensorBase& t) { return param_dtype_of(t).has_value(); }

void cast_to_param_dtype(const c10::OperatorHandle& op, bool is_view, torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> args(stack.data() + stack.size() - count, count);
  std::optional<c10::ScalarType> dtype;
  bool computes_with_others = false;
  for_each_dtensor(torch::jit::last(stack, count), [&](const at::Tensor& t) {
    if (!dtype && t.dim() > 0) dtype = param_dtype_of(t);
    if (t.dim() > 0 && traits_of_parameter(t) == nullptr) computes_with_others = true;
  });
  if (!dtype || !computes_with_others || !is_programs_call() || !computes(op, is_view) || has_running_statistics(op) ||
      updates_one_shape(op, torch::jit::last(stack, count)))
    return;
  std::vector<at::Tensor> floating;
  for_each_dtensor(torch::jit::last(stack, count), [&](const at::Tensor& t) {
    if (t.dim() > 0 && c10::isFloatingType(t.scalar_type())) floating.push_back(t);
  });
  if (is_autocast_on(floating.front())) return;
  for (const at::Tensor& t : floating) {
    if (t.scalar_type() != *dtype) replace_tensor(args, t, t.to(*dtype));
  }
}

}  // namespace dtensor::internal
