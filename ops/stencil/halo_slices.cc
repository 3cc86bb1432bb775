// unfold, which takes windows of a split dim, and the backward of unfold and of slices. Ranks fetch, or send back, only
// what the other lacks. Slices themselves: lazy_slices.cc.
#include <ATen/core/Tensor.h>
#include <ATen/ops/unfold_backward.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/view_call.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/halo/windows.h"
#include "ops/stencil/lazy_slices.h"
#include "ops/support/arguments.h"
#include "placement/placement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// A view of self whose parts moved along `cutting`.
at::Tensor moved_view(const c10::OperatorHandle& op, Stack& stack, const std::vector<int64_t>& cutting,
                      const SpecPtr& result, RankTensors locals) {
  const std::vector<c10::IValue> args(torch::jit::last(stack, op.schema().arguments().size()).vec());
  Placements computed = spec_of(args[0].toTensor())->placements();
  for (const int64_t m : cutting) computed[m] = Replicate();
  return make_view_of({op, args, 0, 0, computed}, result, std::move(locals), 0, /*moved=*/true);
}

// The exchange of an operator along a dim that `cutting` cuts. `source` as for decide_halo(). Null: the
// operator follows its rule.
std::shared_ptr<const HaloDecision> decide_exchange(const c10::OperatorHandle& op, const Stack& stack,
                                                    const at::Tensor& source, const std::vector<int64_t>& cutting,
                                                    const HaloChooser& choose) {
  if (cutting.empty()) return nullptr;
  auto decision = decide_halo(op, stack, source, choose);
  return decision->plan ? decision : nullptr;
}

// slice_backward(grad_output, input_sizes, dim, start, end, step).
void slice_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor grad = args.tensor("grad_output");
  const std::vector<int64_t> sizes = args["input_sizes"].toIntVector();
  const auto taken = taken_by_slice(args, sizes);
  if (args.out().defined()) return dispatch_by_rule(op, stack);
  const bool may_lack = is_dtensor(grad) && taken;
  const auto cutting = may_lack ? cutting_mesh_dims(*spec_of(grad), {taken->dim}) : std::vector<int64_t>();
  const auto decision = decide_exchange(op, stack, {}, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
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
  const auto decision =
      decide_exchange(op, stack, self, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
        const SpecPtr result = rule->outputs[0]->with_placements(as_addends(source->placements()));
        return HaloChoice{{source, result, {windows->halo_dim()}}, result};
      });
  if (!decision) return dispatch_by_rule(op, stack);
  RankTensors locals = fetch_boxes(*decision, self, 0, call_cause(op, "self", self));
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
  const auto decision = decide_exchange(op, stack, {}, cutting, [&](const Decision* rule) -> std::optional<HaloChoice> {
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
  registry.add_handler("aten::slice_backward", slice_backward);
  registry.add_handler("aten::unfold", unfold);
  registry.add_handler("aten::unfold_backward", unfold_backward);
});

}  // namespace dtensor::internal
