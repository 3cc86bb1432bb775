// Views of a part of a split dim: slice, select, unfold, and their backward. The view's parts have to move, so it is a
// copied view (copied_view.h) as by the rules; but ranks fetch only what they lack, and the dim stays split. A slice
// with no more indices than ranks is replicated.
#include <ATen/core/Tensor.h>
#include <ATen/ops/unfold_backward.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/view_call.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/halo/windows.h"
#include "ops/stencil/lazy_slices.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "placement/placement.h"
#include "placement/with_dim.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The indices start, start + step, ... of a dim.
struct Taken {
  int64_t dim = 0, start = 0, count = 0, step = 1;
};

// For slice.Tensor and slice_backward. nullopt: invalid arguments, and the operator itself reports the error.
std::optional<Taken> taken_by_slice(const Arguments& args, at::IntArrayRef sizes) {
  const auto dim = valid_dim(args["dim"], static_cast<int64_t>(sizes.size()));
  const int64_t step = args["step"].toInt();
  if (!dim || step < 1) return std::nullopt;
  const int64_t n = sizes[*dim];
  const auto bound = [&](const c10::IValue& value, int64_t missing) {
    int64_t at = value.isNone() ? missing : value.toInt();
    if (at < 0) at += n;
    return std::clamp<int64_t>(at, 0, n);
  };
  const int64_t start = bound(args["start"], 0), end = std::max(start, bound(args["end"], n));
  return Taken{*dim, start, (end - start + step - 1) / step, step};
}

std::optional<Taken> taken_by_select(const Arguments& args, at::IntArrayRef sizes) {
  const auto dim = valid_dim(args["dim"], static_cast<int64_t>(sizes.size()));
  if (!dim || !args["index"].isInt()) return std::nullopt;
  const int64_t n = sizes[*dim], index = args["index"].toInt();
  if (index < -n || index >= n) return std::nullopt;
  return Taken{*dim, index < 0 ? index + n : index, 1, 1};
}

int64_t num_ranks(const Spec& spec, const std::vector<int64_t>& mesh_dims) {
  int64_t n = 1;
  for (const int64_t m : mesh_dims) n *= spec.mesh().size(m);
  return n;
}

Placements whole_along(Placements placements, const std::vector<int64_t>& mesh_dims) {
  for (const int64_t m : mesh_dims) placements[m] = Replicate();
  return placements;
}

SpecPtr resized(const SpecPtr& spec, const Placements& placements, int64_t dim, int64_t size) {
  Shape sizes = spec->sizes();
  sizes[dim] = size;
  return Spec::get(spec->mesh(), placements, at::IntArrayRef(sizes.data(), sizes.size()), spec->dtype());
}

// A view of self whose parts moved along `cutting`.
at::Tensor moved_view(const c10::OperatorHandle& op, Stack& stack, const std::vector<int64_t>& cutting,
                      const SpecPtr& result, RankTensors locals) {
  const std::vector<c10::IValue> args(torch::jit::last(stack, op.schema().arguments().size()).vec());
  const Placements computed = whole_along(spec_of(args[0].toTensor())->placements(), cutting);
  return make_view_of({op, args, 0, 0, computed}, result, std::move(locals), 0, /*moved=*/true);
}

// The mesh dims that cut the sliced dim; empty: no parts move, or halos do not apply.
std::vector<int64_t> cutting_of(const at::Tensor& t, const std::optional<Taken>& taken, int64_t size) {
  if (!is_dtensor(t) || !taken || taken->count == 0 ||
      sliced(taken->start, taken->count, taken->step).is_identity(size))
    return {};
  return cutting_mesh_dims(*spec_of(t), {taken->dim});
}

// The exchange of an operator along a dim that `cutting` cuts. Null: the operator follows its rule.
std::shared_ptr<const HaloDecision> decide_exchange(const c10::OperatorHandle& op, const Stack& stack,
                                                    const std::vector<int64_t>& cutting, const HaloChooser& choose) {
  if (cutting.empty()) return nullptr;
  auto decision = decide_halo(op, stack, choose);
  return decision->plan ? decision : nullptr;
}

// slice.Tensor(self, dim, start, end, step), select.int(self, dim, index).
template <bool kSelect>
void take_part(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto taken = kSelect ? taken_by_select(args, self.sizes()) : taken_by_slice(args, self.sizes());
  const std::vector<int64_t> cutting = cutting_of(self, taken, taken ? self.size(taken->dim) : 0);
  const auto decision = decide_exchange(op, stack, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr& source = spec_of(self);
    const bool few = kSelect || taken->count <= num_ranks(*source, cutting);
    Placements placements = as_addends(source->placements());
    if (few) placements = whole_along(std::move(placements), cutting);
    const HaloDim dim{taken->dim, sliced(taken->start, taken->count, taken->step), {}};
    const HaloRequest request{source, resized(source, placements, taken->dim, taken->count), {dim}};
    if (kSelect) {
      for (Placement& p : placements) {
        if (!p.is_sharded() || p.dim() < taken->dim) continue;
        p = p.dim() == taken->dim ? Replicate() : with_dim(p, p.dim() - 1);  // a single rank has the index
      }
    }
    return HaloChoice{request, rule->outputs[0]->with_placements(placements)};
  });
  if (!decision) return dispatch_by_rule(op, stack);
  const at::Tensor view = make_lazy_slice({op, self, decision->result, taken->start * self.stride(taken->dim), cutting,
                                           decision->plan, kSelect ? taken->dim : -1, call_cause(op, "self", self)});
  return_tensors(op, stack, {view});
}

// slice_backward(grad_output, input_sizes, dim, start, end, step).
void slice_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor grad = args.tensor("grad_output");
  const std::vector<int64_t> sizes = args["input_sizes"].toIntVector();
  const auto taken = taken_by_slice(args, sizes);
  if (args.out().defined()) return dispatch_by_rule(op, stack);
  const std::vector<int64_t> cutting = cutting_of(grad, taken, taken ? sizes[taken->dim] : 0);
  const auto decision = decide_exchange(op, stack, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr& given = spec_of(grad);
    const SpecPtr result = rule->outputs[0]->with_placements(as_addends(given->placements()));
    const HaloDim dim{taken->dim, sliced(taken->start, taken->count, taken->step), {}};
    return HaloChoice{{result, given, {dim}}, result};
  });
  if (!decision) return dispatch_by_rule(op, stack);
  RankTensors locals = add_back_halos(*decision->plan, meta_for_read(grad).locals, call_cause(op, "grad_output", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

// ------------------------------------------------------------ unfold: windows of a dim

std::optional<WindowDim> windows_of(const c10::IValue& dim, at::IntArrayRef sizes, int64_t size, int64_t step) {
  const auto d = valid_dim(dim, static_cast<int64_t>(sizes.size()));
  if (!d || size < 1 || step < 1 || size > sizes[*d]) return std::nullopt;
  return WindowDim{
      .dim = *d, .elements = sizes[*d], .count = (sizes[*d] - size) / step + 1, .size = size, .stride = step};
}

// unfold(self, dimension, size, step).
void unfold(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto windows = windows_of(args["dimension"], self.sizes(), args["size"].toInt(), args["step"].toInt());
  const SpecPtr& source = spec_of(self);
  const bool has_windows = windows && self.numel() > 0 && has_runs_along(*source, {windows->dim});
  const auto cutting = has_windows ? cutting_mesh_dims(*source, {windows->dim}) : std::vector<int64_t>();
  const auto decision = decide_exchange(op, stack, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = rule->outputs[0]->with_placements(as_addends(source->placements()));
    return HaloChoice{{source, result, {windows->halo_dim()}}, result};
  });
  if (!decision) return dispatch_by_rule(op, stack);
  RankTensors locals = fetch_halos(*decision->plan, meta_for_read(self).locals, 0, call_cause(op, "self", self));
  {
    LocalGuard guard;
    for (size_t i = 0; i < locals.size(); ++i) {
      const Shape sizes = decision->result->local_shape(static_cast<int64_t>(i));
      locals[i] = sizes[windows->dim] > 0 ? locals[i].unfold(windows->dim, windows->size, windows->stride)
                                          : locals[i].new_empty(at::IntArrayRef(sizes.data(), sizes.size()));
    }
  }
  return_tensors(op, stack, {moved_view(op, stack, cutting, decision->result, std::move(locals))});
}

// unfold_backward(grad_in, input_sizes, dim, size, step).
void unfold_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor grad = args.tensor("grad_in");
  const std::vector<int64_t> sizes = args["input_sizes"].toIntVector();
  const auto windows = windows_of(args["dim"], sizes, args["size"].toInt(), args["step"].toInt());
  if (args.out().defined() || !is_dtensor(grad) || !windows || grad.numel() == 0) return dispatch_by_rule(op, stack);
  const SpecPtr& given = spec_of(grad);
  bool last_is_cut = false;  // the elements of a window
  for (const Placement& p : given->placements()) last_is_cut = last_is_cut || p.is_sharded_on(given->ndim() - 1);
  const bool has_windows =
      has_runs_along(*given, {windows->dim}) && !last_is_cut && !has_nonlinear_partial(given->placements());
  const auto cutting = has_windows ? cutting_mesh_dims(*given, {windows->dim}) : std::vector<int64_t>();
  const auto decision = decide_exchange(op, stack, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = rule->outputs[0]->with_placements(as_addends(given->placements()));
    return HaloChoice{{result, given, {windows->halo_dim()}}, result};
  });
  if (!decision) return dispatch_by_rule(op, stack);
  RankTensors pieces;
  {
    LocalGuard guard;
    const RankTensors& locals = meta_for_read(grad).locals;
    for (size_t i = 0; i < locals.size(); ++i) {
      const Shape& wanted = decision->plan->ranks[i].wanted;
      const at::IntArrayRef box(wanted.data(), wanted.size());
      pieces.push_back(locals[i].numel() == 0
                           ? locals[i].new_zeros(box)
                           : at::unfold_backward(locals[i], box, windows->dim, windows->size, windows->stride));
    }
  }
  RankTensors locals = add_back_halos(*decision->plan, pieces, call_cause(op, "grad_in", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

}  // namespace

const RuleFamily halo_slices_handlers("halo_slices", [](RuleRegistry& registry) {
  registry.add_handler("aten::slice.Tensor", take_part<false>);
  registry.add_handler("aten::select.int", take_part<true>);
  registry.add_handler("aten::slice_backward", slice_backward);
  registry.add_handler("aten::unfold", unfold);
  registry.add_handler("aten::unfold_backward", unfold_backward);
});

}  // namespace dtensor::internal
