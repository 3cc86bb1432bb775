#include "dtensor/views/copied_view.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/view_window.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Another tensor with the same contents, without autograd history: the user's own tensor may get other contents.
at::Tensor another_handle(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  at::Tensor handle = make_view(meta.spec, meta.locals, t, t.storage_offset());
  if (meta.name) set_name(handle, *meta.name);
  return handle;
}

bool shares_memory(const RankTensors& locals, const RankTensors& base) {
  for (size_t i = 0; i < locals.size(); ++i) {
    if (locals[i].numel() > 0 && !locals[i].is_alias_of(base[i])) return false;
  }
  return true;
}

std::vector<c10::IValue> without_base(const ViewCall& call) {
  std::vector<c10::IValue> args(call.args.begin(), call.args.end());
  args[call.base_arg] = c10::IValue();
  return args;
}

// The view that the call returns now.
at::Tensor take_again(const ViewOrigin& origin) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const DispatchScopeGuard no_call_of_the_program([](DispatchScope& s) { s.step_decider = nullptr; });
  Stack stack(origin.args.begin(), origin.args.end());
  stack[origin.base_arg] = origin.base;
  origin.op.callBoxedForDispatchKey(kDTensorKey, stack);
  size_t k = origin.result;
  for (const c10::IValue& value : stack) {
    if (value.isTensor() && k-- == 0) return value.toTensor();
    if (!value.isTensorList()) continue;
    const auto list = value.toTensorVector();
    if (k < list.size()) return list[k];
    k -= list.size();
  }
  TORCH_INTERNAL_ASSERT(false, origin.op.operator_name(), " gave fewer views than before");
}

void read_by_call(const ViewOrigin& origin) {
  at::Tensor now = take_again(origin);
  const CommCause cause = call_cause(origin.op, "self", origin.base);
  now = redistribute_below_autograd(now, origin.spec->placements(), cause);
  LocalGuard guard;
  for (size_t i = 0; i < origin.locals.size(); ++i) copy_values(origin.locals[i], meta_for_read(now).locals[i]);
}

}  // namespace

ViewOrigin::ViewOrigin(const ViewCall& call, SpecPtr spec_of_view, RankTensors locals_of_view, bool parts_moved)
    : StorageObserver(another_handle(call.args[call.base_arg].toTensor())),
      op(call.op),
      args(without_base(call)),
      base_arg(call.base_arg),
      result(call.result),
      read(call.read),
      spec(std::move(spec_of_view)),
      locals(std::move(locals_of_view)),
      moved(parts_moved) {
  const Placements& placements = spec_of(base)->placements();
  for (size_t m = 0; m < placements.size(); ++m) follows.push_back(call.computed[m] == placements[m]);
}

at::Tensor make_view_of(const ViewCall& call, SpecPtr spec, RankTensors locals, int64_t offset, bool moved) {
  const at::Tensor& base = call.args[call.base_arg].toTensor();
  const DTensorMeta& meta = meta_without_sync(base);
  // Offsets count elements of the tensor's own dtype.
  const auto base_size = static_cast<int64_t>(c10::elementSize(meta.spec->dtype())),
             size = static_cast<int64_t>(c10::elementSize(spec->dtype()));
  offset += base.storage_offset() * base_size / size;
  if (!moved && shares_memory(locals, meta.locals)) {
    const std::string& name = call.op.schema().name();
    const ConjNegBits flips{name == "aten::_conj", name == "aten::_neg_view"};
    set_base_of_views(base);
    at::Tensor view = make_view(std::move(spec), std::move(locals), base, offset);
    mutable_hints(view).seen = meta.seen ^ flips;
    return view;
  }

  auto origin = std::make_shared<ViewOrigin>(call, spec, locals, moved);
  // If the base is an outdated copied view, this view is outdated, too; likewise if the base has not been read yet.
  const ViewOrigin* above = origin_of(*meta.storage);
  const bool late =
      above && above->seen.load(kRelaxed) != meta_without_sync(above->base).storage->writes.load(kRelaxed);
  origin->seen = meta.storage->writes.load(kRelaxed) - (call.read || (late && !moved) ? 1 : 0);
  auto storage = std::make_shared<LocalStorage>(spec->mesh().world(), spec->max_local_bytes());
  // Ranks that share the memory of parts given to from_local() cache nothing, so those that copied them do not either.
  if (!moved) storage->user_may_write = meta.storage->user_may_write.load(kRelaxed);
  storage->observer = std::move(origin);
  return make_view(std::move(spec), std::move(locals), base, offset, std::move(storage));
}

void ViewOrigin::before_read(LocalStorage& storage) {
  std::lock_guard lock(mutex);
  LocalStorage& base_storage = *meta_without_sync(base).storage;
  if (base_storage.observer) base_storage.observer->before_read(base_storage);
  const uint64_t writes = base_storage.writes.load(kRelaxed);
  if (seen.load(kRelaxed) == writes) return;
  if (read) {
    read(base);
  } else {
    read_by_call(*this);
  }
  mark_written(storage);
  seen.store(writes, kRelaxed);
}

std::vector<ViewOrigin*> origins_of(const at::Tensor& t) {
  std::vector<ViewOrigin*> origins;
  for (ViewOrigin* origin = origin_of(*meta_without_sync(t).storage); origin != nullptr;
       origin = origin_of(*meta_without_sync(origin->base).storage))
    origins.push_back(origin);
  return origins;
}

bool is_moved_view(const at::Tensor& t) {
  const std::vector<ViewOrigin*> origins = origins_of(t);
  return std::any_of(origins.begin(), origins.end(), [](const ViewOrigin* origin) { return origin->moved; });
}

// Views that a local operator copied on some ranks only are read again from the rank's own part.
bool ViewOrigin::needs_all_ranks() const {
  const DTensorMeta& of_base = meta_without_sync(base);
  const auto& above = of_base.storage->observer;
  const bool is_current = seen.load(kRelaxed) == of_base.storage->writes.load(kRelaxed);
  return (above && above->needs_all_ranks()) ||
         (!is_current && (moved || (of_base.arriving && of_base.arriving->needs_all_ranks())));
}

// Copies that a local operator made may exist on some ranks only; parts move on all ranks alike.
std::string ViewOrigin::description() const {
  return moved ? c10::str("copied view, by ", op.operator_name(), ", of ", spec_of(base)->to_string()) : "";
}

}  // namespace dtensor::internal
