#include "dtensor/dispatch.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "dtensor/cache_key.h"
#include "dtensor/call_inputs.h"
#include "dtensor/executor.h"
#include "dtensor/gradient_layout.h"
#include "dtensor/hook_watch.h"
#include "dtensor/library_code.h"
#include "dtensor/op_info.h"
#include "dtensor/out_tensor.h"
#include "dtensor/partial_writes.h"
#include "dtensor/plain_dispatch.h"
#include "dtensor/replicated_dispatch.h"
#include "dtensor/view_origin.h"
#include "mesh/scope.h"
#include "propagation/propagate.h"
#include "propagation/redistribute_planner.h"

namespace dtensor {
namespace {

using torch::jit::Stack;
using Tensors = absl::InlinedVector<at::Tensor, 6>;

[[noreturn]] void mixed_error(const OpInfo& info, size_t arg, const at::Tensor& t, const DeviceMesh& mesh) {
  throw_plain_beside_distributed(info.name, info.op.schema().arguments()[arg].name(), t, mesh);
}

// REQUIRES: at least one argument is distributed.
Inputs gather_inputs(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  Inputs in;
  in.slots.resize(args.size());
  bool any_plain = false;
  const auto add = [&](const at::Tensor& t, size_t arg) {
    in.tensors.push_back(t);
    in.args.push_back(static_cast<uint16_t>(arg));
    if (!t.defined()) return;
    if (!is_dtensor(t)) {
      any_plain = true;
      if (info.args[arg].written) in.writes_plain = true;
      return;
    }
    const DeviceMesh& mesh = layout_of(t).spec->mesh();
    if (!in.mesh.defined()) in.mesh = mesh;
    TORCH_CHECK(in.mesh == mesh, info.name, ": argument '", info.op.schema().arguments()[arg].name(), "' is on ",
                mesh.to_string(), " of world ", mesh.world().name(), " and another argument on ", in.mesh.to_string(),
                " of world ", in.mesh.world().name(), ". All distributed arguments of an operator must share one mesh: slice one mesh, or redistribute.");
    const LocalStorage& storage = *layout_of(t).storage;
    if (storage.origin) in.copied_views = true;
    if (storage.hook_watches) in.hooks_watched = true;
    if (is_leaf_parameter(t)) keep_gradient_layout(t);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    ArgSlot& slot = in.slots[i];
    const int first = static_cast<int>(in.tensors.size());
    switch (info.args[i].kind) {
      case OpInfo::Arg::Kind::kStatic:
        continue;
      case OpInfo::Arg::Kind::kTensor:
        slot = {ArgSlot::Kind::kTensor, first, 1};
        add(args[i].isTensor() ? args[i].toTensor() : at::Tensor(), i);
        break;
      case OpInfo::Arg::Kind::kTensorList: {
        if (args[i].isNone()) {
          slot = {ArgSlot::Kind::kTensorList, first, 0};
          break;
        }
        const auto list = args[i].toListRef();
        slot = {ArgSlot::Kind::kTensorList, first, static_cast<int>(list.size())};
        for (const auto& x : list) add(x.isTensor() ? x.toTensor() : at::Tensor(), i);
        break;
      }
    }
  }
  if (any_plain && !in.writes_plain) {
    const bool allowed = plain_is_replicated();
    for (size_t i = 0; i < args.size(); ++i) {
      for (int k = in.slots[i].first; k < in.slots[i].first + in.slots[i].count; ++k) {
        at::Tensor& t = in.tensors[k];
        if (!t.defined() || is_dtensor(t)) continue;
        if (!allowed && !counts_as_number(t)) mixed_error(info, i, t, in.mesh);
        t = replicate_plain(t, in.mesh);
      }
    }
  }
  return in;
}

CacheKey make_key(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                  const Spec* gradient_target) {
  CacheKey key;
  key.push_back(reinterpret_cast<uintptr_t>(&info));
  key.push_back(resolved.generation);
  key.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));  // what integers divided by integers become
  key.push_back(gradient_target ? gradient_target->id() : 0);
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgSlot& slot = in.slots[i];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      append_static(key, args[i], resolved.value_free[i]);
      if (resolved.value_free[i]) append_class(key, args[i], resolved.divisor[i]);
      continue;
    }
    if (slot.kind == ArgSlot::Kind::kTensorList) key.push_back(slot.count);
    for (int k = slot.first; k < slot.first + slot.count; ++k) {
      key.push_back(in.tensors[k].defined() ? layout_of(in.tensors[k]).spec->id() : 0);
    }
  }
  return key;
}

OpCall make_call(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args, SpecPtr gradient_target) {
  OpCall call(info.op);
  call.mesh = in.mesh;
  call.slots = in.slots;
  call.gradient_target = std::move(gradient_target);
  for (size_t i = 0; i < args.size(); ++i) {
    call.args.push_back(in.slots[i].kind == ArgSlot::Kind::kStatic ? args[i] : c10::IValue());
  }
  for (const auto& t : in.tensors) call.inputs.push_back(t.defined() ? layout_of(t).spec : nullptr);
  return call;
}

}  // namespace

std::string module_path(const Inputs& in) {
  for (const auto& t : in.tensors) {
    if (!t.defined()) continue;
    if (layout_of(t).name) return module_of(layout_of(t));
  }
  return current_scope().module_path;
}

std::string arg_name(const OpInfo& info, const Inputs& in, int input) {
  for (size_t i = 0; i < in.slots.size(); ++i) {
    const ArgSlot& s = in.slots[i];
    if (input < s.first || input >= s.first + s.count || s.kind == ArgSlot::Kind::kStatic) continue;
    const std::string& name = info.op.schema().arguments()[i].name();
    return s.kind == ArgSlot::Kind::kTensorList ? c10::str(name, "[", input - s.first, "]") : name;
  }
  return "";
}

namespace {

// For operators, which read the result and let go of it. See ReducedForm.
RankTensors run_remembered(const at::Tensor& t, const RedistributePlan& plan, const CommCause& cause) {
  const DTensorMeta& meta = meta_of(t);
  if (!meta.spec->has_partial() || plan.is_local() || meta.storage->given_away || c10::InferenceMode::is_enabled()) {
    return run_plan(plan, meta.locals, cause);
  }
  const Placements& to = plan.to.placements();
  const uint64_t writes = meta.storage->writes.load(std::memory_order_relaxed);
  {
    std::lock_guard lock(meta.reduced_mutex);
    if (meta.reduced && meta.reduced->writes == writes && meta.reduced->placements == to) return meta.reduced->locals;
  }
  RankTensors result = run_plan(plan, meta.locals, cause);
  auto reduced = std::make_unique<ReducedForm>();
  reduced->placements = to;
  reduced->locals = result;
  reduced->writes = writes;
  reduced->storage = std::make_shared<LocalStorage>(meta.spec->mesh().world(),
                                                    meta.spec->with_placements(to)->max_local_bytes());
  std::lock_guard lock(meta.reduced_mutex);
  meta.reduced = std::move(reduced);
  return result;
}

void check_local(const OpInfo& info, const Spec& spec, const at::Tensor& local, int64_t rank_index) {
  const Shape expected = spec.local_shape(rank_index);
  TORCH_CHECK(local.defined() && local.sizes() == c10::IntArrayRef(expected.data(), expected.size()) &&
                  local.scalar_type() == spec.dtype(),
              info.name, ": the sharding rule says that rank ", spec.mesh().local_ranks()[rank_index], " computes ",
              spec.to_string(), " locally of shape ", c10::IntArrayRef(expected.data(), expected.size()), ", but the local operator gave ",
              local.defined() ? c10::str(local.sizes(), " ", local.scalar_type()) : std::string("nothing"),
              ". The rule of this operator is wrong.");
}

}  // namespace

void fill_local_stack(Stack& stack, const Inputs& in, c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals,
                      size_t r) {
  stack.clear();
  for (size_t a = 0; a < args.size(); ++a) {
    const ArgSlot& slot = in.slots[a];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      stack.push_back(args[a]);
    } else if (slot.kind == ArgSlot::Kind::kTensor) {
      if (in.tensors[slot.first].defined()) {
        stack.emplace_back(locals[slot.first][r]);
      } else {
        stack.push_back(args[a]);
      }
    } else if (args[a].isNone()) {
      stack.push_back(args[a]);
    } else if (args[a].isTensorList()) {
      c10::List<at::Tensor> list;
      for (int k = slot.first; k < slot.first + slot.count; ++k) {
        list.push_back(in.tensors[k].defined() ? locals[k][r] : at::Tensor());
      }
      stack.emplace_back(std::move(list));
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (int k = slot.first; k < slot.first + slot.count; ++k) {
        list.push_back(in.tensors[k].defined() ? std::optional<at::Tensor>(locals[k][r]) : std::nullopt);
      }
      stack.emplace_back(std::move(list));
    }
  }
}

namespace {

// Runs the local operator once per owned rank; outputs[k][i] is output k on local rank i.
std::vector<RankTensors> run_local(const OpInfo& info, const OpPlan& plan, const Inputs& in,
                                   c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals, bool check) {
  const size_t ranks = in.mesh.local_ranks().size();
  std::vector<RankTensors> outputs(plan.outputs.size());
  for (auto& o : outputs) o.reserve(ranks);
  LocalGuard guard;
  Stack stack;
  for (size_t r = 0; r < ranks; ++r) {
    fill_local_stack(stack, in, args, locals, r);
    if (plan.rule->local) {
      plan.rule->local({info.op, plan.computed, plan.outputs, static_cast<int64_t>(r), in.mesh}, stack);
    } else {
      info.op.callBoxed(stack);
    }
    size_t k = 0;
    for (auto& result : stack) {
      if (result.isTensor()) {
        outputs.at(k++).push_back(std::move(result).toTensor());
      } else {
        for (const auto& x : result.toListRef()) outputs.at(k++).push_back(x.toTensor());
      }
    }
    TORCH_CHECK(k == plan.outputs.size(), info.name, ": the local operator gave ", k, " tensors where ", plan.outputs.size(),
                " were expected.");
    if (check) {
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (plan.outputs[o]) check_local(info, *plan.outputs[o], outputs[o][r], static_cast<int64_t>(r));
      }
    }
  }
  return outputs;
}

// The schema argument that a view is of. REQUIRES: one is a tensor.
size_t first_tensor(const Inputs& in) {
  size_t a = 0;
  while (in.slots[a].kind != ArgSlot::Kind::kTensor) ++a;
  return a;
}

// Results as the schema wants them: tensors, or lists of tensors; written arguments are returned as themselves.
void push_results(const OpInfo& info, const OpPlan& plan, const Inputs& in, std::vector<RankTensors> outputs,
                  c10::ArrayRef<c10::IValue> args, Stack& results) {
  const auto wrap = [&](size_t k) -> at::Tensor {
    if (!plan.outputs[k]) return at::Tensor();
    if (info.is_view) {
      const size_t base_arg = first_tensor(in);
      const int i = in.slots[base_arg].first;
      const bool moved = plan.input_plans[i] && !plan.input_plans[i]->steps.empty();
      return make_view_of({info.op, args, base_arg, k, plan.computed[i]->placements()}, plan.outputs[k], std::move(outputs[k]),
                          plan.output_offsets.empty() ? 0 : plan.output_offsets[k], moved);
    }
    return make_dtensor(plan.outputs[k], std::move(outputs[k]));
  };
  size_t k = 0;
  for (size_t r = 0; r < plan.output_counts.size(); ++r) {
    if (info.written_inputs[r] >= 0) {
      results.push_back(args[info.written_inputs[r]]);
      k += plan.output_counts[r] < 0 ? 1 : plan.output_counts[r];
    } else if (plan.output_counts[r] < 0) {
      results.emplace_back(wrap(k++));
    } else {
      c10::List<at::Tensor> list;
      for (int j = 0; j < plan.output_counts[r]; ++j) list.push_back(wrap(k++));
      results.emplace_back(std::move(list));
    }
  }
}

// Does an operator that writes to several tensors write to one that another one is a copied view of? What it computes of the one
// would not be seen in the other.
bool writes_related(const OpInfo& info, const Inputs& in) {
  Tensors written;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (info.args[in.args[k]].written) written.push_back(in.tensors[k]);
  }
  return written.size() > 1 && any_related(written);
}

// As ATen does without kernels for lists.
void run_one_by_one(const OpInfo& info, Stack& stack) {
  constexpr auto kSlow = c10::DispatchKey::CompositeExplicitAutograd;
  TORCH_CHECK_NOT_IMPLEMENTED(info.op.hasKernelForDispatchKey(kSlow), info.name, ": writes to several views of one distributed tensor "
                              "whose parts had to move for them. Write to them one after another.");
  info.op.callBoxedForDispatchKey(kSlow, stack);
}

// What was decided of a call. Made now, it is kept once the check of its first results has not refuted it.
struct Decision {
  std::shared_ptr<const OpPlan> plan;
  bool made_now = false;
  CacheKey key;             // of one made now
  std::string description;  // of one made now
};

void keep(const Inputs& in, Decision& decision) {
  if (!decision.made_now) return;
  strategy_cache(in.mesh.world()).insert(decision.key, std::move(decision.plan), std::move(decision.description));
}

// From the cache, or made now.
Decision decide(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                const SpecPtr& target) {
  StrategyCache& cache = strategy_cache(in.mesh.world());
  CacheKey key = make_key(info, resolved, in, args, target.get());
  auto plan = cache.find(key);
  if (plan && (!plan->reduces_written || may_reduce_written(info, in))) return {std::move(plan), false, {}, {}};
  const OpCall call = make_call(info, in, args, target);
  LocalGuard guard;  // shape functions make plain tensors, also inside a MeshScope
  try {
    plan = propagate(call);
  } catch (const WrittenLayoutError&) {
    if (!may_reduce_written(info, in)) throw;
    auto reduce_first = std::make_shared<OpPlan>();
    reduce_first->reduces_written = true;
    plan = std::move(reduce_first);
  }
  std::string description = call.to_string();
  cache.check_open(description);
  return {std::move(plan), true, std::move(key), std::move(description)};
}

// Can what will be written to views whose parts had to move be taken to what they are views of?
void check_writes(const OpInfo& info, const Inputs& in) {
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (info.args[in.args[k]].written && t.defined() && layout_of(t).storage->origin) check_can_carry_back(t, info.name);
  }
}

// Some ranks may have written: nothing that was derived from these tensors before holds any more.
void note_failed_write(const OpInfo& info, const Inputs& in) {
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (!info.args[in.args[k]].written || !in.tensors[k].defined()) continue;
    layout_of(in.tensors[k]).storage->writes.fetch_add(1, std::memory_order_relaxed);
  }
}

void run_rule(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in, Stack& stack) {
  if (in.copied_views && writes_related(info, in)) return run_one_by_one(info, stack);
  const auto args = torch::jit::last(stack, info.args.size());
  SpecPtr target;
  if (resolved.rule && resolved.rule->uses_gradient_target && in_backward()) target = gradient_target();

  Decision decision = decide(info, resolved, in, args, target);
  if (decision.plan->reduces_written) {
    keep(in, decision);
    reduce_written(info, in);
    decision = decide(info, resolved, in, args, target);
  }

  const std::shared_ptr<const OpPlan> plan = decision.plan;
  std::vector<RankTensors> locals(in.tensors.size());
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (!in.tensors[k].defined()) continue;
    if (!plan->input_plans[k]) {
      const bool reads = !info.is_view && !info.args[in.args[k]].overwritten;
      locals[k] = (reads ? meta_of(in.tensors[k]) : memory_of(in.tensors[k])).locals;
      continue;
    }
    CommCause cause;
    if (!plan->input_plans[k]->is_local()) {
      cause = {info.name, arg_name(info, in, static_cast<int>(k)), module_path(in), /*implicit=*/true};
    }
    locals[k] = run_remembered(in.tensors[k], *plan->input_plans[k], cause);
  }

  std::vector<RankTensors> outputs;
  try {
    outputs = run_local(info, *plan, in, args, locals, decision.made_now);
  } catch (...) {
    note_failed_write(info, in);
    throw;
  }
  keep(in, decision);
  for (size_t a = 0; a < args.size(); ++a) {
    if (!info.args[a].written) continue;
    for (int k = in.slots[a].first; k < in.slots[a].first + in.slots[a].count; ++k) {
      if (in.tensors[k].defined()) note_write(in.tensors[k], info.name);
    }
  }
  if (info.is_view) c10::AutogradState::get_tls_state().set_view_replay_enabled(true);

  Stack results;
  push_results(info, *plan, in, std::move(outputs), args, results);
  torch::jit::drop(stack, info.args.size());
  for (auto& r : results) stack.push_back(std::move(r));
}

}  // namespace

at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause, bool async_op) {
  const DTensorMeta& meta = meta_of(t);
  if (meta.spec->placements() == to) return t;
  const auto plan = cached_plan(meta.spec, to);
  std::shared_ptr<CommWork> arriving;
  RankTensors locals = async_op ? begin_plan(plan, meta.locals, cause, arriving) : run_plan(*plan, meta.locals, cause);
  if (plan->steps.empty()) {  // a new name for the same parts, as along a mesh dim of size 1: still a tensor of its own
    LocalGuard guard;
    for (auto& local : locals) local = local.clone();
  }
  return make_dtensor(Spec::get(meta.spec->mesh(), to, in_own_memory(meta.spec->meta())), std::move(locals), meta.name, std::move(arriving));
}

// No c10::TypeError: Python's operators (`a + b`) swallow a TypeError with its text and say "unsupported operand".
void throw_plain_beside_distributed(std::string_view function, std::string_view argument, const at::Tensor& t,
                                    const DeviceMesh& mesh) {
  const bool loads = function == "aten::copy_";
  const LibraryCode* code = LibraryCode::current();  // which may have made `t` of what it was given
  const std::string called = code != nullptr ? code->called_operator() : std::string(function);
  const std::string caller = called != function ? " (called by " + called + ")" : "";
  TORCH_CHECK(false, std::string(function), caller, ": argument '", std::string(argument), "' is a plain tensor of shape ",
              t.sizes(), " next to a distributed one on ", mesh.to_string(),
              ". Distribute it first: distribute_tensor(t, mesh, {Replicate(), ...}). If the model makes it in forward, call the "
              "model in a MeshScope(mesh), where arange, full, zeros and other factories, but not torch::tensor and torch::empty, "
              "make distributed tensors. Or open an ImplicitReplication scope if every rank is known to hold the same values.",
              loads ? " To load whole values into parameters, call dtensor::load_state_dict(module, values) or dtensor::load()." : "");
}

at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh) {
  const at::Tensor shared = replicate_plain(t, mesh);
  LocalGuard guard;
  RankTensors locals = meta_of(shared).locals;
  for (auto& local : locals) local = local.clone();
  return make_dtensor(layout_of(shared).spec, std::move(locals));
}

namespace {

// Not t.item() alone: a TorchDispatchMode of Python, which gets a number in the place of `t`, could not call it.
NumberClass class_of_wrapped(const at::Tensor& t) {
  const c10::impl::ExcludeDispatchKeyGuard without_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return number_class(t.item());
}

}  // namespace

at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh) {
  LocalGuard guard;
  TensorMeta meta{Shape(t.sizes().begin(), t.sizes().end()), Shape(t.strides().begin(), t.strides().end()), t.scalar_type()};
  meta.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (meta.wrapped_number) meta.number = class_of_wrapped(t);
  RankTensors locals;
  for (int64_t rank : mesh.local_ranks()) {
    const c10::Device device = mesh.world().device(rank);
    if (meta.wrapped_number) {
      locals.push_back(t);  // kernels take it from the CPU; a copy would be a tensor like any other
    } else {
      locals.push_back(t.device() == device ? t.detach() : t.to(device));
    }
  }
  return make_dtensor(Spec::get(mesh, Placements(mesh.ndim(), Replicate()), meta), std::move(locals));
}

void dispatch(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  if (!has_dtensor(info, args)) return dispatch_plain(info, *stack);
  if (info.handler != nullptr) return info.handler(op, *stack);
  dispatch_by_rule(op, *stack);
}

void dispatch_by_rule(const c10::OperatorHandle& op, Stack& stack) {
  const OpInfo& info = op_info(op);
  const auto resolved = info.resolve();
  if (!resolved->rule && info.composite_implicit) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  }
  if (resolved->rule && has_empty_out(info, torch::jit::last(stack, info.args.size())) && run_functional_form(info, stack)) return;
  const Inputs in = gather_inputs(info, torch::jit::last(stack, info.args.size()));
  if (in.hooks_watched) check_hooks_ran(info, in);
  if (in.writes_plain) return write_to_plain(info, in.mesh, stack);
  if (in.copied_views) check_writes(info, in);
  if (!resolved->rule) return run_without_rule(info, in, stack);
  run_rule(info, *resolved, in, stack);
}

}  // namespace dtensor

TORCH_LIBRARY_IMPL(_, Fake, m) {
  static_assert(dtensor::kDTensorKey == c10::DispatchKey::Fake, "register the fallback at kDTensorKey");
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dtensor::dispatch>());
}
