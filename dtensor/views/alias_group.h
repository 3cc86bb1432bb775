// Tensors that share the memory of one that every rank has whole since an operator made it so: a cache, or the list of
// a loop's results, which is written slice by slice. Nobody asked for that layout. Who writes a sharded value to one of
// them may split all of them alike, which moves nothing, where the dim is whole in every view that was ever taken.
//
//   Tensor cache = torch::zeros({batch, heads, length, width});  // in a MeshScope: replicated
//   cache.slice(2, at, at + 1).copy_(keys);                      // keys are S(1): from now on so is cache
//
// What may be split follows from the views that were taken, not from those that are alive: it is the same on all ranks.
// Whoever does it changes all of the tensors: another thread must not use one of them meanwhile, also not another
// slice. For the folders above.
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
class Sharers {
 public:
  // `by_slices`: who writes to all of it leaves it as it is.
  Sharers(const at::Tensor& whole, bool by_slices);

  void add(DTensorMeta& meta, const Window& window);
  void remove(DTensorMeta& meta);
  // A bit per dim of a tensor along which all may be split. 0: none, it is not among them, or they do not fit within
  // `limits` before and after.
  uint64_t splittable(const DTensorMeta& meta, const Limits& limits) const;
  // They stay as they are for good.
  void keep();
  // REQUIRES: `to` shards what is splittable(meta), and is Replicate elsewhere.
  void split(const DTensorMeta& meta, const Placements& to);

 private:
  RankTensors parts_of(const DTensorMeta& meta, const DimMap& map) const;
  void end();  // REQUIRES: mutex_ is locked

  mutable std::mutex mutex_;
  SpecPtr spec_;  // of the whole tensor
  RankTensors locals_;
  const bool by_slices_;
  uint64_t dims_ = 0;                                  // of the whole tensor: those along which all may be split
  absl::flat_hash_map<DTensorMeta*, DimMap> sharers_;  // and where they lie in the whole tensor
};

// Nobody has asked for the layout of `t`, which is new and replicated: who writes to slices of it may change that.
void open_layout(const at::Tensor& t);
// Sharers::split() by what is written to `t`. REQUIRES: CallContext::mutable_layouts has it.
void split_sharers(const at::Tensor& t, const Placements& to);

}  // namespace dtensor
