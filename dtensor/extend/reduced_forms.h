// Cached layouts of a tensor: once an operator has redistributed a tensor, later operators on it or on its views reuse
// the copy.
//
// Cached with the memory that aliases share (LocalStorage), until it is written to, and never visible to the user: the
// tensors keep their placements. The size limit and the eviction order: remembered_layouts.h. Where no rank has data,
// as in abstract worlds, only the layout is recorded. Everything follows from layouts, sizes, strides and the order of
// operators, the same on all ranks; reading parts on one rank changes nothing. Tensors whose parts the user may write
// to (LocalStorage::user_may_write) are not cached.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/extend/remembered_bytes.h"
#include "dtensor/extend/representation.h"
#include "dtensor/extend/surroundings.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// A cached layout of a tensor. An entry without plan and other data, first in the list of a memory, holds the base: the
// tensor that all others there are views of.
struct ReducedForm {
  SpecPtr from;
  int64_t offset = 0;     // where it begins in its memory, in elements
  bool is_dense = false;  // it fills that memory: views of it can be taken from the redistributed tensor
  LazyBits seen;          // DTensorMeta::seen
  RankTensors parts;      // local tensors before the plan
  std::shared_ptr<const RedistributePlan> plan = nullptr;
  RankTensors locals = {};  // after the plan
  uint64_t writes = 0;      // LocalStorage::writes when it began
  std::shared_ptr<LocalStorage> storage = nullptr;
  at::Tensor sums = {};  // of one without a plan: see note_sums()
  int64_t summed_dim = -1;
  int64_t margin_dim = -1, margin = 0;  // of one without a plan: `locals` are the margins of note_margins()
  std::shared_ptr<const Surroundings> surroundings = nullptr;  // of one without a plan: see note_surroundings()
  uint64_t recording = 0;                                      // CallSites::recording() when it was redistributed
  std::shared_ptr<RememberedBytes> counted_in = nullptr;       // accounting of its bytes, by that id; null: no bytes
  uint64_t id = 0;
};

// Records a write to that memory and drops its cached layouts. Returns the number of previous writes.
uint64_t count_write(LocalStorage& storage);
// Drops evicted entries.
void forget(const std::vector<RememberedBytes::Entry>& evicted);
// Inside backward: all cached layouts of tensors on `mesh` are dropped when this backward() ends.
void forget_after_backward(const DeviceMesh& mesh);

// Records that all tensors of that memory are views of one that has layout `spec` over `parts` now, and had another
// layout before.
void note_whole(LocalStorage& storage, SpecPtr spec, RankTensors parts);
// Records that a view of `t` is taken.
void note_view_of(const at::Tensor& t);
// The base of all tensors in the memory of `t`, as a handle of its own. Undefined: it is `t`, or not known.
at::Tensor viewed_tensor(const at::Tensor& t);

// The cached local tensors of `t` after `plan`, if any: for operators, which read them and release them.
std::optional<RankTensors> find_known(const at::Tensor& t, const RedistributePlan& plan);
// The redistribution that makes `t` after `plan` available, without `locals` yet: of the base of `t`, if that takes
// little longer, or of `t` itself.
ReducedForm choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan);
// Whether `t` after `plan` will be available once `moving`, chosen for `of`, has been redistributed.
bool will_tell(const ReducedForm& moving, const at::Tensor& of, const at::Tensor& t, const RedistributePlan& plan);
// Whether `t` after `plan` will be cached.
bool will_remember(const at::Tensor& t, const RedistributePlan& plan);
// The local tensors of `t` in the layout `to` after that redistribution, which is cached where the rules say so.
RankTensors finish_move(const at::Tensor& t, const Placements& to, ReducedForm moved);

// The cached reduced tensor of `t` if `t` is Partial: all-reduced, not reduce-scattered, since a reader that needs it
// whole would gather it. Else an undefined tensor.
at::Tensor reduced_before(const at::Tensor& t);

// Records the sums of `t` along `dim`, which becomes 1, when the operator that made `t` has them without communication.
// Example: the gradient of a row's loss by its scores is one number and zeros.
void note_sums(const at::Tensor& t, int64_t dim, at::Tensor sums);
// The recorded sums; an undefined tensor if there are none.
at::Tensor known_sums(const at::Tensor& t, int64_t dim);

// Records `margins`, the elements next to every rank's part of `t` along `dim`, with wrap-around: `width` elements
// before the part, then as many after it. Empty for a part without elements. `bytes`: of the rank with most.
void note_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes);
// Recorded margins of at least that width; nullopt if there are none.
struct Margins {
  int64_t width = 0;
  RankTensors locals;
};
std::optional<Margins> known_margins(const at::Tensor& t, int64_t dim, int64_t width);
void note_surroundings(const at::Tensor& t, Surroundings surroundings);
// Null: none are cached. For a copied view they belong to its last reading: call read_anew() first. Writing through a
// copied view keeps them if the halo elements come in the same exchange as the stored ones, or if none are missing:
// carry_back() of view_origin.h.
std::shared_ptr<const Surroundings> known_surroundings(const at::Tensor& t);
// Whether layouts of `t` may be cached. False where the user could write to the parts unseen.
bool may_remember(const at::Tensor& t);
// The same for a new tensor.
bool may_remember_new(const Spec& spec);

}  // namespace dtensor
