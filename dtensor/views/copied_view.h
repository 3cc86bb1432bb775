// Copied views: views whose parts had to move, with a reference to their base.
//
// `x[2:5]` of a tensor sharded on that dim cannot share the memory of x. The copy keeps a ViewOrigin with its
// LocalStorage, so that aliases of the copy have it too. With it
//   - reading the copy after x was written to takes the view again, into the same memory (ViewOrigin::before_read()
//     does this). A lazy view is first read in this way, too, so that one that is only overwritten is never read;
//   - writing to the copy, or to an alias of it, writes back to x, and on to the base of x if x is a copied view itself
//     (ViewOrigin::after_write() does this, in write_back.cc, by the exchange of write_back_exchange.h): each rank
//     stores the elements of x that it holds.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/views/view_call.h"

namespace dtensor::internal {

constexpr auto kRelaxed = std::memory_order_relaxed;  // for counts of writes, which guard no other data

// Whether parts move follows from the layouts: the same on all ranks. But a local view operator may also copy because
// of the strides of a rank's part, on some ranks and not on others, which may be in other processes. Such a copy needs
// no other rank: reading it again and writing back move no part. The cost of reading or writing further up or down a
// chain of views is the same, too. The one exception: an operator on lists that writes to such a view and to its base
// in one call works on one tensor after another (dispatch()), so if it must move several other lists, their order
// differs from that on ranks that share the memory.
struct ViewOrigin final : StorageObserver {
  ViewOrigin(const ViewCall& call, SpecPtr spec_of_view, RankTensors locals_of_view, bool moved);
  // Takes the view again if the base was written to.
  void before_read(LocalStorage& storage) override;
  bool needs_all_ranks() const override;
  // In write_back.cc: each rank stores the elements of the base that it holds.
  void check_write(const at::Tensor& t, std::string_view op) const override;
  void after_write(const at::Tensor& t, std::string_view op) override;
  std::string description() const override;

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

// The origin of a copied view; null for other memory.
inline ViewOrigin* origin_of(const LocalStorage& storage) { return static_cast<ViewOrigin*>(storage.observer.get()); }
// Those of `t`, of its base, of the base of that, and so on.
std::vector<ViewOrigin*> origins_of(const at::Tensor& t);
// Whether parts moved for the view `t`, or for one that it is a view of: alike on all ranks, while copies that a local
// operator made exist on some only.
bool is_moved_view(const at::Tensor& t);

}  // namespace dtensor::internal
