// The state of the memory that a distributed tensor shares with its aliases: views, detached handles, `data()`.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtensor/tensor/on_demand.h"
#include "dtensor/tensor/view_window.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"

namespace dtensor::internal {

struct StorageCache;  // layout_cache/storage_cache.h
struct ModuleTraits;  // module_traits.h
class AppliedStyle;   // parallel/applied_style.h
class LeafGroup;      // gradients/leaf_group.h

struct LocalStorage;

// An observer of the reads and writes of one memory, which has elements of another tensor, its base. What it does
// follows from the layouts and the operators before: the same on all ranks.
class StorageObserver {
 public:
  explicit StorageObserver(at::Tensor base_tensor) : base(std::move(base_tensor)) {}
  virtual ~StorageObserver() = default;
  // Before the local tensors in `storage` are read: brings them up to date. May communicate.
  virtual void before_read(LocalStorage& storage) = 0;
  // Whether before_read() would begin a collective now.
  virtual bool needs_all_ranks() const = 0;
  // Before `op` writes to `t`, of this memory. Error (c10::NotImplementedError): the write could not reach the base,
  // and the two would diverge.
  virtual void check_write(const at::Tensor& t, std::string_view op) const = 0;
  // After `op` wrote to the local tensors of `t`: writes to the base, too. May communicate.
  virtual void after_write(const at::Tensor& t, std::string_view op) = 0;
  // For DTensor::explain(); "" where that differs between ranks.
  virtual std::string description() const = 0;

  const at::Tensor base;  // another handle of it
};

// A ghost width, and the tensor that set_ghost_width() declared it for: views of one memory may have several dtypes.
struct DeclaredWidth {
  Window of;
  c10::ScalarType dtype;
  std::vector<int64_t> width;
};

// What the functions of layout_cache/ keep for a memory.
struct CachedState {
  std::mutex mutex;                         // guards the next two
  std::vector<DeclaredWidth> ghost_widths;  // kept by writes
  // Copies of these tensors in other layouts, and other facts about them. Null: none so far.
  std::shared_ptr<StorageCache> contents;
  std::atomic<bool> has_base{false};     // contents->base is set, once and for all
  std::atomic<bool> has_entries{false};  // contents->entries are not empty: most writes need no lock
};

// What memory has because it is that of a parameter or buffer of some module, or of a copy of one.
struct ParameterState {
  // What dispatch() asks because of the module; null: nothing.
  std::shared_ptr<const ModuleTraits> traits;
  // The parallel style of the module, which operators follow above autograd; null: none.
  std::shared_ptr<AppliedStyle> style;
  // The parameters whose gradients are reduced with that of this one, by set_gradient_buckets(); null: those that
  // arrive next to it.
  std::shared_ptr<const LeafGroup> gradient_bucket;
};

// State of the memory that aliases share: its bytes, and how often it was written to.
struct LocalStorage {
  LocalStorage(const World& w, int64_t bytes);
  LocalStorage(const LocalStorage& of_same_world, int64_t bytes);  // cheaper
  ~LocalStorage();
  LocalStorage(const LocalStorage&) = delete;
  LocalStorage& operator=(const LocalStorage&) = delete;
  std::shared_ptr<const void> use_of_world;  // keeps the meter and the caches alive
  MemoryHold hold;
  OnDemand<CachedState> cached;
  OnDemand<ParameterState> parameter;
  // Views or other handles share the memory, or did: replacing the contents of one of them would separate them. (The
  // same on all ranks, unlike a count of present users.)
  std::atomic<bool> shared{false};
  // The user may write to the local tensors unseen by the library: nothing derived from them is cached. Set by
  // from_local() and mutable_local_tensors(), which all ranks call alike; reading local tensors does not set it.
  std::atomic<bool> user_may_write{false};
  // Operators treat it as a parameter's: of a leaf that requires grad, whose gradient gets its layout, or of a gathered
  // copy of one.
  std::atomic<bool> is_parameter{false};
  std::atomic<uint64_t> writes{0};
  // Of a copied view, which could not share its base's memory: a ViewOrigin (views/copied_view.h). Else null.
  std::shared_ptr<StorageObserver> observer;
};

}  // namespace dtensor::internal
