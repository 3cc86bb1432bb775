// Circular padding of dims that ranks share. ATen composes it of slices that are written to one after the other; here
// it is one exchange, and one more in backward.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/spatial/pad_circular.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using torch::jit::Stack;

// Autograd's contexts store IValues only.
struct Padding : torch::CustomClassHolder {
  std::shared_ptr<const HaloDecision> decision;
  CommCause cause;
};
using PaddingPtr = c10::intrusive_ptr<Padding>;

void save(AutogradContext* ctx, PaddingPtr padding) {
  ctx->saved_data["dtensor"] = c10::IValue::make_capsule(std::move(padding));
}
PaddingPtr saved(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Padding>(ctx->saved_data.at("dtensor").toCapsule());
}

// Each direction is the backward of the other.
struct Pad : Function<Pad> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, PaddingPtr padding) {
    const HaloDecision& decision = *padding->decision;
    RankTensors locals = fetch_boxes(decision, t, 0, padding->cause);
    save(ctx, std::move(padding));
    return make_dtensor(decision.result, std::move(locals));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};
struct PadBack : Function<PadBack> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, PaddingPtr padding) {
    const HaloPlan& plan = *padding->decision->plan;
    RankTensors locals = add_back_halos(plan, meta_for_read(t).locals, padding->cause);
    save(ctx, std::move(padding));
    return make_dtensor(plan.source, std::move(locals));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

variable_list Pad::backward(AutogradContext* ctx, variable_list grads) {
  if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
  const PaddingPtr padding = saved(ctx);
  const Spec& result = *padding->decision->result;
  const at::Tensor grad =
      redistribute_as(distributed_gradient(grads[0], result.mesh()), result.placements(), padding->cause);
  return {PadBack::apply(grad, padding), at::Tensor()};
}

variable_list PadBack::backward(AutogradContext* ctx, variable_list grads) {
  if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
  const PaddingPtr padding = saved(ctx);
  const Spec& source = *padding->decision->plan->source;
  const at::Tensor grad =
      redistribute_as(distributed_gradient(grads[0], source.mesh()), source.placements(), padding->cause);
  auto of_gradient = c10::make_intrusive<Padding>(*padding);
  auto decision = std::make_shared<HaloDecision>(*padding->decision);
  decision->within = nullptr;  // the width was declared for the input
  of_gradient->decision = std::move(decision);
  return {Pad::apply(grad, std::move(of_gradient)), at::Tensor()};
}

// nullopt: invalid arguments, which the operator itself reports, or halos do not apply.
std::optional<std::vector<HaloDim>> circular_dims(const std::vector<int64_t>& pad, at::IntArrayRef sizes) {
  if (pad.size() % 2 != 0 || pad.size() / 2 + 2 != sizes.size()) return std::nullopt;
  std::vector<HaloDim> dims;
  for (size_t k = pad.size() / 2; k-- > 0;) {
    const auto d = static_cast<int64_t>(sizes.size() - 1 - k);
    const int64_t n = sizes[d], before = pad[2 * k], after = pad[2 * k + 1];
    if (n < 1 || before < 0 || after < 0 || before > n || after > n) return std::nullopt;
    if (before + after > 0) dims.push_back({d, circular(n, before, after), {}});
  }
  return dims;
}

// _pad_circular(self, pad), above autograd.
void pad_circular(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  at::Tensor self = args.tensor("self");
  const auto dims = circular_dims(args["pad"].toIntVector(), self.sizes());
  // Forward-mode AD needs operators that have formulas, which Pad has not.
  if (!dims || has_tangent(self)) return pad_circular_by_pieces(op, stack);
  std::vector<int64_t> numbers;
  for (const HaloDim& d : *dims) numbers.push_back(d.dim);
  if (cutting_mesh_dims(*spec_of(self), numbers).empty()) return pad_circular_by_pieces(op, stack);
  keep_gradient_layout(self);
  const CommCause cause = call_cause(op, "self", self);
  self = redistribute_as(self, without_partials(spec_of(self)->placements()), cause);
  args.set("self", self);
  const SpecPtr& source = spec_of(self);
  const auto decision = decide_halo(op, stack, self, [&](const Decision*) -> std::optional<HaloChoice> {
    Shape sizes = source->sizes();
    for (const HaloDim& d : *dims) sizes[d.dim] = d.map.size;
    const SpecPtr result =
        Spec::get(source->mesh(), source->placements(), at::IntArrayRef(sizes.data(), sizes.size()), source->dtype());
    return HaloChoice{{source, result, *dims}, result};
  });
  if (!decision->plan) return pad_circular_by_pieces(op, stack);
  auto padding = c10::make_intrusive<Padding>();
  padding->decision = decision;
  padding->cause = cause;
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(Pad::apply(self, std::move(padding)));
}

}  // namespace

const RuleFamily halo_circular_handlers("halo_circular", [](RuleRegistry& registry) {
  registry.add_handler("aten::_pad_circular", pad_circular);
});

}  // namespace dtensor::internal
