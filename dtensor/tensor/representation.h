// How a distributed tensor is stored in an at::Tensor.
//
// The TensorImpl has the global sizes and strides, the real device, no storage, and one more dispatch key; everything
// else is in a BackendMeta. Shallow copies (detach, variable_data, set_data) share it, so `param.set_data(dtensor)`
// turns a parameter into a distributed one in place. Layout and locals in it never change: to give a tensor others,
// attach a new DTensorMeta.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm_work.h"
#include "comm/rank_tensors.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/conj_neg_bits.h"
#include "dtensor/tensor/local_guard.h"
#include "dtensor/tensor/local_storage.h"
#include "plan/spec.h"
#include "propagation/call_context.h"

namespace dtensor::internal {

struct DTensorMeta final : c10::BackendMeta {
  // For representation.cc only. `beside_storage`: this object and `*storage` are in one allocation, as for the first
  // tensor of a memory.
  DTensorMeta(SpecPtr&& layout, RankTensors&& parts, std::shared_ptr<LocalStorage>&& memory,
              std::shared_ptr<CommWork>&& work, bool beside_storage)
      : spec(std::move(layout)),
        locals(std::move(parts)),
        storage(std::move(memory)),
        is_beside_storage(beside_storage),
        arriving(std::move(work)) {}
  ~DTensorMeta() override;
  // Only destroys an object beside its storage: that allocation is freed when the last alias releases `storage`.
  void operator delete(DTensorMeta* meta, std::destroying_delete_t);

  SpecPtr spec;
  RankTensors locals;  // one per spec->mesh().local_ranks()
  std::shared_ptr<LocalStorage> storage;
  // The locals are arriving, or a copied view's, or in host memory of ranks on GPUs.
  bool may_need_sync = false;

  // An operator's result, in a layout that the engine chose, not the user.
  bool laid_out_by_engine = false;
  // As CallContext::factory_inputs, until a write.
  bool from_factory = false;
  // Conjugation and negation relative to the first tensor of that memory, by the view operators between the two.
  // Recorded so that ranks with empty parts have it, too.
  ConjNegBits seen;
  const bool is_beside_storage;
  TensorHints hints;                        // from the operator that made it
  std::shared_ptr<CommWork> arriving;       // fills in the locals, or null
  std::shared_ptr<const std::string> name;  // a parameter's path in its module, or null
};

// Waits for a collective that is filling in the locals, as the call that began it would have: below autograd, on plain
// tensors.
void wait_for_locals(const DTensorMeta& meta);
// The same, and reads a copied view again if its base was written to.
void settle_locals(const DTensorMeta& meta);

// To set hints: laid_out_by_engine, and of a new tensor the members after it. REQUIRES: is_dtensor(t).
inline DTensorMeta& mutable_hints(const at::TensorBase& t) {
  return *static_cast<DTensorMeta*>(t.unsafeGetTensorImpl()->get_backend_meta());
}
// For metadata only: neither waits nor reads again, so the locals may be out of date. REQUIRES: is_dtensor(t).
inline const DTensorMeta& meta_without_sync(const at::TensorBase& t) { return mutable_hints(t); }
inline const SpecPtr& spec_of(const at::TensorBase& t) { return meta_without_sync(t).spec; }
// To read the locals: they are up to date. May communicate, see settle_locals().
// Errors: those of the collective that fills in the locals. REQUIRES: is_dtensor(t).
inline const DTensorMeta& meta_for_read(const at::TensorBase& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (meta.may_need_sync) settle_locals(meta);
  return meta;
}
// The memory of `t`, or that of the last base in its chain of observers. REQUIRES: is_dtensor(t).
inline const LocalStorage* memory_viewed_by(const at::TensorBase& t) {
  const LocalStorage* memory = meta_without_sync(t).storage.get();
  while (memory->observer) memory = meta_without_sync(memory->observer->base).storage.get();
  return memory;
}
// To overwrite the locals or to share their memory: their values may be out of date. REQUIRES: is_dtensor(t).
inline const DTensorMeta& meta_for_write(const at::TensorBase& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (meta.may_need_sync) wait_for_locals(meta);
  return meta;
}

// A new tensor of `spec` over `locals`, with memory of its own: calls match_strides(). `arriving`: the work that fills
// in the locals, if they are not available yet, which match_strides() then leaves as they are.
at::Tensor make_dtensor(SpecPtr spec, RankTensors locals, std::shared_ptr<const std::string> name = nullptr,
                        std::shared_ptr<CommWork> arriving = nullptr);
// The same, cheaper, for a copy of `origin` in another layout, with its name. REQUIRES: `spec` is of the same world.
at::Tensor make_moved(const at::Tensor& origin, SpecPtr spec, RankTensors locals,
                      std::shared_ptr<CommWork> arriving = nullptr);
// As make_dtensor() for an operator's result, whose layout the engine chose.
at::Tensor make_result(SpecPtr spec, RankTensors locals, std::shared_ptr<CommWork> arriving = nullptr);
// The same, cheaper, for the result of a call on `input`, a tensor of the same world.
at::Tensor make_result_of(const at::Tensor& input, SpecPtr&& spec, RankTensors&& locals);
// As make_dtensor() and make_result_of(), but keep the given parts themselves in any strides: other tensors have them,
// too.
at::Tensor make_alias(SpecPtr spec, RankTensors locals);
at::Tensor make_alias_of(const at::Tensor& input, SpecPtr&& spec, RankTensors&& locals);
// As make_alias_of() for a view of `base`, which is a normal tensor in inference mode if the base is. `storage`: null
// where the locals share the memory of the base's, and are available when those are. `offset`: the storage offset that
// a plain tensor would have. See make_view_of() in view_call.h.
at::Tensor make_view(SpecPtr spec, RankTensors locals, const at::Tensor& base, int64_t offset,
                     std::shared_ptr<LocalStorage> storage = nullptr, std::shared_ptr<CommWork> arriving = nullptr);

// Replaces layout, locals (with memory of their own) and sizes of the distributed tensor `t` in place; its identity,
// its autograd history and laid_out_by_engine stay.
void replace_contents(const at::Tensor& t, SpecPtr spec, RankTensors locals);
// The same with the layout, the locals and the memory of `other`.
void share_contents(const at::Tensor& t, const at::Tensor& other);

// Gives a distributed tensor a name (a parameter's path); its layout, parts and memory stay.
void set_name(const at::Tensor& t, std::string name);
// "layers.0" of a tensor called "layers.0.weight"; "" without a name or a dot.
std::string module_of(const DTensorMeta& meta);

}  // namespace dtensor::internal
