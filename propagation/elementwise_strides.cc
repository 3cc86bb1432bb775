#include "propagation/elementwise_strides.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "propagation/trial_run.h"

namespace dtensor {
namespace {

at::Tensor without_data(const Spec& spec) {
  at::Tensor result =
      at::empty_strided(spec.sizes(), spec.strides(), at::TensorOptions(spec.dtype()).device(c10::DeviceType::Meta));
  if (spec.meta().wrapped_number) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

// The dtype that the loops compute in, for a result of that dtype.
c10::ScalarType computed_dtype(const OpCall& call, c10::ScalarType result) {
  const StandInGuard guard;
  at::native::ResultTypeState state;
  for (const auto& input : call.inputs) {
    if (input) state = at::native::update_result_type_state(without_data(*input), state);
  }
  const c10::ScalarType common = at::native::result_type(state);
  return c10::isIntegralType(common, /*includeBool=*/true) && !c10::isIntegralType(result, true) ? result : common;
}

}  // namespace

Shape elementwise_strides(const OpCall& call) {
  const StandInGuard guard;
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .declare_static_dtype_and_device(at::kByte, c10::DeviceType::Meta)
      .add_owned_output(at::Tensor());
  for (const auto& input : call.inputs) {
    if (input) config.add_owned_const_input(without_data(*input));
  }
  const auto iterator = config.build();
  const at::IntArrayRef strides = iterator.output().strides();
  return Shape(strides.begin(), strides.end());
}

void take_strides_of_converted(const OpCall& call, OutputMetas& metas) {
  const auto sparse = [](const SpecPtr& input) { return input && !is_dense(input->meta()); };
  if (metas.tensors.empty() || !metas.tensors[0] || std::none_of(call.inputs.begin(), call.inputs.end(), sparse))
    return;
  if (call.mesh.world().device_type() != c10::DeviceType::CPU) return;
  if (call.has_arg("mask") || call.has_arg("condition")) return;  // the others are computed in their dtype
  const c10::ScalarType common = computed_dtype(call, metas.tensors[0]->dtype);
  OpCall converted = call;
  bool any = false;
  for (SpecPtr& input : converted.inputs) {
    if (!sparse(input) || input->dtype() == common) continue;
    input = Spec::get(call.mesh, Placements(call.mesh.ndim(), Replicate()), in_own_memory(input->meta()));
    any = true;
  }
  if (!any) return;
  const Shape strides = elementwise_strides(converted);
  for (auto& tensor : metas.tensors) {
    if (tensor) tensor->strides = strides;
  }
}

}  // namespace dtensor
