// Global metadata of an operator's outputs, without data.
#include "propagation/shape_inference.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "propagation/elementwise_strides.h"
#include "propagation/functional_form.h"
#include "propagation/trial_run.h"

namespace dtensor {
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

bool is_pointwise(const OpCall& call) {
  if (call.op.hasTag(at::Tag::pointwise)) return true;
  const auto& [name, overload] = call.op.operator_name();
  if (name.size() < 2 || name.back() != '_' || name[name.size() - 2] == '_') return false;
  auto functional = c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), overload});
  return functional && functional->hasTag(at::Tag::pointwise);
}

// Python replaces ATen's meta kernels by its own, whose type promotion differs (bool ** True, ldexp).
void take_elementwise_dtypes(const OpCall& call, OutputMetas& metas) {
  OutputMetas trial;
  try {
    trial = infer_elementwise(call);
  } catch (const c10::Error&) {
    return;  // not on this type of device
  }
  for (size_t o = 0; o < std::min(metas.tensors.size(), trial.tensors.size()); ++o) {
    if (metas.tensors[o] && trial.tensors[o]) metas.tensors[o]->dtype = trial.tensors[o]->dtype;
  }
}

// nullopt also if the meta kernel fails at a valid call of an elementwise operator: some are composites that need data
// (ldexp, addcdiv with a number). An invalid call fails on one element, too.
std::optional<OutputMetas> try_meta(const OpCall& call) {
  try {
    return run_meta(call);
  } catch (const c10::Error&) {
    if (!is_pointwise(call)) throw;
    try {
      const Shape shape = broadcast_shape(call.without_outs());
      const std::vector<bool> written = call.without_outs().written();
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
std::optional<OutputMetas> infer(const OpCall& call) {
  if (!is_pointwise(call)) return run_meta(call);
  auto metas = try_meta(call);
  if (metas && !is_random(call.op)) take_elementwise_dtypes(call, *metas);
  if (!metas) return infer_elementwise(call);
  take_strides_of_converted(call, *metas);
  return metas;
}

// Whether this is an out= call without its out= arguments (OpCall::without_outs()). ATen cannot run such a call.
bool lacks_outs(const OpCall& call) {
  const auto& arguments = call.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (arguments[a].is_out() && call.slots[a].count == 0) return true;
  }
  return false;
}

// aten::index_add for aten::index_add.out, aten::sum.dim_IntList for aten::sum.IntList_out. Arguments that out= lacks
// (the dtype and device of zeros_like) have their defaults. nullopt: there is no such form.
std::optional<OpCall> as_functional(const OpCall& call) {
  const auto op = functional_form(call.op);
  if (!op) return std::nullopt;
  OpCall result = call.without_outs();
  result.op = *op;
  result.args.clear();
  result.slots.clear();
  for (const auto& argument : op->schema().arguments()) {
    const int a = call.arg_index(argument.name());
    if (a >= 0) {
      result.args.push_back(call.args[a]);
      result.slots.push_back(call.slots[a]);
    } else {
      result.args.push_back(*argument.default_value());
      result.slots.emplace_back();
    }
  }
  return result;
}

// The values written to out= arguments; nullopt: not known.
std::optional<OutputMetas> infer_of_outs(const OpCall& call, size_t num_functional) {
  // ATen gives an empty out= tensor the shape of the result.
  OpCall fresh = call;
  for (size_t i = num_functional; i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    fresh.inputs[i] = Spec::get(call.mesh, Placements(call.mesh.ndim(), Replicate()), {0}, call.inputs[i]->dtype());
  }
  auto metas = is_pointwise(call) ? try_meta(fresh) : run_meta(fresh);
  if (metas) return metas;
  if (is_pointwise(call)) return infer_elementwise(call.without_outs());
  // The out= form often has no meta kernel although the other one has, or is known to be elementwise.
  const auto functional = as_functional(call);
  return functional ? infer(*functional) : std::nullopt;
}

// An operator that writes to all its results: they have the metadata of the written arguments, if that fits.
OutputMetas infer_written(const OpCall& call, const OpRule& rule) {
  const auto& returns = call.schema().returns();
  OutputMetas result;
  std::vector<int> sources;
  for (size_t r = 0; r < returns.size(); ++r) {
    const ArgSlot& slot = call.slots[call.written_by_return(r)];
    result.counts.push_back(slot.kind == ArgSlot::Kind::kTensor ? -1 : slot.count);
    for (int i = slot.first; i < slot.first + slot.count; ++i) {
      sources.push_back(i);
      result.tensors.push_back(call.inputs[i] ? std::optional(call.inputs[i]->meta()) : std::nullopt);
    }
  }

  // The result of the operator's functional form.
  const OpCall functional = call.without_outs();
  const size_t num_functional = functional.inputs.size();
  const bool has_outs = num_functional != call.inputs.size();
  std::optional<OutputMetas> own;
  if (rule.metas) {
    own = rule.metas(functional);
  } else if (has_outs) {
    own = infer_of_outs(call, num_functional);
  } else if (!is_random(call.op)) {
    own = try_meta(call);
    if (!own && is_pointwise(call)) {
      own = result;
      for (auto& tensor : own->tensors) {
        if (tensor) tensor->sizes = broadcast_shape(call);
      }
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(own || !has_outs, "Operator ", dotted_name(call.op),
                              ": the shape of its result cannot be known: no meta kernel and no OpRule::metas");
  for (size_t o = 0; own && o < std::min(own->tensors.size(), result.tensors.size()); ++o) {
    if (!own->tensors[o] || !result.tensors[o]) continue;
    const Shape& got = own->tensors[o]->sizes;
    const Shape& has = result.tensors[o]->sizes;
    TORCH_CHECK(got == has, call.name(), ": argument '", call.input_name(sources[o]), "' of shape ",
                at::IntArrayRef(has), " cannot hold the result, of shape ", at::IntArrayRef(got));
  }
  return result;
}

}  // namespace

OutputMetas infer_elementwise(const OpCall& call) {
  const auto& arguments = call.schema().arguments();
  const Shape shape = broadcast_shape(call.without_outs());
  if (std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); })) {
    // The dtypes are those of the out= arguments.
    const size_t n = call.schema().returns().size();
    return {{n, TensorMeta{shape, row_major_strides(shape)}}, std::vector<int>(n, -1), {}};
  }
  const c10::Device cpu(c10::DeviceType::CPU);
  // If nothing is computed the numbers cannot be invalid (ZeroDivisionError).
  const int64_t size = std::count(shape.begin(), shape.end(), 0) > 0 ? 0 : 1;
  OutputMetas result = read_metas(run_on(call, cpu, [&](int i) { return one_element(*call.inputs[i], size); }));
  const Shape strides = elementwise_strides(call);
  for (auto& tensor : result.tensors) {
    if (!tensor) continue;
    tensor->sizes = shape;
    tensor->strides = strides;
  }
  take_strides_of_converted(call, result);
  return result;
}

OutputMetas infer_outputs(const OpCall& call, const OpRule& rule) {
  if (lacks_outs(call)) {
    if (const auto functional = as_functional(call)) return infer_outputs(*functional, rule);
  }
  const auto& returns = call.schema().returns();
  bool writes_all = !returns.empty();
  for (size_t r = 0; r < returns.size(); ++r) writes_all = writes_all && call.written_by_return(r) >= 0;
  if (writes_all) return infer_written(call, rule);
  if (returns.empty()) return {};
  if (rule.metas) return rule.metas(call);
  auto metas = infer(call);
  TORCH_CHECK_NOT_IMPLEMENTED(metas, "Operator ", dotted_name(call.op),
                              ": the shape of its result cannot be known: no meta kernel and no OpRule::metas");
  return *std::move(metas);
}

}  // namespace dtensor
