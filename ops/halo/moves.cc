// Operators that move elements along dims: roll, flip, padding and its backward. If such a dim is sharded, the layout
// stays: each rank fetches the elements that its part of the result needs and it does not hold.
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/roll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/halo/exchange.h"
#include "ops/halo/pad_prefetch.h"
#include "ops/halo/reduced_argument.h"
#include "ops/halo/roll.h"
#include "ops/halo/windows.h"
#include "ops/support/arguments.h"
#include "ops/support/movement.h"
#include "placement/placement.h"
#include "placement/valid_dim.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// How a call moves the elements of its tensor.
struct Move {
  std::vector<HaloDim> dims;
  at::Scalar fill = 0;
  Passing passing = Passing::kAll;
};
// nullopt: no such description exists, or the operator itself reports an error. `sizes`: of the moved tensor.
using Describe = std::optional<Move> (*)(const Arguments& args, at::IntArrayRef sizes);

// Only the dims along which elements move, ascending.
std::optional<Move> normalized(std::optional<Move> move, at::IntArrayRef sizes) {
  if (!move) return move;
  auto& dims = move->dims;
  dims.erase(
      std::remove_if(dims.begin(), dims.end(), [&](const HaloDim& d) { return d.map.is_identity(sizes[d.dim]); }),
      dims.end());
  std::sort(dims.begin(), dims.end(), [](const HaloDim& a, const HaloDim& b) { return a.dim < b.dim; });
  return move;
}

// ------------------------------------------------------------ what the operators do

std::optional<Move> roll(const Arguments& args, at::IntArrayRef sizes) {
  const std::vector<int64_t> shifts = args["shifts"].toIntVector();
  std::vector<int64_t> dims = args["dims"].toIntVector();
  const auto ndim = static_cast<int64_t>(sizes.size());
  if (dims.empty() && ndim == 1) dims = {0};  // else as one flat list
  const int64_t n = c10::multiply_integers(sizes);
  if (dims.empty() && shifts.size() == 1 && n > 0 && shifts[0] % n == 0) return Move();
  if (dims.empty() || dims.size() != shifts.size()) return std::nullopt;
  std::vector<int64_t> total(sizes.size(), 0);
  for (size_t k = 0; k < dims.size(); ++k) {
    const auto dim = valid_dim(dims[k], ndim);
    if (!dim) return std::nullopt;
    if (sizes[*dim] > 0) total[*dim] += shifts[k] % sizes[*dim];
  }
  Move move;
  for (int64_t d = 0; d < ndim; ++d) move.dims.push_back({d, rolled(sizes[d], total[d]), {}});
  return move;
}

std::optional<Move> flip(const Arguments& args, at::IntArrayRef sizes) {
  Move move;
  std::vector<bool> seen(sizes.size(), false);
  for (const int64_t d : args["dims"].toIntVector()) {
    const auto dim = valid_dim(d, static_cast<int64_t>(sizes.size()));
    if (!dim || seen[*dim]) return std::nullopt;
    seen[*dim] = true;
    move.dims.push_back({*dim, flipped(sizes[*dim]), {}});
  }
  return move;
}

// Pairs of numbers, those of the last dim first.
template <typename MakeMap>
std::optional<Move> pads(const std::vector<int64_t>& pad, at::IntArrayRef sizes, MakeMap make) {
  if (pad.size() % 2 != 0 || pad.size() / 2 > sizes.size()) return std::nullopt;
  Move move;
  for (size_t k = 0; k < pad.size() / 2; ++k) {
    const auto d = static_cast<int64_t>(sizes.size() - 1 - k);
    const int64_t n = sizes[d], before = pad[2 * k], after = pad[2 * k + 1];
    if (n + std::min<int64_t>(0, before) + std::min<int64_t>(0, after) < 0) return std::nullopt;
    const std::optional<IndexMap> map = make(n, before, after);
    if (!map) return std::nullopt;
    move.dims.push_back({d, *map, {}});
  }
  return move;
}

std::optional<Move> constant_pad(const Arguments& args, at::IntArrayRef sizes) {
  auto move = pads(args["pad"].toIntVector(), sizes,
                   [](int64_t n, int64_t before, int64_t after) { return std::optional(padded(n, before, after)); });
  if (!move) return move;
  move->fill = args["value"].toScalar();
  if (adds_places(args["pad"].toIntVector()) && !move->fill.equal(0)) move->passing = Passing::kNone;
  return move;
}

std::optional<Move> reflection_pad(const Arguments& args, at::IntArrayRef sizes) {
  return pads(args["padding"].toIntVector(), sizes, [](int64_t n, int64_t before, int64_t after) {
    const bool valid = before >= 0 && after >= 0 && before < n && after < n;
    return valid ? std::optional(reflected(n, before, after)) : std::nullopt;
  });
}

std::optional<Move> replication_pad(const Arguments& args, at::IntArrayRef sizes) {
  return pads(args["padding"].toIntVector(), sizes, [](int64_t n, int64_t before, int64_t after) {
    const bool valid = before >= 0 && after >= 0 && n > 0;
    return valid ? std::optional(replicated(n, before, after)) : std::nullopt;
  });
}

std::optional<Move> linear(std::optional<Move> move) {
  if (move) move->passing = Passing::kLinear;
  return move;
}
std::optional<Move> reflection_pad_backward(const Arguments& args, at::IntArrayRef sizes) {
  return linear(reflection_pad(args, sizes));
}
std::optional<Move> replication_pad_backward(const Arguments& args, at::IntArrayRef sizes) {
  return linear(replication_pad(args, sizes));
}

// ------------------------------------------------------------ the handlers

// The layout of the result, like that of the input.
SpecPtr result_of(const SpecPtr& given, const Decision* rule, const Shape& sizes) {
  const Placements placements = as_addends(given->placements());
  if (rule != nullptr) return rule->outputs[0]->with_placements(placements);
  return Spec::get(given->mesh(), placements, at::IntArrayRef(sizes.data(), sizes.size()), given->dtype());
}

// The result of roll() that moves nothing. Its strides are those of cat() on CPUs, where roll() along dims is one.
at::Tensor rolled_nowhere(const at::Tensor& self, bool as_list) {
  if (self.numel() == 0) return at::clone(self);
  const bool joined = !as_list && self.is_cpu();
  return at::clone(self, joined ? self.suggest_memory_format() : at::MemoryFormat::Contiguous);
}

// roll() along these dims alone: along others of the call nothing moves, so the rule may leave them sharded. Only for
// row-major tensors: other strides of the result depend on all dims of the call.
at::Tensor rolled_along(const at::Tensor& self, const std::vector<HaloDim>& dims) {
  std::vector<int64_t> shifts, numbers;
  for (const HaloDim& d : dims) {
    shifts.push_back(shift_of(d.map));
    numbers.push_back(d.dim);
  }
  return at::roll(self, shifts, numbers);
}

// From self to the result. `kPads`: for padding, whose result is larger; it is lazy (pad_lazily()) if windows of it may
// be read first.
template <Describe kDescribe, bool kPads = false>
void move_elements(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  if (args.out().defined()) return dispatch_by_rule(op, stack);
  const auto move = normalized(kDescribe(args, args.tensor("self").sizes()), args.tensor("self").sizes());
  if (kDescribe == roll && move && move->dims.empty())
    return return_tensors(op, stack, {rolled_nowhere(args.tensor("self"), args["dims"].toIntVector().empty())});
  if (kDescribe == flip && move && move->dims.empty())
    return return_tensors(op, stack, {at::clone(args.tensor("self"))});
  if (!move) return dispatch_by_rule(op, stack);
  if (cutting_mesh_dims(*spec_of(args.tensor("self")), numbers_of(move->dims)).empty()) {
    const at::Tensor self = args.tensor("self");
    const bool has_idle_dims = kDescribe == roll && args["dims"].toIntVector().size() > move->dims.size();
    return has_idle_dims && self.is_contiguous() ? return_tensors(op, stack, {rolled_along(self, move->dims)})
                                                 : dispatch_by_rule(op, stack);
  }
  const at::Tensor self = reduced_argument(op, args, "self", move->passing);
  const CommCause cause = call_cause(op, "self", self);
  const SpecPtr& source = spec_of(self);
  const auto decision = decide_halo(op, stack, self, [&](const Decision* rule) -> std::optional<HaloChoice> {
    Shape sizes = source->sizes();
    for (const HaloDim& d : move->dims) sizes[d.dim] = d.map.size;
    const SpecPtr result = result_of(source, rule, sizes);
    HaloChoice choice{{source, result, move->dims}, result};
    if constexpr (kPads) choice.later = windows_request(source, move->dims);
    if (kDescribe == roll) choice.both = both_ways(source, move->dims);
    return choice;
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  if (decision->later && may_cache_facts_of_new(*decision->result))
    return return_tensors(op, stack, {pad_lazily(*decision, self, move->fill, cause)});
  RankTensors locals = kDescribe == roll ? rolled_parts(*decision, self, move->dims, cause)
                                         : fetch_boxes(*decision, self, move->fill, cause);
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

// From the gradient of the result of move_elements() to that of self.
template <Describe kDescribe>
void move_back(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  if (args.out().defined() || !is_dtensor(args.tensor("grad_output")) || !is_dtensor(self))
    return dispatch_by_rule(op, stack);
  const auto move = normalized(kDescribe(args, self.sizes()), self.sizes());
  const SpecPtr given = spec_of(args.tensor("grad_output"));
  if (!move || given->mesh() != spec_of(self)->mesh() || cutting_mesh_dims(*given, numbers_of(move->dims)).empty())
    return dispatch_by_rule(op, stack);
  const at::Tensor grad = reduced_argument(op, args, "grad_output", move->passing);
  const SpecPtr& source = spec_of(grad);
  const auto decision = decide_halo(op, stack, /*source=*/{}, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = result_of(source, rule, spec_of(self)->sizes());
    return HaloChoice{{result, source, move->dims}, result};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  RankTensors locals = add_back_halos(*decision->plan, meta_for_read(grad).locals, call_cause(op, "grad_output", grad));
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

}  // namespace

const RuleFamily halo_moves_handlers("halo_moves", [](RuleRegistry& registry) {
  registry.add_handler("aten::roll", move_elements<roll>);
  registry.add_handler("aten::flip", move_elements<flip>);
  registry.add_handler("aten::constant_pad_nd", move_elements<constant_pad, /*kPads=*/true>);
  for (const char* op : {"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d"})
    registry.add_handler(op, move_elements<reflection_pad, /*kPads=*/true>);
  for (const char* op : {"aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d"})
    registry.add_handler(op, move_elements<replication_pad, /*kPads=*/true>);
  for (const char* op :
       {"aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward"})
    registry.add_handler(op, move_back<reflection_pad_backward>);
  for (const char* op :
       {"aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward"})
    registry.add_handler(op, move_back<replication_pad_backward>);
});

}  // namespace dtensor::internal
