// Copied views: views whose parts had to move, with a reference to their base.
//
// `x[2:5]` of a tensor sharded on that dim cannot share the memory of x. The copy keeps a ViewOrigin with its
// LocalStorage, so that aliases of the copy have it too. With it
//   - reading the copy after x was written to takes the view again, into the same memory (ViewOrigin::before_read()
//     does this). A lazy view is first read in this way, too, so that one that is only overwritten is never read;
//   - writing to the copy, or to an alias of it, writes back to x, and on to the base of x if x is a copied view itself
//     (note_write() does this): each rank stores the elements of x that it holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

constexpr auto kRelaxed = std::memory_order_relaxed;  // for counts of writes, which guard no other data

// How a view was taken: `args` with the base among them.
struct ViewCall {
  c10::OperatorHandle op;
  c10::ArrayRef<c10::IValue> args;
  size_t base_arg = 0;  // index of the base in args
  size_t result = 0;    // index of the view among the operator's results
  Placements computed;  // the layout of the base in which the view was computed
  // Writes the view's present values to its parts, whose contents are undefined before; may communicate. Null: the
  // operator is called again.
  std::function<void(const at::Tensor& base, const RankTensors& parts)> read = nullptr;
};

// Whether parts move follows from the layouts: the same on all ranks. But a local view operator may also copy because
// of the strides of a rank's part, on some ranks and not on others, which may be in other processes. Such a copy needs
// no other rank: reading it again and writing back move no part. The cost of reading or writing further up or down a
// chain of views is the same, too. The one exception: an operator on lists that writes to such a view and to its base
// in one call works on one tensor after another (any_related()), so if it must move several other lists, their order
// differs from that on ranks that share the memory.
struct ViewOrigin final : StorageObserver {
  ViewOrigin(const ViewCall& call, SpecPtr spec_of_view, RankTensors locals_of_view, bool moved);
  // Takes the view again if the base was written to.
  void before_read(LocalStorage& storage) override;

  at::Tensor base;  // another handle of the base
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // without the base
  size_t base_arg = 0, result = 0;
  decltype(ViewCall::read) read;
  SpecPtr spec;  // of the view, and its parts
  RankTensors locals;
  bool moved = false;         // parts moved for it; else a local view operator made the copy
  std::vector<bool> follows;  // per mesh dim: whether every rank's part of the view lies in its own part of the base

  std::mutex mutex;               // only one reader takes the view again
  std::atomic<uint64_t> seen{0};  // the number of writes to the base that the view includes
};

// A view of the tensor in `call`. `offset`: where it begins in the memory of that tensor, in its own elements. It is a
// copied view if `locals` do not share the base's memory, or if `moved` is set (an abstract world has no locals).
at::Tensor make_view_of(const ViewCall& call, SpecPtr spec, RankTensors locals, int64_t offset, bool moved);

// The origin of a copied view; null for other memory.
inline ViewOrigin* origin_of(const LocalStorage& storage) { return static_cast<ViewOrigin*>(storage.origin.get()); }

// The memory of `t`, or if it is a copied view's, that of the last base in the chain. REQUIRES: is_dtensor(t).
const LocalStorage* memory_viewed_by(const at::Tensor& t);

// Whether two of them have different memory but are views of one tensor, some of them copied.
bool any_related(c10::ArrayRef<at::Tensor> tensors);

}  // namespace dtensor::internal
