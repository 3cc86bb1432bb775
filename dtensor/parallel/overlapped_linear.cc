#include "dtensor/parallel/overlapped_linear.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/parallel/chunked_product.h"
#include "dtensor/parallel/parameter_group.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/autocast.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// `t`, or the gathered copy of a parameter of fully_shard().
at::Tensor as_multiplied(const at::Tensor& t) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto group = t.defined() ? parameter_group_of(t) : nullptr;
  const at::Tensor gathered = group ? group->gathered(t) : at::Tensor();
  return gathered.defined() ? gathered : t;
}

// A call that runs in chunks.
struct PlannedLinear {
  SpecPtr input;  // as it is given
  ProductPlan plan;
  int64_t max_chunks = 1;
  bool biased = false;
  CommCause cause;
};
using PlannedLinearPtr = std::shared_ptr<const PlannedLinear>;

// The gradient of the input, in the layout that this is given in; undefined unless `of_input`. The exchange of forward
// takes place in the other direction, in chunks again. Calls `of_parameters` once, with the gradient of the product in
// the layout of the product.
at::Tensor gradient_of_input(const PlannedLinear& linear, const at::Tensor& grad, const at::Tensor& weight,
                             bool of_input, const std::function<void(const at::Tensor& product)>& of_parameters) {
  const Placements product = without_partials(linear.plan.product->placements()),
                   input = without_partials(linear.input->placements());
  const auto plan =
      of_input ? plan_product(spec_of(grad), product, *spec_of(weight), SummedDim::kFirst, input, linear.max_chunks)
               : std::nullopt;
  if (plan) return run_product(*plan, {grad, weight, {}}, SummedDim::kFirst, linear.cause, of_parameters).result;
  const at::Tensor of_product = redistribute_as(grad, product, linear.cause);
  at::Tensor result;
  if (of_input) result = redistribute_as(at::matmul(of_product, weight), input, linear.cause);
  of_parameters(of_product);
  return result;
}

struct OverlappedLinearFn : torch::autograd::Function<OverlappedLinearFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, PlannedLinearPtr linear) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor offsets = bias.value_or(at::Tensor());
    const ProductResult result = run_product(linear->plan, {input, as_multiplied(weight), as_multiplied(offsets)},
                                             SummedDim::kSecond, linear->cause);
    ctx->save_for_backward({weight.requires_grad() ? result.rows : at::Tensor(), weight});
    ctx->set_materialize_grads(false);
    save_for_backward(ctx, std::move(linear));
    return result.result;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "[OverlapCommunication] a product in chunks has no second derivatives (backward() or "
                                "grad() with create_graph); compute its forward outside of the scope");
    const auto linear = saved_for_backward<PlannedLinearPtr>(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &weight = saved[1];
    const SpecPtr& out = linear->plan.result;
    const at::Tensor grad = redistribute_as(distributed_gradient(grads[0], out->mesh()),
                                            without_partials(out->placements()), linear->cause);
    const bool of_input = ctx->needs_input_grad(0);
    const auto of_parameters = [&](const at::Tensor& product) {
      const at::Tensor by_row = product.reshape({-1, product.size(-1)});
      if (ctx->needs_input_grad(1)) result[1] = by_row.t().mm(rows.reshape({-1, rows.size(-1)}));
      if (linear->biased && ctx->needs_input_grad(2)) result[2] = by_row.sum(0);
    };
    result[0] = gradient_of_input(*linear, grad, of_input ? as_multiplied(weight) : weight, of_input, of_parameters);
    return result;
  }
};

// Whether the operator's own code would compute with the tensors as they are.
bool takes_plain_products(const LinearCall& call) {
  const auto fits = [&](const at::Tensor& t) {
    return is_dtensor(t) && spec_of(t)->mesh() == spec_of(call.input)->mesh() &&
           spec_of(t)->dtype() == spec_of(call.input)->dtype() && !has_tangent(t);
  };
  const auto is_unwatched = [](const at::Tensor& t) {
    const auto& traits = meta_without_sync(t).storage->parameter->traits;
    return traits == nullptr || traits->hook_watches.empty();
  };
  const at::Tensor &x = call.input, &w = call.weight, &b = call.bias;
  if (!c10::isFloatingType(spec_of(x)->dtype()) || is_autocast_on(x)) return false;
  const bool multiplies =
      fits(x) && x.dim() >= 2 && fits(w) && is_unwatched(w) && w.dim() == 2 && x.size(-1) == w.size(1);
  return multiplies && (!b.defined() || (fits(b) && is_unwatched(b) && b.dim() == 1 && b.size(0) == w.size(0)));
}

// Whether the bias lies as the last dim of the result.
bool bias_fits(const LinearCall& call, const Spec& result) {
  if (!call.bias.defined()) return true;
  const Placements& bias = spec_of(call.bias)->placements();
  for (size_t m = 0; m < bias.size(); ++m) {
    const bool cuts = result.placements()[m].is_sharded_on(result.ndim() - 1);
    if (bias[m] != (cuts ? Shard(0) : Replicate())) return false;
  }
  return !result.has_partial();
}

std::optional<ProductPlan> plan_of_call(const LinearCall& call, const LinearMoves& moves, int64_t chunks) {
  const SpecPtr& input = spec_of(call.input);
  Placements computed = input->placements();
  if (moves.input) computed[moves.mesh_dim] = *moves.input;
  std::optional<Placements> result;
  if (computed == input->placements()) {
    if (!moves.output) return std::nullopt;
    const auto product =
        product_placements(computed, spec_of(call.weight)->placements(), SummedDim::kSecond, input->ndim() - 1);
    if (!product) return std::nullopt;
    result = product;
    (*result)[moves.mesh_dim] = *moves.output;
  }
  return plan_product(input, computed, *spec_of(call.weight), SummedDim::kSecond, result, chunks);
}

}  // namespace

std::optional<LinearCall> linear_call(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args,
                                      const at::Tensor& input) {
  const std::string& name = op.schema().name();
  const auto takes = [&](size_t i) { return args[i].isTensor() && args[i].toTensor().is_same(input); };
  const auto is_matrix = [&](size_t i) { return args[i].isTensor() && args[i].toTensor().dim() == 2; };
  const auto is_one = [&](size_t i) { return args[i].toScalar().equal(1); };
  if (!op.schema().overload_name().empty()) return std::nullopt;
  if (name == "aten::linear" && takes(0) && is_matrix(1)) {
    return LinearCall{input, args[1].toTensor(), args[2].isTensor() ? args[2].toTensor() : at::Tensor()};
  }
  if ((name == "aten::mm" || name == "aten::matmul") && takes(0) && is_matrix(1))
    return LinearCall{input, args[1].toTensor().t(), {}};
  if (name == "aten::addmm" && takes(1) && is_matrix(2) && is_one(3) && is_one(4))
    return LinearCall{input, args[2].toTensor().t(), args[0].toTensor()};
  return std::nullopt;
}

at::Tensor overlapped_linear(const LinearCall& call, const LinearMoves& moves) {
  const int64_t chunks = current_dispatch_scope().communication_chunks;
  if (chunks < 2) return {};
  if (!takes_plain_products(call)) return {};
  const LinearCall multiplied{call.input, as_multiplied(call.weight), as_multiplied(call.bias)};
  const auto plan = plan_of_call(multiplied, moves, chunks);
  if (!plan || !bias_fits(multiplied, *plan->result)) return {};
  for (const at::Tensor& t : {call.input, call.weight, call.bias}) {
    if (!t.defined() || !is_leaf_parameter(t)) continue;
    keep_gradient_layout(t);
    meta_without_sync(t).storage->is_parameter.store(true, std::memory_order_relaxed);
  }
  const PlannedLinear linear{spec_of(call.input), *plan, chunks, call.bias.defined(),
                             plan->gather ? moves.input_cause : moves.output_cause};
  const auto records = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  if (at::GradMode::is_enabled() && (records(call.input) || records(call.weight) || records(call.bias))) {
    const auto bias = call.bias.defined() ? std::optional(call.bias) : std::nullopt;
    return OverlappedLinearFn::apply(call.input, call.weight, bias, std::make_shared<const PlannedLinear>(linear));
  }
  return run_product(linear.plan, {multiplied.input, multiplied.weight, multiplied.bias}, SummedDim::kSecond,
                     linear.cause)
      .result;
}

}  // namespace dtensor::internal
