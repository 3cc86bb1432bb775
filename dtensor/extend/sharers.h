// Tensors that share the memory of one that every rank has whole since an operator made it so: a cache, or the list of
// a loop's results, which is written slice by slice. Nobody asked for that layout. Who writes a sharded value to one of
// them may split all of them alike, which moves nothing, where the dim is whole in every view that was ever taken.
//
//   Tensor cache = torch::zeros({batch, heads, length, width});  // in a MeshScope: replicated
//   cache.slice(2, at, at + 1).copy_(keys);                      // keys are S(1): from now on so is cache
//
// What may be split follows from the views that were taken, not from those that are alive: it is the same on all ranks.
// For the folders above.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "dtensor/extend/representation.h"
#include "dtensor/extend/view_window.h"

namespace dtensor {

// Thread-safe.
class Sharers {
 public:
  explicit Sharers(const at::Tensor& whole);

  void add(DTensorMeta& meta, const Window& window);
  void remove(const DTensorMeta& meta);
  // A bit per dim of a tensor along which all may be split. 0: none, or it is not among them.
  uint64_t splittable(const DTensorMeta& meta) const;
  // They stay as they are for good.
  void keep();
  // REQUIRES: `to` shards what is splittable(meta), and is Replicate elsewhere.
  void split(const DTensorMeta& meta, const Placements& to);

 private:
  struct Sharer {
    DTensorMeta* meta;
    DimMap map;  // of the whole tensor
  };
  const Sharer* find(const DTensorMeta& meta) const;
  RankTensors parts_of(const Sharer& sharer) const;

  mutable std::mutex mutex_;
  SpecPtr spec_;  // of the whole tensor
  RankTensors locals_;
  uint64_t dims_ = 0;  // of the whole tensor: those along which all may be split
  std::vector<Sharer> sharers_;
};

// Nobody has asked for the layout of `t`, which is new: as if an operator had made it.
void open_layout(const at::Tensor& t);
// Somebody is about to share the memory of `t`.
void begin_sharing(const at::Tensor& t);
// `t` is new, and its memory is another one's.
void join_sharers(const at::Tensor& t);
// A tensor ends.
void leave_sharers(const DTensorMeta& meta);
// Somebody depends on the layout that this memory has.
void keep_layout_of_sharers(LocalStorage& storage);
// Sharers::split() by what is written to `t`. REQUIRES: OpCall::free_layouts said that it may be.
void split_sharers(const at::Tensor& t, const Placements& to);

}  // namespace dtensor
