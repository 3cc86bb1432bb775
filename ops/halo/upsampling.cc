// Upsampling of sharded dims by a whole factor: each rank fetches the elements from which its part of the result is
// interpolated, and the layout stays. Where sizes divide, nearest neighbours move nothing. A dim that keeps its size
// moves nothing: ATen copies it, also with align_corners. Other factors, align_corners and antialiasing follow the
// rule.
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/accumulate.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/halo/reduced_argument.h"
#include "ops/halo/windows.h"
#include "ops/support/arguments.h"
#include "placement/placement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Argument names of the scale factors along the last dims.
const char* factor_name(size_t dims, size_t k) {
  constexpr std::array<const char*, 3> kNames = {"scales_d", "scales_h", "scales_w"};
  return dims == 1 ? "scales" : kNames.at(kNames.size() - dims + k);
}

// ATen finds the nearest element in single precision, which for some factors (41) and for millions of places gives the
// one before or after. A rank must find the same element in its part as ATen in the whole.
bool finds_nearest(int64_t factor, int64_t places) {
  constexpr int64_t kFew = int64_t{1} << 22;
  return factor <= 2 ||
         (static_cast<double>(1.0F / static_cast<float>(factor)) * static_cast<double>(factor) >= 1 && places < kFew);
}

// The sharded dims of `split`, which is the input or the result. `reach`: how many further elements on either side a
// place is interpolated from. nullopt: no such dims, or not by a whole factor, or invalid arguments, which the operator
// itself reports.
std::optional<std::vector<SpreadDim>> shared_dims(const Arguments& args, const Spec& split, at::IntArrayRef input,
                                                  int64_t reach) {
  const std::vector<int64_t> output = args["output_size"].toIntVector();
  const size_t n = output.size();
  if (n < 1 || n > 3 || input.size() != n + 2 || split.ndim() != static_cast<int64_t>(n + 2)) return std::nullopt;
  const bool aligns = args["align_corners"].isBool() && args["align_corners"].toBool();
  std::vector<SpreadDim> dims;
  for (size_t k = 0; k < n; ++k) {
    const auto d = static_cast<int64_t>(k + 2);
    if (cutting_mesh_dims(split, {d}).empty()) continue;
    if (input[d] < 1 || output[k] < 1 || output[k] % input[d] != 0) return std::nullopt;
    const int64_t factor = output[k] / input[d];
    if (factor != 1 && aligns) return std::nullopt;
    const c10::IValue& given = args[factor_name(n, k)];
    if (given.isDouble() && given.toDouble() != static_cast<double>(factor)) return std::nullopt;
    if (reach == 0 && !finds_nearest(factor, output[k])) return std::nullopt;
    const int64_t needed = factor == 1 ? 0 : reach;  // by 1, every place has the element of its index
    dims.push_back({d, input[d], output[k], factor, -needed * factor, (2 * needed + 1) * factor});
  }
  if (dims.empty() || !has_runs_along(split, numbers_of(dims))) return std::nullopt;
  return dims;
}

// A rank's part of the result within the result of its box.
struct Crop {
  std::vector<int64_t> sizes;          // of the box's result, all dims
  std::vector<int64_t> before, after;  // per dim: this many places of it do not belong to the rank
  bool is_all = true;

  at::Tensor of(at::Tensor t) const {
    if (is_all) return t;
    for (size_t d = 0; d < sizes.size(); ++d)
      t = t.narrow(static_cast<int64_t>(d), before[d], sizes[d] - before[d] - after[d]);
    return t.contiguous();
  }
  at::Tensor among_zeros(const at::Tensor& t) const {
    if (is_all) return t;
    std::vector<int64_t> pad;
    for (size_t d = sizes.size(); d-- > 0;) pad.insert(pad.end(), {before[d], after[d]});
    return at::constant_pad_nd(t, pad);
  }
};

Crop crop_of(const std::vector<SpreadDim>& dims, const LocalLayout& part) {
  const Shape own = part.sizes();
  Crop crop{{own.begin(), own.end()}, std::vector<int64_t>(own.size(), 0), std::vector<int64_t>(own.size(), 0)};
  for (const SpreadDim& s : dims) {
    const IndexRange box = s.reach(part.dims[s.dim]);
    crop.sizes[s.dim] = box.size * s.stride;
    crop.before[s.dim] = part.dims[s.dim][0].begin - box.begin * s.stride;
    crop.after[s.dim] = crop.sizes[s.dim] - crop.before[s.dim] - own[s.dim];
    crop.is_all = crop.is_all && crop.sizes[s.dim] == own[s.dim];
  }
  return crop;
}

// Calls the operator on plain tensors, with `t` as its argument `name`.
at::Tensor call_on(const c10::OperatorHandle& op, const Stack& stack, const char* name, const at::Tensor& t,
                   const Crop& crop, const std::optional<Shape>& box = std::nullopt) {
  const auto given = torch::jit::last(stack, op.schema().arguments().size());
  Stack call(given.begin(), given.end());
  Arguments args(op, call);
  args.set(name, t);
  args.set("output_size", std::vector<int64_t>(crop.sizes.begin() + 2, crop.sizes.end()));
  if (box) args.set("input_size", std::vector<int64_t>(box->begin(), box->end()));
  op.callBoxed(call);
  return call.back().toTensor();
}

bool is_of_floats(const at::Tensor& t) { return is_dtensor(t) && t.is_floating_point() && t.numel() > 0; }

// upsample_*(self, output_size, ...).
template <int kReach>
void upsample(const c10::OperatorHandle& op, Stack& stack) {
  // The overload with a list of factors calls the others, above autograd.
  if (op.schema().overload_name() == "vec")
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  Arguments args(op, stack);
  if (args.out().defined() || !args["self"].isTensor() || !is_of_floats(args.tensor("self")))
    return dispatch_by_rule(op, stack);
  const auto dims = shared_dims(args, *spec_of(args.tensor("self")), args.tensor("self").sizes(), kReach);
  if (!dims) return dispatch_by_rule(op, stack);
  const at::Tensor self = reduced_argument(op, args, "self", Passing::kLinear);
  const SpecPtr& source = spec_of(self);
  const auto decision = decide_halo(op, stack, self, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = rule->outputs[0]->with_placements(as_addends(source->placements()));
    return HaloChoice{{source, result, halo_dims_of(*dims)}, result};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  RankTensors locals = boxes_of(*decision, self, 0, call_cause(op, "self", self));
  {
    LocalGuard guard;
    for (size_t i = 0; i < locals.size(); ++i) {
      const LocalLayout part = decision->result->local_layout(static_cast<int64_t>(i));
      const Shape own = part.sizes();
      if (c10::multiply_integers(own) == 0) {  // kernels reject it
        locals[i] = locals[i].new_empty(own);
        continue;
      }
      const Crop crop = crop_of(*dims, part);
      locals[i] = crop.of(call_on(op, stack, "self", locals[i], crop));
    }
  }
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

// upsample_*_backward(grad_output, output_size, input_size, ...).
template <int kReach>
void upsample_backward(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  if (args.out().defined() || !is_of_floats(args.tensor("grad_output"))) return dispatch_by_rule(op, stack);
  const std::vector<int64_t> input = args["input_size"].toIntVector();
  const auto dims = shared_dims(args, *spec_of(args.tensor("grad_output")), input, kReach);
  if (!dims) return dispatch_by_rule(op, stack);
  const at::Tensor grad = reduced_argument(op, args, "grad_output", Passing::kLinear);
  const SpecPtr& given = spec_of(grad);
  const auto decision = decide_halo(op, stack, /*source=*/{}, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = rule->outputs[0]->with_placements(as_addends(given->placements()));
    return HaloChoice{{result, given, halo_dims_of(*dims)}, result};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const HaloPlan& plan = *decision->plan;
  RankTensors pieces;
  {
    LocalGuard guard;
    const RankTensors& grads = meta_for_read(grad).locals;
    for (size_t i = 0; i < grads.size(); ++i) {
      const Shape& wanted = plan.ranks[i].wanted;
      if (grads[i].numel() == 0) {
        pieces.push_back(grads[i].new_zeros(wanted));
        continue;
      }
      const Crop crop = crop_of(*dims, given->local_layout(static_cast<int64_t>(i)));
      pieces.push_back(call_on(op, stack, "grad_output", crop.among_zeros(grads[i]), crop, wanted));
    }
  }
  RankTensors locals = back_from_boxes(plan, std::move(pieces), call_cause(op, "grad_output", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

template <int kReach>
void add_upsampling(RuleRegistry& registry, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    registry.add_handler("aten::" + name, upsample<kReach>);
    registry.add_handler("aten::" + name + "_backward", upsample_backward<kReach>);
  }
}

}  // namespace

const RuleFamily halo_upsampling_handlers("halo_upsampling", [](RuleRegistry& registry) {
  add_upsampling<0>(registry, {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
                               "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"});
  add_upsampling<1>(registry, {"upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"});
  add_upsampling<2>(registry, {"upsample_bicubic2d"});
});

}  // namespace dtensor::internal
