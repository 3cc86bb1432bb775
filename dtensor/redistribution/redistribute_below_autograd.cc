#include "dtensor/redistribution/redistribute_below_autograd.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "plan/plan_many.h"
#include "plan/transfer/schedule.h"

namespace dtensor::internal {
namespace {

at::Tensor wrapped(const at::Tensor& origin, const RedistributePlan& plan, RankTensors locals,
                   std::shared_ptr<CommWork> arriving = nullptr) {
  if (plan.steps.empty()) {  // only the spec changes, as along a mesh dim of size 1: still a separate tensor
    LocalGuard guard;
    for (at::Tensor& local : locals) local = local.clone();
    arriving = nullptr;
  }
  return make_moved(origin, result_spec_of(plan), std::move(locals), std::move(arriving));
}

at::Tensor redistribute_one(const at::Tensor& t, const DeviceMesh& mesh, const Placements& to, const CommCause& cause,
                            const RedistributeOptions& options) {
  const DTensorMeta& meta = meta_for_read(t);
  const auto plan = cached_plan(meta.spec, mesh, to, limits_of(options));
  std::shared_ptr<CommWork> arriving;
  RankTensors locals =
      options.async_op ? begin_plan(plan, meta.locals, cause, arriving) : run_plan(*plan, meta.locals, cause);
  return wrapped(t, *plan, std::move(locals), std::move(arriving));
}

}  // namespace

Limits limits_of(const RedistributeOptions& options) {
  return {std::min(options.max_bytes, current_dispatch_scope().hints.limits.max_bytes)};
}

at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause,
                                       const RedistributeOptions& options) {
  const Spec& spec = *spec_of(t);
  return spec.placements() == to ? t : redistribute_one(t, spec.mesh(), to, cause, options);
}

std::vector<at::Tensor> redistribute_below_autograd(at::TensorList tensors, c10::ArrayRef<Layout> to,
                                                    const CommCause& cause, const RedistributeOptions& options) {
  if (tensors.size() == 1) return {redistribute_one(tensors[0], to[0].mesh(), to[0].placements(), cause, options)};
  const Limits limits = limits_of(options);
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  std::vector<RankTensors> locals;
  for (size_t i = 0; i < tensors.size(); ++i) {
    plans.push_back(cached_plan(spec_of(tensors[i]), to[i].mesh(), to[i].placements(), limits));
    locals.push_back(meta_for_read(tensors[i]).locals);
  }
  const BatchPlan batch = batch_plans(std::move(plans), limits);
  // Rounds that keep a limit come one after the other.
  const bool limited = limits.any() && batch.rounds.size() > 1;
  std::shared_ptr<CommWork> arriving;
  std::vector<RankTensors> moved =
      run_plans(batch, std::move(locals), cause, options.async_op && !limited ? &arriving : nullptr);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < tensors.size(); ++i) {
    results.push_back(wrapped(tensors[i], *batch.plans[i], std::move(moved[i]), arriving));
  }
  return results;
}

}  // namespace dtensor::internal
