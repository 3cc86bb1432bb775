// Tensors made like another tensor, the example: zeros_like, new_full, ... If the shapes match, the new tensor has the
// layout of the example (Replicate where that is Partial); else it is replicated.
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/meta_device.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/meta_tensor.h"
#include "propagation/op_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

void check_device(const OpCall& call) {
  if (!call.has_arg("device")) return;  // out=: it is where it is
  const auto own = call.mesh.world().device_type();
  const auto& device = call.arg("device");
  if (!device.isDevice()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(device.toDevice().type() == own, call.name(), ": the example is on ",
                              call.mesh.to_string(), ", whose devices are of type ", c10::DeviceTypeName(own, true),
                              "; a tensor like it cannot be made on ", device.toDevice());
}

bool has_out(const c10::FunctionSchema& schema) { return schema.arguments().back().is_out(); }

// One strategy: the example in its own layout. An out= tensor may have any layout: the example's values are not read.
std::vector<DimStrategy> follow(const OpCall& call, int64_t mesh_dim) {
  check_device(call);
  const Placement& given = call.inputs[0]->placements()[mesh_dim];
  const bool same_shape =
      !call.has_arg("size") || at::IntArrayRef(*call.get_ints("size")) == at::IntArrayRef(call.inputs[0]->sizes());
  if (has_out(call.schema())) {
    const size_t ndim = call.has_arg("size") ? call.get_ints("size")->size() : call.inputs[0]->ndim();
    std::vector<DimStrategy> any = {{{Replicate()}, {given}}};
    for (size_t d = 0; d < ndim; ++d) any.push_back({{Shard(d)}, {given}});
    if (same_shape && given.is_sharded()) any.push_back({{given}, {given}});
    return any;
  }
  return {{{same_shape && given.is_sharded() ? given : Replicate()}, {given}}};
}

// Sizes become those of the rank's part, the device becomes the rank's own.
void make_part(const LocalCall& call, torch::jit::Stack& stack) {
  const auto& schema = call.op.schema();
  const auto sizes = call.outputs[0]->local_shape(call.i);
  if (const auto size = schema.argumentIndexWithName("size")) {
    stack[*size] = std::vector<int64_t>(sizes.begin(), sizes.end());
  }
  if (const auto stride = schema.argumentIndexWithName("stride")) {
    stack[*stride] = local_strides(sizes, call.outputs[0]->strides());
  }
  if (const auto device = schema.argumentIndexWithName("device")) stack[*device] = c10::IValue();
  if (has_out(schema)) stack[0] = stack.back();  // its part may be of another shape than the example's
  call.op.callBoxed(stack);
}

// The example without what fills in its parts, as of a slice that no operator has read: its values are not needed.
at::Tensor not_read(const at::Tensor& example) {
  const DTensorMeta& meta = meta_without_sync(example);
  return make_view(meta.spec, meta.locals, example, example.storage_offset(),
                   std::make_shared<LocalStorage>(meta.spec->mesh().world(), 0));
}

// With device "meta" for an example that has data, or the reverse: calls the operator on the example's counterpart
// there.
void like_twin(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  const auto args = torch::jit::last(stack, schema.arguments().size());
  c10::IValue& given = *(stack.end() - static_cast<std::ptrdiff_t>(args.size()));
  const at::Tensor example = given.toTensor();
  const auto device = schema.argumentIndexWithName("device");
  if (device && args[*device].isDevice() && is_dtensor(example)) {
    const World& world = spec_of(example)->mesh().world();
    const auto type = args[*device].toDevice().type();
    if (!world.is_meta() && type == c10::DeviceType::Meta) given = to_meta(example);
    if (world.is_meta() && type == world.with_data().device_type()) given = to_empty(example);
  }
  if (const at::Tensor& t = given.toTensor(); is_dtensor(t)) {
    const DTensorMeta& meta = meta_without_sync(t);
    if (meta.arriving || meta.storage->observer) given = not_read(t);
  }
  dispatch_by_rule(op, stack);
}

}  // namespace

const RuleFamily factory_rules("factory", [](RuleRegistry& registry) {
  OpRule rule;
  rule.per_dim = follow;
  rule.local = make_part;
  rule.value_free = {"fill_value"};
  const std::vector<std::string> operators = {"aten::zeros_like", "aten::ones_like", "aten::full_like",
                                              "aten::empty_like", "aten::new_zeros", "aten::new_ones",
                                              "aten::new_full",   "aten::new_empty", "aten::new_empty_strided"};
  registry.add(operators, rule);
  for (const std::string& op : operators) registry.add_handler(op, like_twin);
});

}  // namespace dtensor::internal
