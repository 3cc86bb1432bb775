// scaled_dot_product_attention() in a ContextParallel scope: over a sequence that is sharded over a mesh dim, by the
// ring (ring_attention.h), or by heads, with an all-to-all before and after. Elsewhere ATen's composite runs as it is.
#include "dtensor/context_parallel.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/head_tail.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/autocast.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/network/context_layouts.h"
#include "ops/network/ring_attention.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;

constexpr char kOp[] = "scaled_dot_product_attention";

struct SavedRingCall : torch::CustomClassHolder {
  explicit SavedRingCall(RingCall c) : call(std::move(c)) {}
  const RingCall call;
};
using SavedRingCallPtr = c10::intrusive_ptr<SavedRingCall>;

// Attention computes in the types that it chooses, as ATen's kernels do; autocast decides those of the arguments only.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

struct RingAttentionFn : torch::autograd::Function<RingAttentionFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& mask, SavedRingCallPtr saved) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const RingInputs in{q, k, v, mask.value_or(at::Tensor())};
    const RingResult result = ring_attention(saved->call, in);
    ctx->save_for_backward({q, k, v, in.mask, result.out, result.max_score, result.sum});
    ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(saved));
    ctx->set_materialize_grads(false);
    return result.out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none, none, none, none};
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "[ContextParallel] ", kOp,
                                ": ring attention has no second derivatives (backward() or grad() with create_graph); "
                                "use ContextParallelMethod::kAllToAll");
    const WithoutAutocast scope;
    const auto call = c10::static_intrusive_pointer_cast<SavedRingCall>(ctx->saved_data.at("call").toCapsule());
    const RingCall& ring = call->call;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = redistribute_as(distributed_gradient(grads[0], ring.q->mesh()), ring.q->placements(),
                                            CommCause{"ring attention", "gradient of the result", ring.module_path});
    const bool of_keys = ctx->needs_input_grad(1) || ctx->needs_input_grad(2);
    const RingGradients result = ring_attention_backward(ring, grad, {saved[0], saved[1], saved[2], saved[3]},
                                                         {saved[4], saved[5], saved[6]}, of_keys);
    return {result.q, result.k, result.v, none, none};
  }
};

// The tensors and numbers of a call, as the scope's rule has them: 4 dims, one dtype, one mesh.
struct AttentionCall {
  at::Tensor q, k, v, mask;
  bool causal = false;
  double scale = 1;
};

at::Tensor on_mesh(const at::Tensor& t, const char* argument, const DeviceMesh& mesh) {
  if (!is_dtensor(t)) {
    if (!plain_is_replicated()) throw_plain_beside_distributed(c10::str("aten::", kOp), argument, t, mesh);
    // Its gradient is plain, too.
    const bool has_gradient = t.requires_grad() && at::GradMode::is_enabled();
    return has_gradient ? distributed_gradient(t, mesh) : replicate_plain(t, mesh);
  }
  TORCH_CHECK_VALUE(spec_of(t)->mesh() == mesh, "[ContextParallel] ", kOp, ": `", argument, "` is on ",
                    spec_of(t)->mesh().to_string(), ", and another argument on ", mesh.to_string(),
                    "; redistribute(t, mesh, placements) moves it");
  return t;
}

// Below a handler autocast does not see the arguments.
at::Tensor as_autocast(const at::Tensor& t) {
  const bool is_eligible = t.is_floating_point() && t.scalar_type() != at::kDouble;
  return is_autocast_on(t) && is_eligible ? t.to(at::autocast::get_autocast_dtype(t.device().type())) : t;
}

const DeviceMesh& mesh_of(const Arguments& args) {
  for (const char* name : {"query", "key", "value", "attn_mask"}) {
    const at::Tensor t = optional_tensor(args[name]);
    if (t.defined() && is_dtensor(t)) return spec_of(t)->mesh();
  }
  TORCH_INTERNAL_ASSERT(false, kOp, " has no distributed tensor");
}

int64_t checked_mesh_dim(const DeviceMesh& mesh, const std::string& name) {
  const auto& names = mesh.names();
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(found != names.end(), "[ContextParallel] ", kOp, ": its tensors are on ", mesh.to_string(),
                    ", which has no mesh dim `", name, "`; name the one that shards the sequence");
  return found - names.begin();
}

void check_inputs(const AttentionCall& c, bool gqa) {
  for (const auto& [name, t] : {std::pair("query", c.q), std::pair("key", c.k), std::pair("value", c.v)}) {
    TORCH_CHECK_VALUE(t.dim() == 4 && t.is_floating_point() && t.scalar_type() == c.q.scalar_type(),
                      "[ContextParallel] ", kOp, ": `", name, "` is ", t.scalar_type(), t.sizes(),
                      "; give floating-point tensors [batch, heads, length, features] of one dtype");
  }
  const bool agree = c.k.size(0) == c.q.size(0) && c.v.size(0) == c.q.size(0) && c.v.size(1) == c.k.size(1) &&
                     c.v.size(2) == c.k.size(2) && c.k.size(3) == c.q.size(3);
  const bool heads_agree = c.q.size(1) == c.k.size(1) || (gqa && c.k.size(1) > 0 && c.q.size(1) % c.k.size(1) == 0);
  TORCH_CHECK_VALUE(agree && heads_agree, "[ContextParallel] ", kOp, ": `query` ", c.q.sizes(), ", `key` ", c.k.sizes(),
                    " and `value` ", c.v.sizes(),
                    " do not fit; give [batch, heads, length, features] with one batch, key "
                    "and value alike but for the features, and as many heads, or with enable_gqa a divisor of the "
                    "query's heads");
  if (!c.mask.defined()) return;
  const int64_t wanted[] = {c.q.size(0), c.q.size(1), c.q.size(2), c.k.size(2)};
  bool fits = c.mask.dim() == 4 && !c.causal && (c.mask.scalar_type() == at::kBool || c.mask.is_floating_point());
  for (int64_t d = 0; fits && d < 4; ++d) fits = c.mask.size(d) == 1 || c.mask.size(d) == wanted[d];
  TORCH_CHECK_VALUE(fits, "[ContextParallel] ", kOp, ": `attn_mask` ", c.mask.scalar_type(), c.mask.sizes(),
                    " must be boolean or floating-point, broadcast to ", at::IntArrayRef(wanted),
                    ", and is_causal false");
  TORCH_CHECK_NOT_IMPLEMENTED(!c.mask.requires_grad() || !at::GradMode::is_enabled(), "[ContextParallel] ", kOp,
                              ": `attn_mask` requires grad, which attention over a sharded sequence does not compute");
}

void check_no_tangents(const Arguments& args) {
  for (const char* name : {"query", "key", "value", "attn_mask"}) {
    const at::Tensor t = optional_tensor(args[name]);
    TORCH_CHECK_NOT_IMPLEMENTED(!t.defined() || !has_tangent(t), "[ContextParallel] ", kOp, ": `", name,
                                "` has a tangent, and attention over a sharded sequence has no forward-mode "
                                "derivatives; call it outside the scope");
  }
}

AttentionCall attention_call(const Arguments& args, const DeviceMesh& mesh) {
  check_no_tangents(args);
  TORCH_CHECK_NOT_IMPLEMENTED(args["dropout_p"].toDouble() == 0, "[ContextParallel] ", kOp, ": `dropout_p` is ",
                              args["dropout_p"].toDouble(),
                              ", and attention over a sharded sequence has no dropout; "
                              "pass 0, and drop elements of the result");
  AttentionCall call;
  call.causal = args["is_causal"].toBool();
  call.q = as_autocast(on_mesh(args.tensor("query"), "query", mesh));
  call.k = as_autocast(on_mesh(args.tensor("key"), "key", mesh));
  call.v = as_autocast(on_mesh(args.tensor("value"), "value", mesh));
  call.mask = optional_tensor(args["attn_mask"]);
  if (call.mask.defined()) call.mask = on_mesh(call.mask, "attn_mask", mesh);
  for (at::Tensor* t : {&call.q, &call.k, &call.v}) {
    if (t->dim() == 3) *t = t->unsqueeze(0);
  }
  while (call.mask.defined() && call.mask.dim() < 4) call.mask = call.mask.unsqueeze(0);
  check_inputs(call, args["enable_gqa"].toBool());
  call.scale = args["scale"].isNone() ? 1 / std::sqrt(static_cast<double>(call.q.size(3))) : args["scale"].toDouble();
  return call;
}

// The call with its tensors in the layouts that attention needs.
RingCall ring_call(const AttentionCall& c, int64_t dim, bool head_tail) {
  const Spec &q = *spec_of(c.q), &k = *spec_of(c.k), &v = *spec_of(c.v);
  const ContextLayouts layouts = context_layouts(q, k, v, dim);
  return {q.with_placements(layouts.q),
          k.with_placements(layouts.k),
          v.with_placements(layouts.k),
          dim,
          c.causal,
          head_tail,
          c.scale,
          current_scope().module_path};
}

// A collective for each tensor that has another layout.
void bring_to_layouts(AttentionCall& c, const RingCall& ring) {
  const auto bring = [&](at::Tensor& t, const SpecPtr& to, const char* argument) {
    t = redistribute_as(t, to->placements(), CommCause{c10::str("aten::", kOp), argument, ring.module_path});
  };
  bring(c.q, ring.q, "query");
  bring(c.k, ring.k, "key");
  bring(c.v, ring.v, "value");
}

at::Tensor by_ring(AttentionCall c, const RingCall& ring) {
  std::optional<at::Tensor> mask;
  if (c.mask.defined()) {
    mask = redistribute_as(c.mask, mask_layout(*spec_of(c.mask), ring.q->placements()),
                           CommCause{c10::str("aten::", kOp), "attn_mask", ring.module_path});
  }
  for (const at::Tensor& t : {c.q, c.k, c.v}) keep_gradient_layout(t);
  return RingAttentionFn::apply(c.q, c.k, c.v, mask, c10::make_intrusive<SavedRingCall>(ring));
}

// [batch, key heads, ...] once for each query head.
at::Tensor for_query_heads(const at::Tensor& t, int64_t heads) {
  if (t.size(1) == heads) return t;
  return t.unsqueeze(2).expand({-1, -1, heads / t.size(1), -1, -1}).reshape({t.size(0), heads, t.size(2), t.size(3)});
}

// Each rank has some heads of the whole sequence meanwhile.
at::Tensor by_heads(const c10::OperatorHandle& op, AttentionCall c, const RingCall& ring) {
  const int64_t heads = c.q.size(1), ranks = ring.num_ranks();
  const CommCause cause{"all-to-all attention", "query, key, value", ring.module_path, /*implicit=*/false};
  if (!keeps_key_heads(ring)) {
    c.k = for_query_heads(c.k, heads);
    c.v = for_query_heads(c.v, heads);
  }
  const Layout to(ring.q->mesh(), heads_layout(*ring.q, ring.dim));
  auto moved = redistribute_as({c.q, c.k, c.v}, {to, to, to}, cause);
  if (c.mask.defined()) {
    c.mask = redistribute_as(c.mask, mask_layout(*spec_of(c.mask), to.placements()),
                             CommCause{c10::str("aten::", kOp), "attn_mask", ring.module_path});
  }
  const bool reorders = ring.head_tail && ring.causal;  // ATen's causal mask goes by the order of the tensors
  if (reorders) {
    for (at::Tensor& t : moved) t = from_head_tail(t, 2, ranks);
  }
  Stack stack;
  torch::jit::push(stack, moved[0], for_query_heads(moved[1], heads), for_query_heads(moved[2], heads),
                   c.mask.defined() ? c10::IValue(c.mask) : c10::IValue(), 0., c.causal, c.scale, /*enable_gqa=*/false);
  run_without_handler(op, stack);
  at::Tensor out = torch::jit::pop(stack).toTensor();
  if (reorders) out = to_head_tail(out, 2, ranks);
  return redistribute_as(out, ring.q->placements(),
                         CommCause{"all-to-all attention", "result", ring.module_path, /*implicit=*/false});
}

// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa), above autograd.
void context_parallel_attention(const c10::OperatorHandle& op, Stack& stack) {
  const auto setting = current_dispatch_scope().context_parallel;
  if (setting == nullptr) return run_without_handler(op, stack);
  const Arguments args(op, stack);
  const DeviceMesh mesh = mesh_of(args);
  const int64_t dim = checked_mesh_dim(mesh, setting->mesh_dim);
  AttentionCall call = attention_call(args, mesh);
  const WithoutAutocast scope;
  const int64_t dims = args.tensor("query").dim();
  const RingCall ring = ring_call(call, dim, setting->options.load_balance);
  const bool differentiable =
      at::GradMode::is_enabled() && (call.q.requires_grad() || call.k.requires_grad() || call.v.requires_grad());
  const bool exchanges = method_of(setting->options.method, ring, differentiable) == ContextParallelMethod::kAllToAll;
  bring_to_layouts(call, ring);
  const at::Tensor out = exchanges ? by_heads(op, call, ring) : by_ring(call, ring);
  return_tensors(op, stack, {dims == 3 ? out.squeeze(0) : out});
}

}  // namespace

const RuleFamily context_parallel_handlers("context_parallel", [](RuleRegistry& registry) {
  registry.add_handler("aten::scaled_dot_product_attention", context_parallel_attention);
});

}  // namespace dtensor::internal
