#include "dtensor/extend/reduced_forms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "dtensor/extend/call_sites.h"
#include "dtensor/extend/dispatch_scope.h"
#include "dtensor/extend/view_window.h"
#include "placement/with_dim.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
namespace {

// Whether `to` is the layout `from` with Partials replaced by Replicate and no other change.
bool only_reduces(const Placements& from, const Placements& to) {
  for (size_t m = 0; m < from.size(); ++m) {
    if (from[m].is_partial() ? !to[m].is_replicate() : from[m] != to[m]) return false;
  }
  return true;
}

bool are_addends_alike(const Placements& a, const Placements& b) {
  for (size_t m = 0; m < a.size(); ++m) {
    if (a[m].is_partial() != b[m].is_partial()) return false;
    if (a[m].is_partial() && a[m].reduce_op() != b[m].reduce_op()) return false;
  }
  return true;
}

// The end of its last element in its memory.
int64_t end_of(const Spec& spec, int64_t offset) {
  int64_t last = offset;
  for (int64_t d = 0; d < spec.ndim(); ++d) last += (spec.sizes()[d] - 1) * spec.strides()[d];
  return last + 1;
}

bool is_whole(const Placements& placements) {
  return std::all_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_replicate(); });
}

// Views are located within a base by elements in memory. Complex tensors are left out.
bool is_real(const Spec& spec) { return !c10::isComplexType(spec.dtype()); }

bool is_same(const ReducedForm& form, const at::Tensor& t, const Spec& spec) {
  return form.from.get() == &spec && form.offset == t.storage_offset();
}

bool lies_within(const ReducedForm& form, const at::Tensor& t, const Spec& spec) {
  return form.is_dense && spec.meta().numel() > 0 && form.from->mesh() == spec.mesh() &&
         form.from->dtype() == spec.dtype() && form.offset <= t.storage_offset() &&
         end_of(spec, t.storage_offset()) <= end_of(*form.from, form.offset);
}

// The map of a view within the tensor of `form`, dim by dim; nullopt if reshaping has joined or split dims.
std::optional<DimMap> map_within(const ReducedForm& form, const Spec& view, int64_t offset) {
  const auto window = [](const Spec& spec, int64_t begin) {
    const auto copy = [](const auto& values) { return Shape(values.begin(), values.end()); };
    return Window{copy(spec.sizes()), copy(spec.strides()), begin};
  };
  return map_dims(window(view, offset), window(*form.from, form.offset));
}

// Converts a layout of the view to one of its base, if every sharded dim is whole in both.
std::optional<Placements> of_base(const Placements& placements, const Spec& view, const Spec& base, const DimMap& map) {
  Placements result = placements;
  for (Placement& p : result) {
    if (p.is_mask_partial()) return std::nullopt;
    if (!p.is_sharded()) continue;
    const int d = map.base_dim[p.dim()];
    if (d < 0 || view.sizes()[p.dim()] != base.sizes()[d]) return std::nullopt;
    p = with_dim(p, d);
  }
  return result;
}

// How to take a view of a tensor with layout `from` from its copy in the layout `to`: not at all; every rank from its
// part; from the whole, which the rank has; or from its part in the other layout, if the dims sharded before and after
// are whole in the view.
enum class Taking { kNot, kOfParts, kOfWhole, kAlike };

Taking taking(const ReducedForm& form, const Placements& to, const Spec& view, int64_t offset,
              const Placements& view_to) {
  const Placements& from = form.from->placements();
  if (only_reduces(from, to) && only_reduces(view.placements(), view_to) && are_addends_alike(from, view.placements()))
    return Taking::kOfParts;
  if (!is_real(view)) return Taking::kNot;
  if (is_whole(to) && is_whole(view_to)) return Taking::kOfWhole;
  const auto map = map_within(form, view, offset);
  if (!map || of_base(view.placements(), view, *form.from, *map) != from) return Taking::kNot;
  return of_base(view_to, view, *form.from, *map) == to ? Taking::kAlike : Taking::kNot;
}

// Copies `t` to the strides `wanted`, permanently.
void lay(at::Tensor& t, c10::IntArrayRef strides) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) <= 1 || t.stride(d) == strides[d]) continue;
    t = at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
    return;
  }
}

// The view of the cached local tensor i that corresponds to `part`, a view of the original one.
at::Tensor view_of_part(ReducedForm& form, size_t i, const at::Tensor& part) {
  const at::Tensor& own = form.parts[i];
  at::Tensor& whole = form.locals[i];
  if (part.numel() == 0) return at::empty(part.sizes(), whole.options());
  lay(whole, own.strides());
  return whole.as_strided(part.sizes(), part.strides(),
                          whole.storage_offset() + part.storage_offset() - own.storage_offset());
}

at::Tensor view_of_whole(ReducedForm& form, size_t i, const Spec& spec, int64_t offset) {
  at::Tensor& whole = form.locals[i];
  lay(whole, form.from->strides());
  return whole.as_strided(spec.sizes(), spec.strides(), whole.storage_offset() + offset - form.offset);
}

// REQUIRES: kAlike.
at::Tensor view_alike(const ReducedForm& form, size_t i, const Spec& spec, const DimMap& map) {
  const at::Tensor& part = form.locals[i];
  Shape sizes(spec.sizes().begin(), spec.sizes().end()), strides(sizes.size(), 0);
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int base = map.base_dim[d];
    if (base < 0) continue;
    if (sizes[d] == form.from->sizes()[base]) sizes[d] = part.size(base);
    strides[d] = map.step[d] * part.stride(base);
  }
  if (part.numel() == 0) return at::empty(sizes, part.options());
  int64_t offset = part.storage_offset();
  for (int64_t d = 0; d < part.dim(); ++d) offset += map.start[d] * part.stride(d);
  return part.as_strided(sizes, strides, offset);
}

// The local tensors of `t` in the layout `to`. Conjugated views share the numbers' memory.
RankTensors parts_of(ReducedForm& form, const at::Tensor& t, const DTensorMeta& meta, const Placements& to) {
  const Spec& spec = *meta.spec;
  const bool same = is_same(form, t, spec);
  const Taking how = same ? Taking::kOfParts : taking(form, form.plan->to.placements(), spec, t.storage_offset(), to);
  const auto map = how == Taking::kAlike ? map_within(form, spec, t.storage_offset()) : std::nullopt;
  const auto part_of = [&](size_t i) {
    if (same) return form.locals[i];
    if (how == Taking::kOfWhole) return view_of_whole(form, i, spec, t.storage_offset());
    return map ? view_alike(form, i, spec, *map) : view_of_part(form, i, meta.locals[i]);
  };
  LocalGuard guard;
  RankTensors parts;
  for (size_t i = 0; i < meta.locals.size(); ++i) parts.push_back(seen_with(part_of(i), meta.seen ^ form.seen));
  return parts;
}

uint64_t current_recording() {
  const CallSites* sites = current_dispatch_scope().call_sites;
  return sites == nullptr ? 0 : sites->recording();
}

uint64_t writes_of(const LocalStorage& storage) { return storage.writes.load(std::memory_order_relaxed); }

// Whether the memory was not written since, and the entry belongs to the present recording, if there is one.
bool is_current(const ReducedForm& form, const LocalStorage& storage) {
  const uint64_t recording = current_recording();
  return form.writes == writes_of(storage) && (recording == 0 || form.recording == recording);
}

// Whether `form` only marks the base.
bool is_base(const ReducedForm& form) {
  return form.from && !form.plan && !form.sums.defined() && form.margin_dim < 0 && !form.surroundings;
}

// A cache entry for `t` itself, without derived data.
ReducedForm form_of(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);
  ReducedForm form{meta.spec, t.storage_offset(), t.is_non_overlapping_and_dense(), meta.seen, meta.locals};
  form.writes = writes_of(*meta.storage);
  form.recording = current_recording();
  return form;
}

// Removes the entries for which `is_stale`, to be released after the mutex is unlocked; never the entry of the base.
// REQUIRES: storage.reduced_mutex is locked.
template <typename IsStale>
std::vector<ReducedForm> take_stale(LocalStorage& storage, IsStale is_stale) {
  std::vector<ReducedForm> stale;
  if (!storage.reduced) return stale;
  auto& forms = *storage.reduced;
  const auto stays = [&](const ReducedForm& f) { return is_base(f) || !is_stale(f); };
  const auto first = std::stable_partition(forms.begin(), forms.end(), stays);
  stale.assign(std::make_move_iterator(first), std::make_move_iterator(forms.end()));
  forms.erase(first, forms.end());
  return stale;
}

// Removes their bytes from the accounting.
void release(const std::vector<ReducedForm>& forms) {
  for (const ReducedForm& form : forms) {
    if (form.counted_in) form.counted_in->remove(form.id);
  }
}

// Adds an entry, and drops those of other recordings. `bytes`: on the rank that needs most. An entry larger than the
// limit is not cached.
void remember(const std::shared_ptr<LocalStorage>& storage, ReducedForm form, int64_t bytes) {
  std::vector<RememberedBytes::Entry> evicted;
  form.counted_in = remembered_of(form.from->mesh());
  form.id = form.counted_in->add(bytes, remembered_limit(form.from->mesh().world()), storage, evicted);
  forget(evicted);
  if (form.id == 0) return;
  std::vector<ReducedForm> stale;
  {
    std::lock_guard lock(storage->reduced_mutex);
    if (!storage->reduced) storage->reduced = std::make_shared<std::vector<ReducedForm>>();
    stale = take_stale(*storage, [&](const ReducedForm& f) {
      return f.writes != form.writes || (f.recording != 0 && f.recording != form.recording);
    });
    storage->reduced->push_back(std::move(form));
  }
  release(stale);
}

// Accounts its bytes in the memory meter.
std::shared_ptr<LocalStorage> hold_of(const Spec& spec, int64_t bytes) {
  return std::make_shared<LocalStorage>(spec.mesh().world(), bytes);
}

int64_t moved_bytes(const Spec& from, const RedistributePlan& plan) {
  return from.with_placements(plan.to.placements())->max_local_bytes();
}

// The current entry with data for `t` itself; null: none for which `says` holds. REQUIRES: storage.reduced_mutex is
// locked.
template <typename Says>
const ReducedForm* find_note(const LocalStorage& storage, const at::Tensor& t, const Spec& spec, Says says) {
  if (!storage.reduced) return nullptr;
  for (const ReducedForm& form : *storage.reduced) {
    if (!says(form) || !is_same(form, t, spec) || !is_current(form, storage) || form.seen != peek_meta(t).seen)
      continue;
    if (form.counted_in) form.counted_in->use(form.id);
    return &form;
  }
  return nullptr;
}

// Whether `form` provides `t` in the layout `to`.
bool tells(const ReducedForm& form, const at::Tensor& t, const Spec& spec, const Placements& to) {
  const Placements& known = form.plan->to.placements();
  if (is_same(form, t, spec)) return known == to;
  return lies_within(form, t, spec) && taking(form, known, spec, t.storage_offset(), to) != Taking::kNot;
}

// The entry that provides `t` in the layout `to`. Null: none, or the user may have written since. REQUIRES:
// storage.reduced_mutex is locked.
ReducedForm* find(LocalStorage& storage, const at::Tensor& t, const Spec& spec, const Placements& to) {
  if (!storage.reduced) return nullptr;
  for (ReducedForm& form : *storage.reduced) {
    if (!form.plan || !is_current(form, storage) || !tells(form, t, spec, to)) continue;
    if (form.counted_in) form.counted_in->use(form.id);
    return &form;
  }
  return nullptr;
}

// Whether data derived from the memory may be cached.
bool may_remember(const LocalStorage& storage) { return !storage.user_may_write && !c10::InferenceMode::is_enabled(); }

bool is_worth_remembering(const Spec& spec, const RedistributePlan& plan) {
  return !plan.is_local() && moved_bytes(spec, plan) <= remembered_limit(spec.mesh().world());
}

// The base of `t`; null: not known, or it differs in conjugation. REQUIRES: storage.reduced_mutex is locked.
const ReducedForm* base_of(const LocalStorage& storage, const at::Tensor& t, const Spec& spec) {
  if (!storage.reduced || storage.reduced->empty()) return nullptr;
  const ReducedForm& base = storage.reduced->front();
  const bool is_view = is_base(base) && !is_same(base, t, spec) && lies_within(base, t, spec);
  return is_view && base.seen == peek_meta(t).seen ? &base : nullptr;
}

// The layout of the base that provides its view in the layout `to`.
std::optional<Placements> layout_of_base(const ReducedForm& base, const Spec& view, int64_t offset,
                                         const Placements& to) {
  Placements wanted(to.size(), Replicate());
  if (only_reduces(view.placements(), to)) {
    wanted = without_partials(base.from->placements());
  } else if (!is_whole(to)) {
    const auto map = map_within(base, view, offset);
    const auto alike = map ? of_base(to, view, *base.from, *map) : std::nullopt;
    if (!alike) return std::nullopt;
    wanted = *alike;
  }
  return taking(base, wanted, view, offset, to) == Taking::kNot ? std::nullopt : std::optional(wanted);
}

}  // namespace

uint64_t count_write(LocalStorage& storage) {
  const uint64_t before = storage.writes.fetch_add(1, std::memory_order_relaxed);
  std::vector<ReducedForm> stale;
  {
    std::lock_guard lock(storage.reduced_mutex);
    stale = take_stale(storage, [&](const ReducedForm& f) { return f.writes <= before; });
  }
  release(stale);
  return before;
}

void forget(const std::vector<RememberedBytes::Entry>& evicted) {
  for (const RememberedBytes::Entry& entry : evicted) {
    const auto storage = entry.of.lock();
    if (!storage) continue;
    std::vector<ReducedForm> stale;
    std::lock_guard lock(storage->reduced_mutex);
    stale = take_stale(*storage, [&](const ReducedForm& f) { return f.id == entry.id; });
  }
}

void forget_after_backward(const DeviceMesh& mesh) {
  const auto remembered = remembered_of(mesh);
  if (!remembered->begins_backward(torch::autograd::get_current_graph_task_id())) return;
  auto& engine = torch::autograd::Engine::get_default_engine();
  // After the callbacks that backward itself has queued: those that reduce gradients use the cache.
  engine.queue_callback(
      [&engine, remembered] { engine.queue_callback([remembered] { forget(remembered->evict(0)); }); });
}

void note_whole(LocalStorage& storage, SpecPtr spec, RankTensors parts) {
  auto forms = std::make_shared<std::vector<ReducedForm>>();
  ReducedForm& whole = forms->emplace_back(ReducedForm{std::move(spec), 0, /*is_dense=*/true, {}, std::move(parts)});
  whole.writes = writes_of(storage);
  {
    std::lock_guard lock(storage.reduced_mutex);
    storage.reduced.swap(forms);
  }
  if (forms) release(*forms);
}

void note_view_of(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);
  LocalStorage& storage = *meta.storage;
  std::lock_guard lock(storage.reduced_mutex);
  if (is_whole(meta.spec->placements())) return;
  if (!storage.reduced) storage.reduced = std::make_shared<std::vector<ReducedForm>>();
  auto& forms = *storage.reduced;
  if (forms.empty() || !is_base(forms.front())) {
    ReducedForm base = form_of(t);
    base.recording = 0;
    forms.insert(forms.begin(), std::move(base));
  }
}

at::Tensor viewed_tensor(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);
  std::lock_guard lock(meta.storage->reduced_mutex);
  const ReducedForm* base = base_of(*meta.storage, t, *meta.spec);
  return base == nullptr ? at::Tensor()
                         : make_view(base->from, base->parts, t, base->offset);  // conjugated and negated like `t`
}

std::optional<RankTensors> find_known(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_of(t);
  if (!may_remember(*meta.storage)) return std::nullopt;
  const Placements& to = plan.to.placements();
  std::lock_guard lock(meta.storage->reduced_mutex);
  ReducedForm* form = find(*meta.storage, t, *meta.spec, to);
  return form == nullptr ? std::nullopt : std::optional(parts_of(*form, t, meta, to));
}

bool will_tell(const ReducedForm& moving, const at::Tensor& of, const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = peek_meta(t);
  LocalStorage& storage = *meta.storage;
  if (peek_meta(of).storage != meta.storage || !may_remember(storage)) return false;
  if (!is_worth_remembering(*moving.from, *moving.plan)) return false;
  return tells(moving, t, *meta.spec, plan.to.placements());
}

ReducedForm choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan) {
  constexpr double kLittleLonger = 2;  // if then the other views have it, too
  const DTensorMeta& meta = meta_of(t);
  const Spec& spec = *meta.spec;
  LocalStorage& storage = *meta.storage;
  ReducedForm moving = form_of(t);
  std::lock_guard lock(storage.reduced_mutex);
  if (const ReducedForm* base = may_remember(storage) ? base_of(storage, t, spec) : nullptr) {
    const auto base_to = layout_of_base(*base, spec, t.storage_offset(), plan->to.placements());
    if (base_to) {
      auto base_plan = cached_plan_within(base->from, *base_to, current_dispatch_scope().limits);
      const double limit =
          base_plan && is_worth_remembering(*base->from, *base_plan) ? kLittleLonger * plan->seconds : plan->seconds;
      if (base_plan && !base_plan->is_local() && base_plan->seconds <= limit) {
        moving.from = base->from;
        moving.offset = base->offset;
        moving.is_dense = base->is_dense;
        moving.seen = base->seen;
        moving.parts = base->parts;
        plan = std::move(base_plan);
      }
    }
  }
  moving.plan = std::move(plan);
  return moving;
}

bool will_remember(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = peek_meta(t);
  return may_remember(*meta.storage) && is_worth_remembering(*meta.spec, plan);
}

RankTensors finish_move(const at::Tensor& t, const Placements& to, ReducedForm moved) {
  const DTensorMeta& meta = peek_meta(t);
  RankTensors result = parts_of(moved, t, meta, to);
  if (!may_remember(*meta.storage) || !is_worth_remembering(*moved.from, *moved.plan)) return result;
  const int64_t bytes = moved_bytes(*moved.from, *moved.plan);
  moved.storage = hold_of(*meta.spec, bytes);
  remember(meta.storage, std::move(moved), bytes);
  return result;
}

at::Tensor reduced_before(const at::Tensor& t) {
  const DTensorMeta& seen = peek_meta(t);
  if (!seen.spec->has_partial() || !may_remember(*seen.storage)) return {};
  const DTensorMeta& meta = meta_of(t);
  const Placements to = without_partials(meta.spec->placements());
  std::lock_guard lock(meta.storage->reduced_mutex);
  ReducedForm* form = find(*meta.storage, t, *meta.spec, to);
  if (form == nullptr) return {};
  return make_view(meta.spec->with_placements(to), parts_of(*form, t, meta, to), t, t.storage_offset(), form->storage);
}

void note_sums(const at::Tensor& t, int64_t dim, at::Tensor sums) {
  const auto& storage = peek_meta(t).storage;
  if (!may_remember(*storage)) return;
  ReducedForm form = form_of(t);
  const int64_t bytes = spec_of(sums)->max_local_bytes();  // the meter counts them as a tensor
  form.sums = std::move(sums);
  form.summed_dim = dim;
  remember(storage, std::move(form), bytes);
}

at::Tensor known_sums(const at::Tensor& t, int64_t dim) {
  const DTensorMeta& meta = meta_of(t);
  LocalStorage& storage = *meta.storage;
  if (!may_remember(storage)) return {};
  std::lock_guard lock(storage.reduced_mutex);
  const ReducedForm* form =
      find_note(storage, t, *meta.spec, [&](const ReducedForm& f) { return f.sums.defined() && f.summed_dim == dim; });
  return form == nullptr ? at::Tensor() : form->sums;
}

void note_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes) {
  if (!may_remember(t)) return;
  ReducedForm form = form_of(t);
  form.locals = std::move(margins);
  form.margin_dim = dim;
  form.margin = width;
  form.storage = hold_of(*spec_of(t), bytes);
  remember(peek_meta(t).storage, std::move(form), bytes);
}

std::optional<Margins> known_margins(const at::Tensor& t, int64_t dim, int64_t width) {
  const DTensorMeta& meta = meta_of(t);
  LocalStorage& storage = *meta.storage;
  if (!may_remember(storage)) return std::nullopt;
  std::lock_guard lock(storage.reduced_mutex);
  const ReducedForm* form =
      find_note(storage, t, *meta.spec, [&](const ReducedForm& f) { return f.margin_dim == dim && f.margin >= width; });
  return form == nullptr ? std::nullopt : std::optional(Margins{form->margin, form->locals});
}

void note_surroundings(const at::Tensor& t, Surroundings surroundings) {
  if (!may_remember(t)) return;
  ReducedForm form = form_of(t);
  const int64_t bytes = box_bytes(surroundings, *spec_of(t));  // the meter counts them in the boxes
  form.surroundings = std::make_shared<const Surroundings>(std::move(surroundings));
  remember(peek_meta(t).storage, std::move(form), bytes);
}

std::shared_ptr<const Surroundings> known_surroundings(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);  // the parts may be deferred, and never be read
  LocalStorage& storage = *meta.storage;
  std::lock_guard lock(storage.reduced_mutex);
  if (!may_remember(storage)) return nullptr;
  const ReducedForm* form =
      find_note(storage, t, *meta.spec, [](const ReducedForm& f) { return f.surroundings != nullptr; });
  return form == nullptr || form->surroundings->boxes->are_forgotten() ? nullptr : form->surroundings;
}

bool may_remember(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);
  return may_remember(*meta.storage) && is_real(*meta.spec);
}

bool may_remember_new(const Spec& spec) { return is_real(spec) && !c10::InferenceMode::is_enabled(); }

}  // namespace dtensor
