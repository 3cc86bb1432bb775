// Optimizers and gradient scalers as one operator on lists: every rank runs it on its parts. Gradients and states are
// redistributed to the layout of their parameter; parameters may lie on several meshes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

// One list of the call.
struct List {
  size_t argument;
  std::string name;
  bool written = false;
  c10::ArrayRef<c10::IValue> given;  // by parameter; empty: not used in this call
  Tensors computed = {};             // the same in the layouts of their parameters
};

// A number, such as a step count or a scale, replicated.
at::Tensor whole(const c10::OperatorHandle& op, const std::string& argument, const at::Tensor& t) {
  if (!t.defined() || !is_dtensor(t) || spec_of(t)->is_replicated()) return t;
  return redistribute_below_autograd(t, Placements(spec_of(t)->mesh().ndim(), Replicate()),
                                     call_cause(op, argument, t));
}

// Valid as long as `t`.
const at::Tensor& local_of(const at::Tensor& t, size_t rank) {
  return t.defined() && is_dtensor(t) ? meta_for_read(t).locals.at(rank) : t;
}

// `t` in the layout of `param`, to compute on.
at::Tensor laid_out_as(const at::Tensor& param, const c10::OperatorHandle& op, const List& list, size_t i) {
  const at::Tensor& t = list.given[i].toTensor();
  const bool is_distributed = is_dtensor(t) && is_dtensor(param);
  if (is_distributed && spec_of(t) == spec_of(param)) return t;
  // A step is one number, also beside a parameter that is one.
  if (t.sizes() != param.sizes() || list.name == "state_steps") {
    TORCH_CHECK(t.numel() == 1, op.operator_name(), ": argument '", list.name, "[", i, "]' of shape ", t.sizes(),
                " does not fit its parameter, of shape ", param.sizes());
    return whole(op, list.name, t);
  }
  if (!is_dtensor(param) && !is_dtensor(t)) return t;
  TORCH_CHECK(is_distributed, op.operator_name(), ": argument '", is_dtensor(t) ? "self" : list.name, "[", i,
              "]' is a plain tensor next to a distributed one. Distribute it first: distribute_tensor(t, mesh, ",
              "{Replicate(), ...})");
  const Spec &own = *spec_of(t), &of_param = *spec_of(param);
  TORCH_CHECK(own.mesh() == of_param.mesh(), op.operator_name(), ": argument '", list.name, "[", i, "]' lies on ",
              own.mesh().to_string(), ", its parameter on ", of_param.mesh().to_string());
  if (own.placements() == of_param.placements()) return t;
  return redistribute_below_autograd(t, of_param.placements(), call_cause(op, list.name, t));
}

std::vector<List> lists_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  std::vector<List> lists;
  for (size_t a = 0; a < args.size(); ++a) {
    const auto& argument = op.schema().arguments()[a];
    if (!args[a].isTensorList()) continue;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    lists.push_back({a, argument.name(), written, args[a].toListRef()});
    const size_t n = lists.back().given.size();
    TORCH_CHECK(n == 0 || n == lists[0].given.size(), op.operator_name(), ": argument '", argument.name(), "' lists ",
                n, " tensors, '", lists[0].name, "' ", lists[0].given.size());
  }
  return lists;
}

// The operator on the parts of one rank of parameters `chosen`, which share a mesh or are plain. Plain numbers beside
// distributed parameters are copied to the device of the rank, as replicate_plain() does.
void run_on_rank(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, const std::vector<List>& lists,
                 const std::vector<size_t>& chosen, size_t rank) {
  std::vector<size_t> not_empty;
  for (const size_t i : chosen) {
    if (local_of(lists[0].computed[i], rank).numel() > 0) not_empty.push_back(i);
  }
  if (not_empty.empty()) return;
  Stack stack(args.begin(), args.end());
  const at::Tensor& param = lists[0].computed[not_empty.front()];
  const c10::Device device = local_of(param, rank).device();
  const auto given_to_rank = [&](const at::Tensor& t) {
    if (!is_dtensor(param) || !t.defined() || is_dtensor(t)) return local_of(t, rank);
    const LocalGuard guard;
    return t.to(device);
  };
  for (size_t a = 0; a < stack.size(); ++a) {
    if (!stack[a].isTensor()) continue;
    const at::Tensor t = stack[a].toTensor();
    // Kernels take a learning rate from host memory, too.
    const bool stays = op.schema().arguments()[a].name() == "lr" && t.is_cpu();
    stack[a] = stays ? local_of(t, rank) : given_to_rank(t);
  }
  for (const List& list : lists) {
    if (list.computed.empty()) continue;
    c10::List<at::Tensor> locals;
    locals.reserve(not_empty.size());
    for (const size_t i : not_empty) locals.push_back(given_to_rank(list.computed[i]));
    stack[list.argument] = std::move(locals);
  }
  LocalGuard guard;
  op.callBoxed(stack);
}

// Parameters that share a mesh, or are plain.
std::vector<std::vector<size_t>> by_mesh(const Tensors& params) {
  std::vector<std::vector<size_t>> groups;
  std::vector<const DeviceMesh*> meshes;
  for (size_t i = 0; i < params.size(); ++i) {
    const DeviceMesh* mesh = is_dtensor(params[i]) ? &spec_of(params[i])->mesh() : nullptr;
    const auto is_mesh = [&](const DeviceMesh* m) { return m == mesh || (m && mesh && *m == *mesh); };
    const size_t g = static_cast<size_t>(std::find_if(meshes.begin(), meshes.end(), is_mesh) - meshes.begin());
    if (g == groups.size()) {
      meshes.push_back(mesh);
      groups.emplace_back();
    }
    groups[g].push_back(i);
  }
  return groups;
}

// Of a call that failed: what it computed in place may be written in part.
void mark_all_written(const std::vector<List>& lists) {
  for (const List& list : lists) {
    for (size_t i = 0; list.written && i < list.given.size(); ++i) {
      const at::Tensor& given = list.given[i].toTensor();
      if (is_dtensor(given) && given.is_same(list.computed[i])) mark_written(*meta_without_sync(given).storage);
    }
  }
}

// _fused_adam_, _fused_adamw_, _fused_sgd_, _fused_adagrad_(self, grads, states..., *, numbers, grad_scale?,
// found_inf?).
void optimize(const c10::OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  std::vector<c10::IValue> args(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  std::vector<List> lists = lists_of(op, args);
  const Tensors params = args[lists.at(0).argument].toTensorVector();
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(!is_dtensor(params[i]) || !spec_of(params[i])->has_partial(), op.operator_name(), ": argument 'self[",
                i, "]' is Partial, so it has no elements to update; redistribute it first");
  }
  for (size_t a = 0; a < count; ++a) {
    if (args[a].isTensor()) args[a] = whole(op, op.schema().arguments()[a].name(), args[a].toTensor());
  }
  for (List& list : lists) {
    list.computed.reserve(list.given.size());
    for (size_t i = 0; i < list.given.size(); ++i) list.computed.push_back(laid_out_as(params[i], op, list, i));
  }
  try {
    for (const auto& group : by_mesh(params)) {
      const at::Tensor& first = params[group.front()];
      const size_t ranks = is_dtensor(first) ? meta_for_read(first).locals.size() : 1;
      for (size_t r = 0; r < ranks; ++r) run_on_rank(op, args, lists, group, r);
    }
  } catch (...) {
    mark_all_written(lists);
    throw;
  }
  const c10::IValue& scale = Arguments(op, stack)["grad_scale"];
  const bool scales = scale.isTensor() && scale.toTensor().defined();  // gradients change, too
  for (const List& list : lists) {
    for (size_t i = 0; list.written && i < list.given.size(); ++i) {
      const at::Tensor& given = list.given[i].toTensor();
      if (!is_dtensor(given)) continue;
      if (given.is_same(list.computed[i])) {
        note_write(given, op.schema().name());
      } else if (list.name != "grads" || scales) {
        given.copy_(list.computed[i]);
      }
    }
  }
  torch::jit::drop(stack, count);
}

// Of the flag of local rank r for gradients like `of`: as `found`, on the rank's device.
at::TensorOptions flag_options(const at::Tensor& of, size_t r, const at::Tensor& found) {
  if (!is_dtensor(of)) return local_of(found, 0).options();
  const DeviceMesh& mesh = spec_of(of)->mesh();
  return at::TensorOptions(found.scalar_type()).device(mesh.world().device(mesh.local_ranks()[r]));
}

// The maximum of the ranks' `found_inf` over the ranks of `of`, on each of them.
RankTensors largest_of_all(const c10::OperatorHandle& op, const at::Tensor& of, const at::Tensor& found,
                           RankTensors of_ranks) {
  const DeviceMesh& mesh = spec_of(of)->mesh();
  const at::Tensor all = make_dtensor(
      Spec::get(mesh, Placements(mesh.ndim(), Partial(ReduceOp::kMax)), found.sizes(), found.scalar_type()),
      std::move(of_ranks));
  return meta_for_read(whole(op, "found_inf", all)).locals;
}

// Writes the result for gradients like `of` to `found`, which may be plain, or on another mesh.
void record_found(const c10::OperatorHandle& op, at::Tensor found, const RankTensors& of_ranks, const at::Tensor& of) {
  if (!is_dtensor(found)) {
    LocalGuard guard;
    if (!of_ranks.empty()) found.copy_(at::maximum(found, of_ranks[0].to(found.device())));
    return;
  }
  const DeviceMesh& mesh = spec_of(found)->mesh();
  if (is_dtensor(of)) {
    const DeviceMesh& of_mesh = spec_of(of)->mesh();
    for (const int64_t rank : mesh.ranks()) {
      TORCH_CHECK_NOT_IMPLEMENTED(of_mesh.contains(rank), op.operator_name(), ": argument 'found_inf' lies on ",
                                  mesh.to_string(), ", whose rank ", rank, " has no part of gradients on ",
                                  of_mesh.to_string(), ". Give found_inf to that mesh, or call once per mesh.");
    }
  }
  if (!of_ranks.empty()) found.copy_(at::maximum(found, replicate_plain(of_ranks[0], mesh)));
}

// _amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale): an infinity found on one rank is reported on
// all.
void unscale(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const Tensors gradients = args["self"].toTensorVector();
  const at::Tensor found = args.tensor("found_inf");
  const at::Tensor scale = whole(op, "inv_scale", args.tensor("inv_scale"));
  for (const auto& group : by_mesh(gradients)) {
    const at::Tensor& first = gradients[group.front()];
    const bool distributed = is_dtensor(first);
    const size_t ranks = distributed ? meta_for_read(first).locals.size() : 1;
    RankTensors of_ranks;
    for (size_t r = 0; r < ranks; ++r) {
      LocalGuard guard;
      std::map<c10::DeviceType, c10::List<at::Tensor>> locals;  // fully_shard() may keep some in host memory
      for (const size_t i : group) {
        const at::Tensor& local = local_of(gradients[i], r);
        if (local.numel() > 0) locals[local.device().type()].push_back(local);
      }
      of_ranks.push_back(at::zeros(found.sizes(), flag_options(first, r, found)));
      for (const auto& [type, list] : locals) {
        const c10::Device device = list.get(0).device();
        const at::Tensor of_list = of_ranks.back().to(device, of_ranks.back().scalar_type(), false, /*copy=*/true);
        Stack call = {list, of_list, local_of(scale, r).to(device)};
        op.callBoxed(call);
        of_ranks.back().copy_(at::maximum(of_ranks.back(), of_list.to(of_ranks.back().device())));
      }
    }
    if (distributed) {
      for (const size_t i : group) note_write(gradients[i], op.schema().name());
      of_ranks = largest_of_all(op, first, found, std::move(of_ranks));
    }
    record_found(op, found, of_ranks, first);
  }
  torch::jit::drop(stack, op.schema().arguments().size());
}

}  // namespace

const RuleFamily fused_optimizer_handlers("fused_optimizers", [](RuleRegistry& registry) {
  for (const char* op : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"})
    registry.add_handler(op, optimize);
  registry.add_handler("aten::_amp_foreach_non_finite_check_and_unscale_", unscale);
});

}  // namespace dtensor::internal
