// Writes to copied views reach their bases.

#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/view_window.h"
#include "dtensor/views/copied_view.h"
#include "dtensor/views/write_back_exchange.h"
#include "plan/cost_policy.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// Placements of one tensor dim apply one after another: without an earlier one, the result of a later one is not a
// part.
void keep_whole_chains(std::vector<bool>& follows, const Placements& placements) {
  for (size_t m = 0; m < follows.size(); ++m) {
    for (size_t earlier = 0; earlier < m && follows[m]; ++earlier) {
      const bool chained = placements[m].is_sharded() && placements[earlier].is_sharded_on(placements[m].dim());
      if (chained && !follows[earlier]) follows[m] = false;
    }
  }
}

// The layout in which every rank has the elements that it must store in its part of the base.
Placements layout_to_store(const Spec& view, const Spec& base, const std::vector<bool>& follows) {
  Placements to = view.placements();
  for (size_t m = 0; m < to.size(); ++m) {
    if (follows[m]) continue;
    const Placement& p = base.placements()[m];
    to[m] = p.is_partial() ? Partial(p.reduce_op()) : Replicate();
  }
  return to;
}

// For a product, ranks other than the first hold ones, and a one of another dtype has other bytes.
void check_can_store(const Spec& view, const Spec& base, std::string_view op) {
  if (view.dtype() == base.dtype()) return;
  for (const Placement& p : base.placements()) {
    TORCH_CHECK_NOT_IMPLEMENTED(!p.is_partial() || p.reduce_op() != ReduceOp::kProduct, std::string(op), ": writes ",
                                view.to_string(), " through a view to ", base.to_string(),
                                ", a product of another dtype that is not reduced yet. "
                                "Redistribute that tensor to Replicate() before taking the view.");
  }
}

// Undoes the view operator's effect on the values (conjugation, negation), for a result that is a copy.
at::Tensor undo_operator(const at::Tensor& value, const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::_conj") return value.conj();
  if (name == "aten::_neg_view") return value.neg();
  return value;
}

// The layouts that a value written to `t` takes on its way back: that of `t`, then, per base in the chain, the one in
// which every rank has the elements that it stores there.
std::vector<SpecPtr> layouts_on_way_back(const at::Tensor& t) {
  std::vector<SpecPtr> way{spec_of(t)};
  std::vector<bool> follows(way[0]->placements().size(), true);
  for (const ViewOrigin* origin : origins_of(t)) {
    const Spec& base = *spec_of(origin->base);
    for (size_t m = 0; m < follows.size(); ++m) follows[m] = follows[m] && origin->follows[m];
    keep_whole_chains(follows, base.placements());
    keep_whole_chains(follows, spec_of(t)->placements());
    way.push_back(way.back()->with_placements(layout_to_store(*way.back(), base, follows)));
  }
  return way;
}

// The ghost region of a tensor about to be written that has been fetched; null: none.
std::shared_ptr<const GhostRegion> fetched_ghost_region(const at::Tensor& t) {
  auto around = cached_ghost_region(t);
  return around && around->boxes->if_made() != nullptr ? around : nullptr;
}

// Copies of the boxes to write to, since clones of the tensor may share the boxes.
LazyParts::Made boxes_to_write(const GhostRegion& around, const Spec& spec) {
  LazyParts::Made boxes;
  LocalGuard guard;
  for (const at::Tensor& box : around.boxes->if_made()->parts) boxes.parts.push_back(at::clone(box));
  boxes.storage = std::make_shared<LocalStorage>(spec.mesh().world(), box_bytes(around, spec));
  return boxes;
}

// The way of written values back to the bases.
struct WayBack {
  std::vector<SpecPtr> layouts;
  std::shared_ptr<const StoreExchange> exchange;               // replaces redistribution by layouts, or null
  std::vector<std::shared_ptr<const GhostRegion>> kept_known;  // per base: the ghost region to update, or null
};

// Whether to update ghost regions, too, since that needs no further call and takes little longer. Not if they were not
// used since their last update: then they probably will not be.
bool is_worth_it(const WayBack& way, const StoreExchange& both) {
  return way.exchange && way.exchange->bytes > 0 && both.seconds <= kGhostUpdate * way.exchange->seconds &&
         std::all_of(way.kept_known.begin(), way.kept_known.end(),
                     [](const auto& k) { return !k || k->boxes->was_got(); });
}

// Bases of views that only some ranks copied are skipped: they move nothing and share what the moved view stores.
WayBack way_back(const at::Tensor& t) {
  WayBack way{layouts_on_way_back(t), nullptr, {}};
  const Limits& limits = current_dispatch_scope().hints.limits;
  StoreRequest request{{way.layouts[0], t.storage_offset()}, {}, way.layouts};
  StoreRequest keeping = request;
  for (const ViewOrigin* origin : origins_of(t)) {
    way.kept_known.push_back(origin->moved ? fetched_ghost_region(origin->base) : nullptr);
    if (!origin->moved) continue;
    request.bases.push_back({spec_of(origin->base), origin->base.storage_offset()});
    keeping.bases.push_back({spec_of(origin->base), origin->base.storage_offset(), way.kept_known.back()});
  }
  way.exchange = cached_store_exchange(request, limits);
  const auto any_known = std::any_of(way.kept_known.begin(), way.kept_known.end(), [](const auto& k) { return k; });
  const auto both = any_known ? cached_store_exchange(keeping, limits) : nullptr;
  if (both && (both->bytes == 0 || is_worth_it(way, *both))) {
    way.exchange = both;
  } else {
    std::fill(way.kept_known.begin(), way.kept_known.end(), nullptr);
  }
  return way;
}

// Whether writing elements of `view` writes only some bytes of an element of a Partial `base`.
bool writes_into_addends(const Spec& view, const Spec& base) {
  return base.has_partial() && c10::elementSize(view.dtype()) != c10::elementSize(base.dtype());
}

// The plans that bring whole values to the first rank in place of addends: then every byte belongs to a value.
std::array<std::shared_ptr<const RedistributePlan>, 2> plans_of_values_for_addends(const SpecPtr& base) {
  const Limits& limits = current_dispatch_scope().hints.limits;
  const SpecPtr whole = base->with_placements(without_partials(base->placements()));
  return {cached_plan(base, whole->placements(), limits), cached_plan(whole, base->placements(), limits)};
}

void put_values_for_addends(const DTensorMeta& base, const CommCause& cause) {
  RankTensors values = base.locals;
  for (const auto& plan : plans_of_values_for_addends(base.spec)) values = run_plan(*plan, std::move(values), cause);
  LocalGuard guard;
  for (size_t i = 0; i < base.locals.size(); ++i) copy_values(base.locals[i], values[i]);
}

}  // namespace

void ViewOrigin::check_write(const at::Tensor& t, std::string_view op) const {
  if (t.numel() == 0) return;
  const Limits& limits = current_dispatch_scope().hints.limits;
  const Spec& spec = *spec_of(t);
  const std::vector<ViewOrigin*> origins = origins_of(t);
  if (limits.any()) {  // an error while writing back would come after the write
    const WayBack way = way_back(t);
    const bool exchanges = way.exchange != nullptr;  // within the limits
    for (size_t k = 1; k < way.layouts.size() && !exchanges; ++k)
      cached_plan(way.layouts[k - 1], way.layouts[k]->placements(), limits);
    for (const ViewOrigin* origin : origins) {
      if (writes_into_addends(spec, *spec_of(origin->base))) plans_of_values_for_addends(spec_of(origin->base));
    }
  }
  for (const ViewOrigin* origin : origins) {
    const DTensorMeta& above = meta_without_sync(origin->base);
    check_can_store(spec, *above.spec, op);
    // A conjugated view can be written back as a whole number only.
    TORCH_CHECK_NOT_IMPLEMENTED(
        c10::isComplexType(spec.dtype()) || !(conj_neg_bits(origin->locals).conj || conj_neg_bits(above.locals).conj),
        std::string(op),
        ": writing to the real or imaginary parts of a conjugated distributed tensor is not supported; "
        "call resolve_conj() on it first");
    const std::string error =
        why_not_storable(window_of(spec, t.storage_offset()), spec.dtype(),
                         window_of(*above.spec, origin->base.storage_offset()), above.spec->dtype());
    TORCH_CHECK_NOT_IMPLEMENTED(error.empty(), std::string(op), ": ", error);
  }
}

void ViewOrigin::after_write(const at::Tensor& t, std::string_view op) {
  const CommCause cause{std::string(op), "self", module_of_call(t), /*implicit=*/true};
  const WayBack way = way_back(t);
  const auto& exchange = way.exchange;
  HeldPieces pieces = whole_parts(*way.layouts[0], meta_for_write(t).locals);
  if (exchange) fetch_stored(*exchange, cause, pieces);
  at::Tensor same_memory = t;         // shares the memory of the present view
  auto layout = way.layouts.begin();  // the layout of `pieces`, if nothing was exchanged
  auto known = way.kept_known.begin();
  for (ViewOrigin* origin : origins_of(t)) {
    const DTensorMeta& above = meta_for_write(origin->base);
    const SpecPtr& from = *layout++;
    const SpecPtr& spec = *layout;
    if (!exchange && from != spec) {
      const auto plan = cached_plan(from, spec->placements(), current_dispatch_scope().hints.limits);
      pieces = whole_parts(*spec, run_plan(*plan, as_locals(std::move(pieces)), cause));
    }
    if (writes_into_addends(*spec, *above.spec)) put_values_for_addends(above, cause);
    const auto around = *known++;
    const LazyParts::Made boxes = around ? boxes_to_write(*around, *above.spec) : LazyParts::Made();
    const auto ranks = above.spec->mesh().local_ranks();
    for (size_t i = 0; i < above.locals.size(); ++i) {
      LocalGuard guard;
      const ConjNegBits between =
          conj_neg_bits(meta_for_write(same_memory).locals[i]) ^ conj_neg_bits(origin->locals[i]);
      const WindowPart to{window_of(*above.spec, origin->base.storage_offset()),
                          above.spec->local_layout(static_cast<int64_t>(i)), above.locals[i]};
      for (HeldPiece& piece : pieces[i]) {
        piece.values = undo_operator(with_conj_neg(std::move(piece.values), between), origin->op);
        const WindowPart from_view{window_of(*spec, t.storage_offset()), piece.layout, piece.values};
        store_through(from_view, to);
        if (around) store_through(from_view, {to.window, box_of_rank(*around, *above.spec, ranks[i]), boxes.parts[i]});
      }
    }
    // The view includes its previous value, and this write; all of it, if it was written as a whole.
    const uint64_t before = mark_written(*above.storage);
    uint64_t expected = same_memory.is_same(t) && spec_of(t) == origin->spec ? origin->seen.load(kRelaxed) : before;
    origin->seen.compare_exchange_strong(expected, before + 1, kRelaxed);
    if (around) cache_ghost_region(origin->base, {around->dims, std::make_shared<LazyParts>(boxes)});
    same_memory = origin->base;
  }
}

}  // namespace dtensor::internal
