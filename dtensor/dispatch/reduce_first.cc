#include "dtensor/dispatch/reduce_first.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/input_moves.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// A tensor in one of the lists.
struct Element {
  size_t arg;
  size_t number;
  at::Tensor tensor;

  const DeviceMesh& mesh() const { return spec_of(tensor)->mesh(); }
};

bool is_sum(const at::Tensor& t) {
  const auto adds = [](const Placement& p) { return p.is_partial() && is_linear(p.reduce_op()); };
  const Placements& placements = spec_of(t)->placements();
  return std::any_of(placements.begin(), placements.end(), adds);
}

std::vector<Element> partial_elements(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  std::vector<Element> elements;
  for (size_t a = 0; a < args.size(); ++a) {
    if (info.args[a].written || !args[a].isTensorList()) continue;
    const auto list = args[a].toTensorVector();
    for (size_t k = 0; k < list.size(); ++k) {
      if (is_dtensor(list[k]) && is_sum(list[k])) elements.push_back({a, k, list[k]});
    }
  }
  return elements;
}

struct Moved {
  std::vector<SpecPtr> specs;
  std::vector<RankTensors> parts;

  at::Tensor result(size_t k) const { return make_result(specs[k], parts[k]); }
};

// Redistributes elements of one mesh, each to its layout in `to`, in one collective, and caches the results.
Moved moved_together(const OpInfo& info, c10::ArrayRef<Element> elements, c10::ArrayRef<Placements> to) {
  Inputs in;
  Decision decision;
  in.mesh = elements.front().mesh();
  in.slots.resize(info.args.size());
  for (size_t k = 0; k < elements.size(); ++k) {
    const auto& [arg, number, tensor] = elements[k];
    ArgSlot& slot = in.slots[arg];
    if (slot.count++ == 0) slot = {info.args[arg].kind, static_cast<int>(in.tensors.size()), 1};
    in.tensors.push_back(tensor);
    in.arg_of.push_back(static_cast<uint16_t>(arg));
    const SpecPtr& spec = spec_of(tensor);
    decision.input_plans.push_back(cached_plan(spec, to[k], current_dispatch_scope().hints.limits));
    decision.computed.push_back(spec->with_placements(to[k]));
  }
  std::vector<RankTensors> parts = move_inputs(info, decision, in);
  return {{decision.computed.begin(), decision.computed.end()}, std::move(parts)};
}

// Elements of one mesh, reduced.
std::vector<at::Tensor> reduced_together(const OpInfo& info, c10::ArrayRef<Element> elements) {
  std::vector<Placements> to;
  for (const Element& element : elements) to.push_back(without_partials(spec_of(element.tensor)->placements()));
  const Moved moved = moved_together(info, elements, to);
  std::vector<at::Tensor> result;
  for (size_t k = 0; k < elements.size(); ++k) {
    at::Tensor reduced = find_reduced_copy(elements[k].tensor);
    result.push_back(reduced.defined() ? std::move(reduced) : moved.result(k));
  }
  return result;
}

struct GatherFn : torch::autograd::Function<GatherFn> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* ctx, at::TensorList tensors,
                                         const OpInfo* info, c10::ArrayRef<size_t> args, c10::ArrayRef<Placements> to) {
    std::vector<Element> elements;
    for (size_t k = 0; k < tensors.size(); ++k) elements.push_back({args[k], 0, tensors[k]});
    const Moved moved = moved_together(*info, elements, to);
    std::vector<at::Tensor> result, constant;
    for (size_t k = 0; k < tensors.size(); ++k) {
      result.push_back(moved.result(k));
      if (!tensors[k].requires_grad()) constant.push_back(result[k]);
    }
    if (!constant.empty()) ctx->mark_non_differentiable(constant);
    ctx->set_materialize_grads(false);
    return result;
  }

  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, std::vector<at::Tensor> grads) {
    grads.resize(grads.size() + 3);
    return grads;
  }
};

// Whether this is a forward call with keepdim = true on a Partial sum. Its result is most likely combined with `t`, as
// in a hand-written norm: x - x.mean(-1, true). Then `t` is reduced instead of the result, whatever the order of the
// statements.
bool is_likely_used_beside(const OpInfo& info, c10::ArrayRef<c10::IValue> args, const at::Tensor& t) {
  if (in_backward() || !is_sum(t)) return false;
  const auto keepdim = info.op.schema().argumentIndexWithName("keepdim");
  return keepdim && args[*keepdim].isBool() && args[*keepdim].toBool();
}

// The Partial `t`, reduced for that argument of the operator, and cached. Undefined, and nothing done, if it would not
// be cached.
at::Tensor reduce_first(const OpInfo& info, size_t arg, const at::Tensor& t) {
  const SpecPtr& spec = spec_of(t);
  const auto plan =
      cached_plan_within(spec, without_partials(spec->placements()), current_dispatch_scope().hints.limits);
  if (!plan || !will_be_cached(t, *plan)) return {};
  return reduced_together(info, Element{arg, 0, t}).front();
}

}  // namespace

void reduce_lists(const OpInfo& info, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  std::vector<Element> left = partial_elements(info, args);
  if (left.size() < 2) return;
  std::vector<std::vector<at::Tensor>> lists(args.size());
  for (const Element& element : left) {
    if (lists[element.arg].empty()) lists[element.arg] = args[element.arg].toTensorVector();
  }
  while (!left.empty()) {
    const auto is_other = [&](const Element& e) { return !(e.mesh() == left.front().mesh()); };
    const std::vector<Element> all = std::exchange(left, {});
    left.push_back(all.front());
    std::vector<Element> others;
    std::partition_copy(all.begin() + 1, all.end(), std::back_inserter(others), std::back_inserter(left), is_other);
    const std::vector<at::Tensor> reduced = reduced_together(info, left);
    for (size_t k = 0; k < left.size(); ++k) lists[left[k].arg][left[k].number] = reduced[k];
    left = std::move(others);
  }
  const size_t base = stack.size() - args.size();
  for (size_t a = 0; a < lists.size(); ++a) {
    if (!lists[a].empty()) stack[base + a] = std::move(lists[a]);
  }
}

std::vector<at::Tensor> gather_for_reuse(const OpInfo& info, c10::ArrayRef<size_t> args, at::TensorList tensors,
                                         c10::ArrayRef<Placements> to) {
  prepare_parameters(info, std::vector<c10::IValue>(tensors.begin(), tensors.end()));
  return GatherFn::apply(tensors, &info, args, to);
}

void use_copies(const OpInfo& info, c10::ArrayRef<c10::IValue> args, Inputs& in) {
  if (in.has_module_traits) use_gathered_parameters(info, in);
  if (info.is_view) return;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    at::Tensor& t = in.tensors[k];
    if (!t.defined() || info.args[in.arg_of[k]].written || !spec_of(t)->has_partial()) continue;
    at::Tensor reduced = find_reduced_copy(t);
    if (reduced.defined() && reports_reuse())
      report_reduced_copy(
          {info.name, arg_name(info, in, static_cast<int>(k)), module_of_call(in.tensors), /*implicit=*/true}, t);
    if (!reduced.defined() && is_likely_used_beside(info, args, t)) reduced = reduce_first(info, in.arg_of[k], t);
    if (!reduced.defined()) continue;
    t = std::move(reduced);
    count_otherwise();
  }
}

}  // namespace dtensor::internal
