#include "dtensor/extend/redistribute_below_autograd.h"

#include <memory>
#include <utility>

#include "dtensor/extend/representation.h"
#include "dtensor/internal/executor.h"
#include "plan/redistribute_planner.h"

namespace dtensor {

at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause,
                                       bool async_op) {
  const DTensorMeta& meta = meta_of(t);
  if (meta.spec->placements() == to) return t;
  const auto plan = cached_plan(meta.spec, to);
  std::shared_ptr<CommWork> arriving;
  RankTensors locals = async_op ? begin_plan(plan, meta.locals, cause, arriving) : run_plan(*plan, meta.locals, cause);
  if (plan->steps.empty()) {  // a new name for the same parts, as along a mesh dim of size 1: still a tensor of its own
    LocalGuard guard;
    for (auto& local : locals) local = local.clone();
  }
  return make_dtensor(Spec::get(meta.spec->mesh(), to, in_own_memory(meta.spec->meta())), std::move(locals), meta.name,
                      std::move(arriving));
}

}  // namespace dtensor
