#include "dtensor/redistribution/redistribute_autograd.h"

#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "comm/scope.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct SavedForBackward {
  std::vector<Layout> to;
  CommCause cause;
  RedistributeOptions options;
};

struct RedistributeFn : Function<RedistributeFn> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, c10::ArrayRef<Layout> to, CommCause cause,
                               RedistributeOptions options) {
    SavedForBackward back{{}, cause, {}};
    for (const at::Tensor& t : tensors) {
      const Spec& spec = *spec_of(t);
      back.to.emplace_back(spec.mesh(), without_partials(spec.placements()));
    }
    back.options.max_bytes = options.max_bytes;
    save_for_backward(ctx, std::move(back));
    variable_list results = redistribute_below_autograd(tensors, to, cause, options);
    variable_list constant;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!tensors[i].requires_grad()) constant.push_back(results[i]);
    }
    if (!constant.empty()) ctx->mark_non_differentiable(constant);
    ctx->set_materialize_grads(false);  // zeros need not be sent
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto back = saved_for_backward<SavedForBackward>(ctx);
    std::vector<size_t> index;
    std::vector<at::Tensor> defined;
    std::vector<Layout> to;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      index.push_back(i);
      // A plain gradient is the same on every rank, also on those of the other mesh.
      defined.push_back(distributed_gradient(grads[i], back.to[i].mesh()));
      to.push_back(back.to[i]);
    }
    // Unknown in forward if nothing listened then.
    if (back.cause.module_path.empty()) back.cause.module_path = module_of_call(defined);
    const auto moved = redistribute_as(defined, to, back.cause, back.options);
    variable_list result(grads.size() + 3);
    for (size_t k = 0; k < index.size(); ++k) result[index[k]] = moved[k];
    return result;
  }
};

struct FullTensorFn : Function<FullTensorFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements) {
    const DTensorMeta& meta = meta_without_sync(t);
    save_for_backward(ctx, SavedLayout{meta.spec, std::move(grad_placements)});
    const at::Tensor whole = redistribute_below_autograd(t, Placements(meta.spec->mesh().ndim(), Replicate()),
                                                         explicit_cause("full_tensor"));
    LocalGuard guard;
    const at::Tensor& local = meta_for_read(whole).locals.front();
    // The result must not share a rank's own memory: writing to it would change only one of several replicas.
    return whole.is_same(t) ? local.clone() : local.detach();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved_for_backward<SavedLayout>(ctx);
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const at::Tensor g = distributed_gradient(grads[0], s.spec->mesh());
    return {redistribute_as(g, s.placements, explicit_cause("full_tensor")), at::Tensor()};
  }
};

struct ReplicateFn : Function<ReplicateFn> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& plain, DeviceMesh mesh) {
    return replicate_copy(plain, mesh);
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0].defined() && is_dtensor(grads[0]) ? gather_whole(grads[0]) : grads[0], at::Tensor()};
  }
};

bool records(const at::Tensor& t) { return at::GradMode::is_enabled() && t.requires_grad(); }

bool lies_as(const at::Tensor& t, const Layout& to) {
  const Spec& spec = *spec_of(t);
  return spec.placements() == to.placements() && spec.mesh() == to.mesh();
}

variable_list move(at::TensorList tensors, c10::ArrayRef<Layout> to, const CommCause& cause,
                   const RedistributeOptions& options) {
  return std::any_of(tensors.begin(), tensors.end(), records)
             ? RedistributeFn::apply(tensors, to, cause, options)
             : redistribute_below_autograd(tensors, to, cause, options);
}

// Tangents are tensors like others: they move to the same layout, from whatever layout they have.
variable_list move_with_tangents(at::TensorList tensors, c10::ArrayRef<Layout> to, const CommCause& cause,
                                 const RedistributeOptions& options) {
  variable_list values(tensors.begin(), tensors.end()), tangents;
  std::vector<Layout> to_of_tangents;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!has_tangent(values[i])) continue;
    auto [value, tangent] = at::_unpack_dual(values[i], /*level=*/0);
    values[i] = std::move(value);
    tangents.push_back(std::move(tangent));
    to_of_tangents.push_back(to[i]);
  }
  variable_list results = move(values, to, cause, options);
  if (tangents.empty()) return results;
  const variable_list moved = move(tangents, to_of_tangents, cause, options);
  for (size_t i = 0, k = 0; i < results.size(); ++i) {
    if (has_tangent(tensors[i])) results[i] = at::_make_dual(results[i], moved[k++], /*level=*/0);
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> redistribute_as(at::TensorList tensors, c10::ArrayRef<Layout> to, const CommCause& cause,
                                        const RedistributeOptions& options) {
  std::vector<at::Tensor> results(tensors.begin(), tensors.end());
  std::vector<size_t> index;
  std::vector<at::Tensor> changing;
  std::vector<Layout> wanted;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (lies_as(tensors[i], to[i])) continue;
    index.push_back(i);
    changing.push_back(tensors[i]);
    wanted.push_back(to[i]);
  }
  if (changing.empty()) return results;
  const std::vector<at::Tensor> moved = move_with_tangents(changing, wanted, cause, options);
  for (size_t k = 0; k < index.size(); ++k) results[index[k]] = moved[k];
  return results;
}

at::Tensor redistribute_as(const at::Tensor& tensor, const Placements& placements, const CommCause& cause,
                           const RedistributeOptions& options) {
  if (!records(tensor) && !has_tangent(tensor)) return redistribute_below_autograd(tensor, placements, cause, options);
  const Layout to(spec_of(tensor)->mesh(), placements);
  if (lies_as(tensor, to)) return tensor;
  return move_with_tangents(at::TensorList(&tensor, 1), c10::ArrayRef<Layout>(to), cause, options)[0];
}

at::Tensor gather_whole(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  if (has_tangent(tensor)) {
    const auto [value, tangent] = at::_unpack_dual(tensor, /*level=*/0);
    const at::Tensor whole = gather_whole(value, std::move(grad_placements));
    return at::_make_dual(whole, gather_whole(tangent), /*level=*/0);
  }
  const DTensorMeta& meta = meta_without_sync(tensor);
  if (meta.spec->mesh().world().is_meta()) {
    const LocalGuard guard;
    return at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(at::kMeta).dtype(tensor.dtype()));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.locals.empty(), "[full_tensor] ", meta.spec->to_string(),
                              " has no data in this process: its world is ", meta.spec->mesh().world().name());
  if (!grad_placements) grad_placements = without_partials(spec_of(tensor)->placements());
  return FullTensorFn::apply(tensor, *std::move(grad_placements));
}

at::Tensor distributed_gradient(const at::Tensor& gradient, const DeviceMesh& mesh) {
  return is_dtensor(gradient) ? gradient : ReplicateFn::apply(gradient, mesh);
}

CommCause explicit_cause(std::string function) {
  return {std::move(function), "", current_scope().module_path, /*implicit=*/false};
}

}  // namespace dtensor::internal
