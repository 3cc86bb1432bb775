// How a distributed tensor is stored in an at::Tensor. For the folders above.
//
// The TensorImpl has the global sizes and strides, the real device, no storage, and one more dispatch key; everything
// else is in a BackendMeta. Shallow copies (detach, variable_data, set_data) share it, so `param.set_data(dtensor)`
// turns a parameter into a distributed one in place. To change layout or locals of one tensor, attach a new
// DTensorMeta; only split_sharers() changes them where they are, for all who share the memory.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_work.h"
#include "comm/rank_tensors.h"
#include "dtensor/dispatch_key.h"
#include "mesh/memory_meter.h"
#include "plan/spec.h"

namespace dtensor {

struct ViewOrigin;    // view_origin.h
class Sharers;        // alias_group.h
struct StorageCache;  // layout_cache/storage_cache.h
class HookWatch;      // hook_watch.h

// What tensors that share memory share: the bytes they keep alive, and how often they were written to.
struct LocalStorage {
  LocalStorage(const World& w, int64_t bytes);
  ~LocalStorage();
  LocalStorage(const LocalStorage&) = delete;
  LocalStorage& operator=(const LocalStorage&) = delete;
  World world;  // keeps the meter and the caches alive
  MemoryHold hold;
  std::atomic<uint64_t> writes{0};
  // Of a view that could not share the memory of the tensor it is of, since parts had to move: what it is a view of.
  // Else null.
  std::shared_ptr<ViewOrigin> origin;
  // Views or other handles share it, or did: giving one of them other contents would part them. (The same on all ranks,
  // as a count of present users is not.)
  std::atomic<bool> shared{false};
  // Those, where they may still be laid out anew together; set once, owned. Null: they may not.
  std::atomic<Sharers*> sharers{nullptr};
  // Of a parameter: a leaf that wants a gradient, which comes back in its layout.
  std::atomic<bool> is_parameter{false};
  // Hooks of modules that should run before anyone computes with this; null without such.
  std::shared_ptr<const std::vector<std::shared_ptr<HookWatch>>> hook_watches;
  // The user may write to the local tensors, which the library cannot see: nothing derived from them is remembered. Set
  // by from_local() and mutable_local_tensors(), which all ranks call alike; reading local tensors does not set it.
  std::atomic<bool> user_may_write{false};
  // Copies of these tensors in other layouts, and other facts about them; guarded by cache_mutex. Null: none so far.
  std::mutex cache_mutex;
  std::shared_ptr<StorageCache> cache;
};

// That memory is seen conjugated, or negated. A distributed tensor does not say so itself, its parts do.
struct LazyBits {
  bool conj = false, neg = false;

  friend bool operator==(const LazyBits&, const LazyBits&) = default;
  friend LazyBits operator^(LazyBits a, LazyBits b) { return {a.conj != b.conj, a.neg != b.neg}; }  // between the two
};

struct DTensorMeta final : c10::BackendMeta {
  ~DTensorMeta() override;

  SpecPtr spec;
  RankTensors locals;  // one per spec->mesh().local_ranks()
  std::shared_ptr<LocalStorage> storage;
  std::shared_ptr<const std::string> name;  // a parameter's path in its module, or null
  std::shared_ptr<CommWork> arriving;       // what fills in the locals, or null
  bool may_be_late = false;                 // the locals are arriving, or a copied view's

  // An operator's result, in the layout that was cheapest: nobody asked for it.
  bool laid_out_by_engine = false;
  // As CallContext::constant_fills, until a write.
  bool is_constant_fill = false;
  // As CallContext::preferred_layouts. Null: not known.
  SpecPtr preferred_layout = nullptr;
  // How this tensor sees its memory, beside how the first tensor of that memory does: what the view operators between
  // the two say, so that ranks whose parts are empty know it, too.
  LazyBits seen;
};

// Waits for what is arriving, as the call that began it would have: below autograd, on plain tensors.
void wait_for_locals(const DTensorMeta& meta);
// The same, and reads a copied view anew if the tensor it is of was written to.
void settle_locals(const DTensorMeta& meta);

// Neither waits nor reads anew: not to look at the locals. REQUIRES: is_dtensor(t).
inline const DTensorMeta& peek_meta(const at::TensorBase& t) {
  return *static_cast<const DTensorMeta*>(t.unsafeGetTensorImpl()->get_backend_meta());
}
inline const SpecPtr& spec_of(const at::TensorBase& t) { return peek_meta(t).spec; }
// To read the locals: they hold what `t` holds. May communicate, see settle_locals().
// Errors: those of the collective that fills in the locals. REQUIRES: is_dtensor(t).
inline const DTensorMeta& meta_of(const at::TensorBase& t) {
  const DTensorMeta& meta = peek_meta(t);
  if (meta.may_be_late) settle_locals(meta);
  return meta;
}
// To overwrite the locals or to share their memory: what they hold may be out of date. REQUIRES: is_dtensor(t).
inline const DTensorMeta& memory_of(const at::TensorBase& t) {
  const DTensorMeta& meta = peek_meta(t);
  if (meta.may_be_late) wait_for_locals(meta);
  return meta;
}

// A new tensor of `spec` over `locals`, with memory of its own. `arriving`: what fills in the locals, if they are not
// there yet.
at::Tensor make_dtensor(SpecPtr spec, RankTensors locals, std::shared_ptr<const std::string> name = nullptr,
                        std::shared_ptr<CommWork> arriving = nullptr);
// The same of an operator's result, whose layout the engine chose.
at::Tensor make_result(SpecPtr spec, RankTensors locals, std::shared_ptr<CommWork> arriving = nullptr);
// Sets DTensorMeta::is_constant_fill of a new tensor.
void set_constant_fill(const at::Tensor& t);
// Sets DTensorMeta::preferred_layout of a new tensor.
void set_preferred_layout(const at::Tensor& t, SpecPtr preferred_layout);
// The same for a view of `base`, which is a normal tensor in inference mode if the base is. `storage`: null where the
// locals share the memory of the base's, and are there when those are. `offset`: where a plain tensor would begin in
// its storage. See make_view_of() in view_origin.h.
at::Tensor make_view(SpecPtr spec, RankTensors locals, const at::Tensor& base, int64_t offset,
                     std::shared_ptr<LocalStorage> storage = nullptr, std::shared_ptr<CommWork> arriving = nullptr);
// Sets DTensorMeta::seen of a view that was just made: as its base, but for `flips`.
void set_flipped(const at::Tensor& view, LazyBits flips);

LazyBits lazy_bits(const at::Tensor& plain);
// Of the parts of one tensor. One of nothing may have lost them, and is asked only if there is no other.
LazyBits lazy_bits(const RankTensors& locals);
// `t`, distributed or not, seen so: a view that conjugates and negates what `t` is.
at::Tensor seen_with(at::Tensor t, LazyBits bits);

// Gives `t`, which is distributed, another layout, other locals with memory of their own, and other sizes in place; its
// identity and autograd history stay, and whose choice its layout was.
void replace_contents(const at::Tensor& t, SpecPtr spec, RankTensors locals);
// The same with the layout, the locals and the memory of `other`.
void share_contents(const at::Tensor& t, const at::Tensor& other);

// Gives a distributed tensor a name (a parameter's path); its layout, parts and memory stay.
void set_name(const at::Tensor& t, std::string name);
// "layers.0" of a tensor called "layers.0.weight"; "" without a name or a dot.
std::string module_of(const DTensorMeta& meta);

// Whoever wrote to `t`'s locals says so here: marks that its memory was written to, and takes what was written to the
// tensor that a copied view is of, which may communicate. `op`: who did, for reports.
void note_write(const at::Tensor& t, std::string_view op);

// Runs below autograd and below the distributed key: on local tensors.
struct LocalGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_us{kDTensorKey};
};

}  // namespace dtensor
