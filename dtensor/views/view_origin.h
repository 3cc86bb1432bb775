// Views whose parts had to move: copies that know what they are views of. For the folders above.
//
// `x[2:5]` of a tensor sharded on that dim cannot share the memory of x. The copy keeps a ViewOrigin with its
// LocalStorage, so that tensors that share the copy's memory have it too. With it
//   - reading the copy after x was written to takes the view again, into the same memory (meta_of() sees to that). One
//     that comes late is read so for the first time, too: what is only overwritten never is;
//   - writing to the copy, or to what shares its memory, writes to x, and on to what x may itself be a copied view of
//     (note_write() sees to that): each rank stores what it holds of x.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "dtensor/tensor/representation.h"

namespace dtensor {

// How a view was taken: `args` with the base in its place.
struct ViewCall {
  c10::OperatorHandle op;
  c10::ArrayRef<c10::IValue> args;
  size_t base_arg = 0;  // which of them is the tensor
  size_t result = 0;    // which of the tensors that the operator returns
  Placements computed;  // the layout of the base that it was computed in
  // Writes what the view is now to its parts, which hold nothing before that; may communicate. Null: they are there,
  // and the operator is called again.
  std::function<void(const at::Tensor& base, const RankTensors& parts)> read = nullptr;
};

// Whether parts move is decided by the layouts: the same on all ranks. But a local view operator may also copy where
// the strides of a rank's part leave no other way, on some ranks and not on others, which may be those of other
// processes. Such a copy differs from a view that shares memory in nothing that others take part in: reading it anew
// and carrying back what is written to it move no part. What it costs to read or write further up or down a chain of
// views is the same, too. The one exception: an operator on lists that writes to such a view and to what it is of in
// one call works on one tensor after another (any_related()), so where it must move several other lists for that, their
// order is another than on ranks that share the memory.
struct ViewOrigin {
  ViewOrigin(const ViewCall& call, SpecPtr spec_of_view, RankTensors locals_of_view, bool moved);

  at::Tensor base;  // another handle on what the view is of
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // without the base
  size_t base_arg = 0, result = 0;
  decltype(ViewCall::read) read;
  SpecPtr spec;  // of the view, and its parts
  RankTensors locals;
  bool moved = false;         // parts moved for it; else it is a copy since some local view operator made one
  std::vector<bool> follows;  // per mesh dim: every rank's part of the view is of its own part of the base

  std::mutex mutex;               // one reader takes the view again
  std::atomic<uint64_t> seen{0};  // the writes to the base that the view has
};

// A view of the tensor in `call`. `offset`: where it begins in the memory of that tensor, in its own elements. It is a
// copied view where `locals` do not lie in the base's memory, or `moved` says so (an abstract world has no locals).
at::Tensor make_view_of(const ViewCall& call, SpecPtr spec, RankTensors locals, int64_t offset, bool moved);

// Takes the view again if what it is of was written to. REQUIRES: storage.origin.
void read_anew(LocalStorage& storage);

// Before `op` writes to `t`, whose memory is a copied view's.
// Error (c10::NotImplementedError): carry_back() could not take it to the tensor that is a view of, and the two would
// part.
void check_can_carry_back(const at::Tensor& t, std::string_view op);

// Takes what was written to `t`, whose memory is a copied view's, to the tensor that is a view of. `op`: who wrote.
void carry_back(const at::Tensor& t, std::string_view op);

// The memory that `t` shares, or that of the tensor that it is a copied view of in the end. REQUIRES: is_dtensor(t).
const LocalStorage* memory_viewed_by(const at::Tensor& t);

// Are there two among them that are not the same memory, but views of one tensor, some of them copied?
bool any_related(c10::ArrayRef<at::Tensor> tensors);

}  // namespace dtensor
