// Aliases of a replicated tensor whose layout the engine chose: a cache, or the buffer of a loop's results, which is
// written slice by slice. Writing a sharded value to one of the aliases may shard all of them alike, without
// communication, if the dim is whole in every view that was ever taken.
//
//   Tensor cache = torch::zeros({batch, heads, length, width});  // in a MeshScope: replicated
//   cache.slice(2, at, at + 1).copy_(keys);                      // keys are S(1): cache becomes S(1)
//
// Which dims may be split follows from the views that were ever taken, not from those alive, so it is the same on all
// ranks. Splitting changes all aliases: no other thread may use one of them meanwhile, not even another slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "dtensor/tensor/alias_hooks.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/view_window.h"
#include "plan/limits.h"

namespace dtensor {

// Thread-safe.
class AliasGroup {
 public:
  // `by_slices`: writing to all of it keeps its layout.
  AliasGroup(const at::Tensor& whole, bool by_slices);

  void add(DTensorMeta& meta, const Window& window);
  void remove(DTensorMeta& meta);
  // A bit per dim of a tensor along which all aliases may be split. 0: none, it is not an alias, or they do not fit
  // within `limits` before and after.
  uint64_t splittable(const DTensorMeta& meta, const Limits& limits) const;
  // Fixes the layout of all aliases permanently.
  void keep();
  // REQUIRES: `to` shards only dims of splittable(meta), and is Replicate elsewhere.
  void split(const DTensorMeta& meta, const Placements& to);

 private:
  RankTensors parts_of(const DTensorMeta& meta, const DimMap& map) const;
  void end();  // REQUIRES: mutex_ is locked

  mutable std::mutex mutex_;
  SpecPtr spec_;  // of the whole tensor
  RankTensors locals_;
  const bool by_slices_;
  uint64_t dims_ = 0;                                  // of the whole tensor: dims along which all may be split
  absl::flat_hash_map<DTensorMeta*, DimMap> members_;  // the aliases, with their windows of the whole tensor
};

// Allows the layout of the new, replicated tensor `t` to change when slices of it are written.
void open_layout(const at::Tensor& t);
// AliasGroup::split() by what is written to `t`. REQUIRES: CallContext::mutable_layouts has it.
void shard_alias_group(const at::Tensor& t, const Placements& to);

}  // namespace dtensor
