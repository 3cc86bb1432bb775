// Pooling where the spatial dims are sharded: each rank fetches the halo that its windows reach, and the layout stays.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/avg_pool3d_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/halo/reduced_argument.h"
#include "ops/halo/windows.h"
#include "ops/spatial/window_arguments.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "placement/placement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

struct Pooling {
  std::vector<WindowDim> windows;  // of the last dims

  std::vector<int64_t> list(int64_t WindowDim::*field) const {
    std::vector<int64_t> values;
    for (const WindowDim& w : windows) values.push_back(w.*field);
    return values;
  }
  std::vector<HaloDim> halo_dims() const { return halo_dims_of(windows); }
};

// nullopt: invalid arguments, and the operator itself reports the error.
std::optional<Pooling> pooling_of(const Arguments& args, at::IntArrayRef sizes, size_t n) {
  const std::vector<int64_t> kernel = args["kernel_size"].toIntVector(), padding = args["padding"].toIntVector();
  std::vector<int64_t> stride = args["stride"].toIntVector(), dilation = {1};
  if (stride.empty()) stride = kernel;
  if (args["dilation"].isIntList()) dilation = args["dilation"].toIntVector();
  for (const size_t given : {kernel.size(), padding.size(), stride.size(), dilation.size()}) {
    if (given != 1 && given != n) return std::nullopt;
  }
  if (sizes.size() < n + 1 || sizes.size() > n + 2) return std::nullopt;
  const bool ceil = args["ceil_mode"].toBool();
  Pooling pooling;
  for (size_t k = 0; k < n; ++k) {
    const auto d = static_cast<int64_t>(sizes.size() - n + k);
    WindowDim w{d, sizes[d], 0, along(kernel, k), along(stride, k), along(padding, k), along(dilation, k)};
    if (w.size < 1 || w.stride < 1 || w.dilation < 1 || w.padding < 0 || w.padding > w.size / 2) return std::nullopt;
    const int64_t room = w.elements + 2 * w.padding - w.span() + (ceil ? w.stride - 1 : 0);
    if (room < 0) return std::nullopt;
    w.count = room / w.stride + 1;
    if (ceil && (w.count - 1) * w.stride >= w.elements + w.padding) --w.count;
    pooling.windows.push_back(w);
  }
  return pooling;
}

// Whether the pooled dims are sharded, and each rank has one run of them.
bool is_shared(const at::Tensor& t, const std::optional<Pooling>& pooling) {
  return pooling && is_dtensor(t) && t.numel() > 0 &&
         !cutting_mesh_dims(*spec_of(t), pooling->list(&WindowDim::dim)).empty() &&
         has_runs_along(*spec_of(t), pooling->list(&WindowDim::dim));
}

SpecPtr pooled(const SpecPtr& source, const Pooling& pooling, const Decision* rule) {
  const Placements placements = as_addends(source->placements());
  if (rule != nullptr) return rule->outputs[0]->with_placements(placements);
  Shape sizes = source->sizes();
  for (const WindowDim& w : pooling.windows) sizes[w.dim] = w.count;
  return Spec::get(source->mesh(), placements, at::IntArrayRef(sizes.data(), sizes.size()), source->dtype());
}

std::shared_ptr<const HaloDecision> decide_forward(const c10::OperatorHandle& op, const Stack& stack,
                                                   const at::Tensor& self, const Pooling& pooling) {
  return decide_halo(op, stack, self, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = pooled(spec_of(self), pooling, rule);
    return HaloChoice{{spec_of(self), result, pooling.halo_dims()}, result};
  });
}

// For self's gradient, which gets the layout `given` of the result's.
std::shared_ptr<const HaloDecision> decide_backward(const c10::OperatorHandle& op, const Stack& stack,
                                                    const SpecPtr& given, const Spec& self, const Pooling& pooling) {
  return decide_halo(op, stack, /*source=*/{}, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const Placements placements = as_addends(given->placements());
    const SpecPtr result = rule != nullptr
                               ? rule->outputs[0]->with_placements(placements)
                               : Spec::get(given->mesh(), placements,
                                           at::IntArrayRef(self.sizes().data(), self.sizes().size()), given->dtype());
    return HaloChoice{{result, given, pooling.halo_dims()}, result};
  });
}

// Kernels reject tensors that are empty along a pooled dim.
bool has_windows(const Shape& result) { return std::find(result.begin(), result.end(), 0) == result.end(); }

// ------------------------------------------------------------ max

// Flat indices into the last dims of the whole tensor, and into the rank's box of it.
struct BoxOf {
  const Pooling& pooling;
  const LocalLayout& result;  // the rank's windows

  int64_t begin(size_t k) const {  // of the box, in elements
    const WindowDim& w = pooling.windows[k];
    return w.reach(result.dims[w.dim]).begin - w.padding;
  }
  int64_t size(size_t k) const {
    const WindowDim& w = pooling.windows[k];
    return w.reach(result.dims[w.dim]).size;
  }
  // A window in which all values are the lowest number returns the index of its first element that is not padding.
  at::Tensor to_whole(at::Tensor flat) const {
    at::Tensor whole;
    int64_t stride = 1;
    for (size_t k = pooling.windows.size(); k-- > 0;) {
      const int64_t n = pooling.windows[k].elements;
      const at::Tensor at = flat.remainder(size(k)).add(begin(k)).clamp(0, n - 1).mul(stride);
      whole = whole.defined() ? whole + at : at;
      flat = flat.floor_divide(size(k));
      stride *= n;
    }
    return whole;
  }
  at::Tensor to_box(at::Tensor flat) const {
    at::Tensor box;
    int64_t stride = 1;
    for (size_t k = pooling.windows.size(); k-- > 0;) {
      const int64_t n = pooling.windows[k].elements;
      const at::Tensor at = flat.remainder(n).sub(begin(k)).mul(stride);
      box = box.defined() ? box + at : at;
      flat = flat.floor_divide(n);
      stride *= size(k);
    }
    return box;
  }
};

// max_pool{2,3}d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode).
template <int kDims>
void max_pool(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor given = args.tensor("self");
  const auto pooling = pooling_of(args, given.sizes(), kDims);
  if (args.out().defined() || !is_shared(given, pooling) || !given.is_floating_point())
    return dispatch_by_rule(op, stack);
  const at::Tensor self = reduced_argument(op, args, "self", Passing::kNone);
  const auto decision = decide_forward(op, stack, self, *pooling);
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const double lowest = -std::numeric_limits<double>::infinity();
  RankTensors boxes = fetch_boxes(*decision, self, lowest, call_cause(op, "self", self));
  RankTensors values, indices;
  {
    LocalGuard guard;
    const auto kernel = pooling->list(&WindowDim::size), stride = pooling->list(&WindowDim::stride),
               dilation = pooling->list(&WindowDim::dilation);
    const std::vector<int64_t> none(kDims, 0);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const LocalLayout part = decision->result->local_layout(static_cast<int64_t>(i));
      if (!has_windows(part.sizes())) {
        values.push_back(boxes[i].new_empty(part.sizes()));
        indices.push_back(values.back().to(at::kLong));
        continue;
      }
      auto [value, index] = kDims == 2 ? at::max_pool2d_with_indices(boxes[i], kernel, stride, none, dilation)
                                       : at::max_pool3d_with_indices(boxes[i], kernel, stride, none, dilation);
      values.push_back(value);
      indices.push_back(BoxOf{*pooling, part}.to_whole(index));
    }
  }
  const SpecPtr& spec = decision->result;
  TensorMeta of_indices = spec->meta();
  of_indices.dtype = at::kLong;
  return_tensors(op, stack,
                 {make_dtensor(spec, std::move(values)),
                  make_dtensor(Spec::get(spec->mesh(), spec->placements(), of_indices), std::move(indices))});
}

// max_pool{2,3}d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices).
template <int kDims>
void max_pool_backward(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto pooling = pooling_of(args, self.sizes(), kDims);
  at::Tensor grad = args.tensor("grad_output"), indices = args.tensor("indices");
  if (args.out().defined() || !is_dtensor(self) || !is_dtensor(indices) || !is_shared(grad, pooling))
    return dispatch_by_rule(op, stack);
  grad = reduced_argument(op, args, "grad_output", Passing::kLinear);
  const auto decision = decide_backward(op, stack, spec_of(grad), *spec_of(self), *pooling);
  if (!decision->plan) return dispatch_by_rule(op, stack);
  indices = redistribute_below_autograd(indices, without_partials(spec_of(grad)->placements()),
                                        call_cause(op, "indices", indices));
  RankTensors pieces;
  {
    LocalGuard guard;
    const RankTensors &grads = meta_for_read(grad).locals, &places = meta_for_read(indices).locals;
    for (size_t i = 0; i < grads.size(); ++i) {
      const LocalLayout part = spec_of(grad)->local_layout(static_cast<int64_t>(i));
      at::Tensor piece = grads[i].new_zeros(decision->plan->ranks[i].wanted);
      if (grads[i].numel() > 0) {
        const int64_t first = grads[i].dim() - kDims;
        const at::Tensor flat = BoxOf{*pooling, part}.to_box(places[i]).flatten(first);
        piece.flatten(first).scatter_add_(-1, flat, grads[i].flatten(first));
      }
      pieces.push_back(std::move(piece));
    }
  }
  RankTensors locals = add_back_halos(*decision->plan, pieces, call_cause(op, "grad_output", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

// ------------------------------------------------------------ averages

// Divides the sum of each of a rank's windows by its count.
at::Tensor divided_by_counts(at::Tensor sums, const Pooling& pooling, const LocalLayout& result,
                             const Arguments& args) {
  if (!args["divisor_override"].isNone()) return sums.div(args["divisor_override"].toInt());
  const bool with_padding = args["count_include_pad"].toBool();
  at::Tensor counts;
  for (const WindowDim& w : pooling.windows) {
    const IndexRange run = result.dims[w.dim].empty() ? IndexRange{} : result.dims[w.dim][0];
    at::Tensor begin =
        at::arange(run.begin, run.begin + run.size, sums.options().dtype(at::kLong)).mul(w.stride).sub(w.padding);
    at::Tensor end = (begin + w.size).clamp_max(w.elements + w.padding);
    if (!with_padding) {
      begin = begin.clamp_min(0);
      end = end.clamp_max(w.elements);
    }
    std::vector<int64_t> shape(static_cast<size_t>(sums.dim()), 1);
    shape[w.dim] = run.size;
    const at::Tensor count = (end - begin).view(shape);
    counts = counts.defined() ? counts * count : count;
  }
  return sums.div(counts);
}

// avg_pool{2,3}d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override).
template <int kDims>
void avg_pool(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor given = args.tensor("self");
  const auto pooling = pooling_of(args, given.sizes(), kDims);
  if (args.out().defined() || !is_shared(given, pooling) || !given.is_floating_point())
    return dispatch_by_rule(op, stack);
  const at::Tensor self = reduced_argument(op, args, "self", Passing::kLinear);
  const auto decision = decide_forward(op, stack, self, *pooling);
  if (!decision->plan) return dispatch_by_rule(op, stack);
  RankTensors boxes = fetch_boxes(*decision, self, 0, call_cause(op, "self", self));
  {
    LocalGuard guard;
    const auto kernel = pooling->list(&WindowDim::size), stride = pooling->list(&WindowDim::stride);
    for (size_t i = 0; i < boxes.size(); ++i) {
      const LocalLayout part = decision->result->local_layout(static_cast<int64_t>(i));
      if (!has_windows(part.sizes())) {
        boxes[i] = boxes[i].new_empty(part.sizes());
        continue;
      }
      const at::Tensor box = boxes[i].to(widened(self.scalar_type()));
      const at::Tensor sums = kDims == 2 ? at::avg_pool2d(box, kernel, stride, 0, false, true, /*divisor_override=*/1)
                                         : at::avg_pool3d(box, kernel, stride, 0, false, true, /*divisor_override=*/1);
      boxes[i] = divided_by_counts(sums, *pooling, part, args).to(self.scalar_type());
    }
  }
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(boxes))});
}

// avg_pool{2,3}d_backward(grad_output, self, ...), where only the size of self matters.
template <int kDims>
void avg_pool_backward(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto pooling = pooling_of(args, self.sizes(), kDims);
  at::Tensor grad = args.tensor("grad_output");
  if (args.out().defined() || !is_dtensor(self) || !is_shared(grad, pooling)) return dispatch_by_rule(op, stack);
  grad = reduced_argument(op, args, "grad_output", Passing::kLinear);
  const auto decision = decide_backward(op, stack, spec_of(grad), *spec_of(self), *pooling);
  if (!decision->plan) return dispatch_by_rule(op, stack);
  RankTensors pieces;
  {
    LocalGuard guard;
    const RankTensors& grads = meta_for_read(grad).locals;
    const auto kernel = pooling->list(&WindowDim::size), stride = pooling->list(&WindowDim::stride);
    for (size_t i = 0; i < grads.size(); ++i) {
      const LocalLayout part = spec_of(grad)->local_layout(static_cast<int64_t>(i));
      const at::Tensor box = grads[i].new_zeros(decision->plan->ranks[i].wanted, widened(grad.scalar_type()));
      if (!has_windows(part.sizes())) {
        pieces.push_back(box.to(grad.scalar_type()));
        continue;
      }
      const at::Tensor g = divided_by_counts(grads[i].to(box.scalar_type()), *pooling, part, args);
      const at::Tensor piece = kDims == 2 ? at::avg_pool2d_backward(g, box, kernel, stride, 0, false, true, 1)
                                          : at::avg_pool3d_backward(g, box, kernel, stride, 0, false, true, 1);
      pieces.push_back(piece.to(grad.scalar_type()));
    }
  }
  RankTensors locals = add_back_halos(*decision->plan, pieces, call_cause(op, "grad_output", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

}  // namespace

const RuleFamily halo_pooling_handlers("halo_pooling", [](RuleRegistry& registry) {
  registry.add_handler("aten::max_pool2d_with_indices", max_pool<2>);
  registry.add_handler("aten::max_pool3d_with_indices", max_pool<3>);
  registry.add_handler("aten::max_pool2d_with_indices_backward", max_pool_backward<2>);
  registry.add_handler("aten::max_pool3d_with_indices_backward", max_pool_backward<3>);
  registry.add_handler("aten::avg_pool2d", avg_pool<2>);
  registry.add_handler("aten::avg_pool3d", avg_pool<3>);
  registry.add_handler("aten::avg_pool2d_backward", avg_pool_backward<2>);
  registry.add_handler("aten::avg_pool3d_backward", avg_pool_backward<3>);
});

}  // namespace dtensor::internal
