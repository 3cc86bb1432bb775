#include "dtensor/redistribute_parts.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Move {
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Layout from, to;
  RedistributePartsOptions options;
  std::vector<size_t> counts;  // number of source tensors per rank
};

variable_list flat(const RankPieces& pieces) {
  variable_list tensors;
  for (const auto& of_rank : pieces) tensors.insert(tensors.end(), of_rank.begin(), of_rank.end());
  return tensors;
}

std::vector<size_t> counts_of(const RankPieces& pieces) {
  std::vector<size_t> counts;
  for (const auto& of_rank : pieces) counts.push_back(of_rank.size());
  return counts;
}

RankPieces grouped(at::TensorList tensors, const std::vector<size_t>& counts) {
  RankPieces pieces;
  size_t at = 0;
  for (size_t count : counts) {
    pieces.emplace_back(tensors.begin() + at, tensors.begin() + at + count);
    at += count;
  }
  return pieces;
}

RankPieces run(const Move& move, RankPieces parts) {
  const Shape sizes(move.sizes.begin(), move.sizes.end());
  const TensorMeta meta{sizes, row_major_strides(move.sizes), move.dtype};
  PlanOptions plan_options;
  plan_options.limits = limits_of(move.options.redistribute);
  const RedistributePlan plan = plan_transfer(meta, move.from, move.to, plan_options);
  return run_transfer(plan, std::move(parts), explicit_cause(move.options.function));
}

struct RedistributePartsFn : Function<RedistributePartsFn> {
  // The last of `tensors` is an empty one: on a rank without parts, autograd would otherwise skip the backward.
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, Move move) {
    RankPieces results = run(move, grouped(tensors, move.counts));
    std::swap(move.from, move.to);
    if (!move.to.is_boxes()) move.to = Layout(move.to.mesh(), without_partials(move.to.placements()));
    move.counts = counts_of(results);
    save_for_backward(ctx, std::move(move));
    return flat(results);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto move = saved_for_backward<Move>(ctx);
    RedistributePartsOptions options = move.options;
    options.requires_grad = c10::GradMode::is_enabled();
    variable_list result =
        flat(redistribute_parts(grouped(grads, move.counts), move.sizes, move.dtype, move.from, move.to, options));
    result.resize(result.size() + 2);
    return result;
  }
};

void check_options(const RedistributePartsOptions& options) {
  TORCH_CHECK_VALUE(!options.redistribute.async_op, "[", options.function,
                    "] async_op: parts are there when the call returns; redistribute() a DTensor for that");
}

// In backward every process starts from the parts it got. A process that only sent parts would never call it.
void check_all_can_go_back(const Layout& from, const Layout& to, const RedistributePartsOptions& options) {
  const World& world = from.world();
  if (static_cast<int64_t>(world.owned_ranks().size()) == world.size()) return;  // one process does all
  const std::vector<int64_t> receivers = to.ranks();
  for (const int64_t rank : from.ranks()) {
    TORCH_CHECK_VALUE(std::binary_search(receivers.begin(), receivers.end(), rank), "[", options.function, "] rank ",
                      rank,
                      " holds parts that require grad and gets none, so it could not call backward, which all "
                      "ranks have to; give it a part, or move the values within a NoGradGuard");
  }
}

}  // namespace

RankPieces redistribute_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype,
                              const Layout& from, const Layout& to, const RedistributePartsOptions& options) {
  check_options(options);
  Move move{sizes.vec(), dtype, from, to, options, counts_of(parts)};
  variable_list tensors = flat(parts);
  const bool requires_grad =
      c10::GradMode::is_enabled() &&
      (options.requires_grad || std::any_of(tensors.begin(), tensors.end(), [](auto& t) { return t.requires_grad(); }));
  if (!requires_grad) return run(move, parts);
  check_all_can_go_back(from, to, options);
  {
    const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);  // also inside a MeshScope
    tensors.push_back(at::empty({0}, at::TensorOptions().dtype(dtype)).set_requires_grad(true));
  }
  std::vector<size_t> counts;
  for (int64_t rank : to.world().owned_ranks()) counts.push_back(to.parts(sizes, rank).size());
  return grouped(RedistributePartsFn::apply(at::TensorList(tensors), std::move(move)), counts);
}

at::Tensor from_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype, const Layout& from,
                      const DeviceMesh& mesh, const Placements& placements, const RedistributePartsOptions& options) {
  TORCH_CHECK_VALUE(mesh.defined(), "[", options.function, "] no mesh: give a DeviceMesh(world, shape)");
  const RankPieces moved = redistribute_parts(parts, sizes, dtype, from, Layout(mesh, placements), options);
  std::vector<at::Tensor> locals;
  const auto& owned = mesh.world().owned_ranks();
  for (int64_t rank : mesh.local_ranks())
    locals.push_back(moved[std::find(owned.begin(), owned.end(), rank) - owned.begin()].at(0));
  const Shape shape(sizes.begin(), sizes.end());
  if (locals.empty()) {
    LocalGuard guard;
    return make_dtensor(Spec::get(mesh, placements, {shape, row_major_strides(sizes), dtype}), {});
  }
  FromLocalOptions from_local_options;
  from_local_options.shape = sizes.vec();
  return from_local(locals, mesh, placements, from_local_options);
}

RankPieces to_parts(const at::Tensor& tensor, const Layout& to, const RedistributePartsOptions& options) {
  TORCH_CHECK_TYPE(is_dtensor(tensor), "[", options.function, "] the tensor is not distributed");
  const Spec& spec = *spec_of(tensor);
  RedistributePartsOptions with_grad = options;
  with_grad.requires_grad |= tensor.requires_grad();
  const auto& owned = spec.mesh().world().owned_ranks();
  RankPieces parts(owned.size());
  allow_user_writes(tensor);  // the pieces may be the parts themselves
  const std::vector<at::Tensor> locals = to_local(tensor);
  for (size_t i = 0; i < locals.size(); ++i)
    parts[std::find(owned.begin(), owned.end(), spec.mesh().local_ranks()[i]) - owned.begin()] = {locals[i]};
  return redistribute_parts(parts, tensor.sizes(), tensor.scalar_type(), Layout(spec.mesh(), spec.placements()), to,
                            with_grad);
}

}  // namespace dtensor::internal
