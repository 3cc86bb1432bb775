// Global metadata of an operator's outputs, without data.
#include "propagation/shape_inference.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "propagation/functional_form.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {

// ------------------------------------------------------------ elementwise operators

namespace {

Shape broadcast_shape(const OpCall& call) {
  Shape result;
  for (const auto& input : call.inputs) {
    if (!input) continue;
    const Shape& sizes = input->sizes();
    if (sizes.size() > result.size()) result.insert(result.begin(), sizes.size() - result.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& size = result[d + result.size() - sizes.size()];
      TORCH_CHECK(size == sizes[d] || size == 1 || sizes[d] == 1, call.name(), ": the sizes ", size, " and ", sizes[d],
                  " of dim ", d + result.size() - sizes.size(), " do not broadcast, in ", call.to_string());
      if (sizes[d] != 1) size = sizes[d];
    }
  }
  return result;
}

// The dtype that the loops compute in, for a result of that dtype.
c10::ScalarType computed_dtype(const OpCall& call, c10::ScalarType result) {
  const StandInGuard guard;
  at::native::ResultTypeState state;
  for (const auto& input : call.inputs) {
    if (input) state = at::native::update_result_type_state(meta_tensor(*input), state);
  }
  const c10::ScalarType common = at::native::result_type(state);
  return c10::isIntegralType(common, /*includeBool=*/true) && !c10::isIntegralType(result, true) ? result : common;
}

// On a CPU, ATen's elementwise loops first convert inputs of another dtype than they compute in, to memory of their
// own. Sets the strides of `metas` if that makes a difference.
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

// Row-major results of one shape; their dtypes are not known.
OutputMetas metas_of_shape(const OpCall& call, const Shape& shape) {
  const size_t n = call.schema().returns().size();
  return {{n, TensorMeta{shape, row_major_strides(shape)}}, std::vector<int>(n, -1), {}};
}

OutputMetas run_on_one_element(const OpCall& call, const Shape& shape) {
  // If nothing is computed the numbers cannot be invalid (ZeroDivisionError).
  const int64_t size = std::count(shape.begin(), shape.end(), 0) > 0 ? 0 : 1;
  return trial_run(call, c10::DeviceType::CPU, [&](int i) { return tensor_of_ones(*call.inputs[i], size); });
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
    if (input) config.add_owned_const_input(meta_tensor(*input));
  }
  const auto iterator = config.build();
  const at::IntArrayRef strides = iterator.output().strides();
  return Shape(strides.begin(), strides.end());
}

OutputMetas infer_elementwise(const OpCall& call) {
  const Shape shape = broadcast_shape(call.without_outs());
  if (has_outs(call.schema())) return metas_of_shape(call, shape);  // their dtypes are those of the out= arguments
  OutputMetas result = run_on_one_element(call, shape);
  const Shape strides = elementwise_strides(call);
  for (auto& tensor : result.tensors) {
    if (!tensor) continue;
    tensor->sizes = shape;
    tensor->strides = strides;
  }
  take_strides_of_converted(call, result);
  return result;
}

// ------------------------------------------------------------ all operators

namespace {

bool is_pointwise(const OpCall& call) {
  if (call.op.hasTag(at::Tag::pointwise)) return true;
  const auto& [name, overload] = call.op.operator_name();
  if (name.size() < 2 || name.back() != '_' || name[name.size() - 2] == '_') return false;
  auto functional = c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), overload});
  return functional && functional->hasTag(at::Tag::pointwise);
}

// The results of an elementwise operator on row-major tensors are row-major. So are those of other tensors, but not of
// each operator: clone() and masked_fill() follow rules of their own.
bool is_row_major(const OpCall& call) {
  const auto is_contiguous = [](const SpecPtr& input) { return !input || meta_tensor(*input).is_contiguous(); };
  return !call.has_arg("memory_format") && std::all_of(call.inputs.begin(), call.inputs.end(), is_contiguous);
}

// An elementwise operator on row-major tensors, without its meta kernel. nullopt: it does not run on one element, or
// the call is invalid.
std::optional<OutputMetas> try_elementwise(const OpCall& call) {
  if (is_random(call.op) || !is_row_major(call)) return std::nullopt;
  try {
    return infer_elementwise(call);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// Of other elementwise calls: the dtypes of a run on one element.
void take_elementwise_dtypes(const OpCall& call, OutputMetas& metas) {
  OutputMetas trial;
  try {
    trial = run_on_one_element(call, broadcast_shape(call));
  } catch (const c10::Error&) {
    return;  // not on this type of device
  }
  for (size_t o = 0; o < std::min(metas.tensors.size(), trial.tensors.size()); ++o) {
    if (metas.tensors[o] && trial.tensors[o]) metas.tensors[o]->dtype = trial.tensors[o]->dtype;
  }
}

// By the meta kernel; nullopt: not known. Also nullopt if the meta kernel fails at a valid call of an elementwise
// operator: some are composites that need data (ldexp, addcdiv with a number). An invalid call fails on one element,
// too.
std::optional<OutputMetas> try_meta(const OpCall& call) {
  try {
    return run_meta(call);
  } catch (const c10::Error&) {
    if (!is_pointwise(call)) throw;
    try {
      const OpCall functional = call.without_outs();
      const Shape shape = broadcast_shape(functional);
      const std::vector<bool> written = functional.written();
      bool good = true;
      for (size_t i = 0; i < written.size(); ++i) good = good && (!written[i] || call.inputs[i]->sizes() == shape);
      infer_elementwise(call);
      if (good) return std::nullopt;
    } catch (const c10::Error&) {
    }
    throw;
  }
}

// New results; nullopt: not known.
std::optional<OutputMetas> infer_new(const OpCall& call) {
  // Python's meta kernels are slow, and their type promotion differs (bool ** True, ldexp).
  if (has_meta_kernels_of_python() && is_pointwise(call)) {
    if (auto metas = try_elementwise(call)) return metas;
  }
  auto metas = try_meta(call);
  if (!is_pointwise(call)) return metas;
  if (!metas) return infer_elementwise(call);
  if (has_meta_kernels_of_python() && !is_random(call.op)) take_elementwise_dtypes(call, *metas);
  take_strides_of_converted(call, *metas);
  return metas;
}

// The values written to out= arguments; nullopt: not known.
std::optional<OutputMetas> infer_of_outs(const OpCall& call, const OpCall& functional) {
  // ATen gives an empty out= tensor the shape of the result.
  OpCall fresh = call;
  for (size_t i = functional.inputs.size(); i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    fresh.inputs[i] = Spec::get(call.mesh, Placements(call.mesh.ndim(), Replicate()), {0}, call.inputs[i]->dtype());
  }
  if (auto metas = try_meta(fresh)) return metas;
  if (is_pointwise(call)) return infer_elementwise(functional);
  // The out= form often has no meta kernel although the other one has, or is known to be elementwise.
  const auto form = as_functional(call);
  return form ? infer_new(*form) : std::nullopt;
}

OutputMetas check_known(const OpCall& call, std::optional<OutputMetas> metas) {
  TORCH_CHECK_NOT_IMPLEMENTED(metas, "Operator ", dotted_name(call.op),
                              ": the shape of its result cannot be known: no meta kernel and no OpRule::metas");
  return *std::move(metas);
}

// The values that an operator writes to its results, of which only the shapes count; nullopt: not known.
std::optional<OutputMetas> infer_written_values(const OpCall& call, const OpRule& rule) {
  const OpCall functional = call.without_outs();
  if (rule.metas) return rule.metas(functional);
  if (functional.inputs.size() < call.inputs.size()) return check_known(call, infer_of_outs(call, functional));
  if (is_random(call.op)) return std::nullopt;
  auto metas = try_meta(call);
  return metas || !is_pointwise(call) ? metas : metas_of_shape(call, broadcast_shape(call));
}

// The results of an operator that writes to all of them: they have the metadata of the written arguments, if that fits.
OutputMetas infer_written(const OpCall& call, const OpRule& rule) {
  OutputMetas result;
  std::vector<int> sources;
  for (size_t r = 0; r < call.schema().returns().size(); ++r) {
    const ArgSlot& slot = call.slots[call.written_by_return(r)];
    result.counts.push_back(slot.kind == ArgSlot::Kind::kTensor ? -1 : slot.count);
    for (int i = slot.first; i < slot.first + slot.count; ++i) {
      sources.push_back(i);
      result.tensors.push_back(call.inputs[i] ? std::optional(call.inputs[i]->meta()) : std::nullopt);
    }
  }
  const std::optional<OutputMetas> values = infer_written_values(call, rule);
  for (size_t o = 0; values && o < std::min(values->tensors.size(), result.tensors.size()); ++o) {
    if (!values->tensors[o] || !result.tensors[o]) continue;
    const Shape& got = values->tensors[o]->sizes;
    const Shape& has = result.tensors[o]->sizes;
    TORCH_CHECK(got == has, call.name(), ": argument '", call.input_name(sources[o]), "' of shape ",
                at::IntArrayRef(has), " cannot hold the result, of shape ", at::IntArrayRef(got));
  }
  return result;
}

}  // namespace

OutputMetas infer_outputs(const OpCall& call, const OpRule& rule) {
  const auto& returns = call.schema().returns();
  if (returns.empty()) return {};
  bool writes_all = true;
  for (size_t r = 0; r < returns.size(); ++r) writes_all = writes_all && call.written_by_return(r) >= 0;
  if (writes_all) return infer_written(call, rule);
  return rule.metas ? rule.metas(call) : check_known(call, infer_new(call));
}

}  // namespace dtensor::internal
