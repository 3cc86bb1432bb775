#include "ops/halo/boxes.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <mutex>
#include <utility>

#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// Whether every rank needs just what it holds.
bool is_as_held(const HaloPlan& plan) {
  if (!plan.is_local()) return false;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (plan.ranks[i].wanted != plan.source->local_shape(static_cast<int64_t>(i)) || !plan.ranks[i].filled)
      return false;
  }
  return true;
}

// Equal keys get the same number, which is not a dim of any tensor. Never erased: a program has few kinds of windows.
int64_t number_of(const BoxKey& key) {
  constexpr int64_t kBeyondDims = 1 << 16;
  static auto& mutex = *new std::mutex;
  static auto& numbers = *new std::map<BoxKey, int64_t>;
  std::lock_guard<std::mutex> lock(mutex);
  return numbers.try_emplace(key, kBeyondDims + static_cast<int64_t>(numbers.size())).first->second;
}

}  // namespace

RankTensors fetch_boxes(const HaloDecision& decision, const at::Tensor& t, const at::Scalar& fill,
                        const CommCause& cause) {
  if (!decision.within) return fetch_halos(*decision.plan, meta_for_read(t).locals, fill, cause);
  const auto region = periodic_region(*decision.declared, t, decision.plan->bytes, cause);
  const LazyParts::Made boxes = boxes_along(*region, *spec_of(t), decision.within->dims);
  return fetch_halos(*decision.within, boxes.parts, fill, cause);
}

RankTensors boxes_of(const HaloDecision& decision, const at::Tensor& t, const at::Scalar& fill,
                     const CommCause& cause) {
  return is_as_held(*decision.plan) ? meta_for_read(t).locals : fetch_boxes(decision, t, fill, cause);
}

RankTensors boxes_of(const HaloDecision& decision, const at::Tensor& t, const BoxKey& key, const CommCause& cause) {
  const HaloPlan& plan = *decision.plan;
  if (decision.within || plan.is_local() || !may_cache_facts(t)) return boxes_of(decision, t, 0, cause);
  // Cached as margins along a dim number that no tensor has.
  const RankTensors& locals = meta_for_read(t).locals;
  const int64_t number = number_of(key);
  if (const auto known = cached_margins(t, number, 0)) {
    report_reuse(cause, "margins", plan.bytes);
    return boxes_again(plan, locals, 0, known->locals);
  }
  RankTensors boxes = fetch_halos(plan, locals, 0, cause);
  if (at::GradMode::is_enabled()) cache_margins(t, number, 0, received_halos(plan, boxes), plan.bytes);
  return boxes;
}

RankTensors back_from_boxes(const HaloPlan& plan, RankTensors pieces, const CommCause& cause) {
  return is_as_held(plan) ? std::move(pieces) : add_back_halos(plan, pieces, cause);
}

}  // namespace dtensor::internal
