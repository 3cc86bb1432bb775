// Redistribution of many tensors at once, and between meshes.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <utility>

#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"
#include "dtensor/internal/executor.h"
#include "dtensor/internal/redistribute_internal.h"
#include "dtensor/redistribute.h"
#include "plan/plan_many.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a backward needs to know; autograd contexts store IValues only.
struct Origins : torch::CustomClassHolder {
  std::vector<SpecPtr> specs;
  CommCause cause;
};

void save(AutogradContext* ctx, std::vector<SpecPtr> specs, CommCause cause) {
  auto origins = c10::make_intrusive<Origins>();
  origins->specs = std::move(specs);
  origins->cause = std::move(cause);
  ctx->saved_data["dtensor"] = c10::IValue::make_capsule(origins);
}

c10::intrusive_ptr<Origins> saved(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Origins>(ctx->saved_data.at("dtensor").toCapsule());
}

// A tensor of its own, also where no rank's part changes.
at::Tensor wrap(const at::Tensor& origin, const RedistributePlan& plan, SpecPtr spec, RankTensors locals) {
  if (plan.steps.empty()) {
    LocalGuard guard;
    for (auto& local : locals) local = local.clone();
  }
  return make_dtensor(std::move(spec), std::move(locals), peek_meta(origin).name);
}

at::Tensor move_below_autograd(const at::Tensor& t, const DeviceMesh& mesh, const Placements& to,
                               const CommCause& cause) {
  const DTensorMeta& meta = meta_of(t);
  const auto plan = cached_plan(meta.spec, mesh, to);
  return wrap(t, *plan, Spec::get(mesh, to, in_own_memory(meta.spec->meta())), run_plan(*plan, meta.locals, cause));
}

std::vector<at::Tensor> redistribute_below_autograd(at::TensorList tensors, const std::vector<Placements>& to,
                                                    const CommCause& cause) {
  std::vector<Redistribution> wanted;
  std::vector<RankTensors> locals;
  for (size_t i = 0; i < tensors.size(); ++i) {
    wanted.push_back({spec_of(tensors[i]), to[i]});
    locals.push_back(meta_of(tensors[i]).locals);
  }
  const BatchPlan batch = plan_many(wanted);
  std::vector<RankTensors> moved = run_plans(batch, std::move(locals), cause);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    results.push_back(wrap(tensors[i], *batch.plans[i],
                           Spec::get(wanted[i].from->mesh(), to[i], in_own_memory(wanted[i].from->meta())),
                           std::move(moved[i])));
  }
  return results;
}

struct MoveFn : Function<MoveFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, DeviceMesh mesh, Placements placements,
                            CommCause cause) {
    save(ctx, {spec_of(t)}, cause);
    return move_below_autograd(t, mesh, placements, cause);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto origins = saved(ctx);
    const Spec& spec = *origins->specs[0];
    // A plain gradient is the same on every rank, those of the old mesh among them.
    const at::Tensor g = distributed_gradient(grads[0], spec.mesh());
    result[0] = redistribute_to(g, spec.mesh(), without_partials(spec.placements()), origins->cause);
    return result;
  }
};

struct RedistributeManyFn : Function<RedistributeManyFn> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, std::vector<Placements> placements,
                               CommCause cause) {
    std::vector<SpecPtr> specs;
    for (const at::Tensor& t : tensors) specs.push_back(spec_of(t));
    save(ctx, std::move(specs), cause);
    variable_list results = redistribute_below_autograd(tensors, placements, cause);
    variable_list constant;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!tensors[i].requires_grad()) constant.push_back(results[i]);
    }
    ctx->mark_non_differentiable(constant);
    ctx->set_materialize_grads(false);  // zeros need not travel
    return results;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto origins = saved(ctx);
    std::vector<size_t> index;
    std::vector<at::Tensor> defined;
    std::vector<Placements> back;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const Spec& spec = *origins->specs[i];
      index.push_back(i);
      defined.push_back(distributed_gradient(grads[i], spec.mesh()));
      back.push_back(without_partials(spec.placements()));
    }
    const auto moved = redistribute_many_as(defined, back, origins->cause);
    variable_list result(grads.size() + 2);
    for (size_t k = 0; k < index.size(); ++k) result[index[k]] = moved[k];
    return result;
  }
};

bool records(const at::Tensor& t) { return at::GradMode::is_enabled() && t.requires_grad(); }

}  // namespace

at::Tensor redistribute_to(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                           const CommCause& cause) {
  if (spec_of(tensor)->mesh() == mesh) return redistribute_as(tensor, placements, cause);
  if (!records(tensor)) return move_below_autograd(tensor, mesh, placements, cause);
  return MoveFn::apply(tensor, mesh, placements, cause);
}

std::vector<at::Tensor> redistribute_many_as(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Placements>& placements, const CommCause& cause) {
  std::vector<at::Tensor> results = tensors;
  std::vector<size_t> index;
  std::vector<at::Tensor> changing;
  std::vector<Placements> to;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (spec_of(tensors[i])->placements() == placements[i]) continue;
    index.push_back(i);
    changing.push_back(tensors[i]);
    to.push_back(placements[i]);
  }
  if (changing.empty()) return results;
  const std::vector<at::Tensor> moved = std::any_of(changing.begin(), changing.end(), records)
                                            ? RedistributeManyFn::apply(at::TensorList(changing), to, cause)
                                            : redistribute_below_autograd(changing, to, cause);
  for (size_t k = 0; k < index.size(); ++k) results[index[k]] = moved[k];
  return results;
}

at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
  checked_layout(tensor, "redistribute");
  TORCH_CHECK_VALUE(mesh.defined(), "[redistribute] no mesh");
  return redistribute_to(tensor, mesh, checked_placements(placements, mesh, tensor.dim(), "redistribute"),
                         explicit_cause("redistribute"));
}

std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements) {
  TORCH_CHECK_VALUE(placements.size() == tensors.size() || placements.size() == 1, "[redistribute_many] ",
                    placements.size(), " lists of placements for ", tensors.size(),
                    " tensors: give one per tensor, or one for all");
  std::vector<Placements> to;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DTensorMeta& meta = checked_layout(tensors[i], "redistribute_many");
    to.push_back(checked_placements(placements[placements.size() == 1 ? 0 : i], meta.spec->mesh(), tensors[i].dim(),
                                    "redistribute_many"));
  }
  return redistribute_many_as(tensors, to, explicit_cause("redistribute_many"));
}

}  // namespace dtensor
