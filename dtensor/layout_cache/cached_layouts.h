// Layouts that a tensor is known in besides its own: what operators have brought to one is not moved again for another
// operator, nor for a view of the tensor. For the folders above.
//
// Remembered with the memory that tensors share (LocalStorage), until it is written to, and never given to the user:
// the tensors keep their placements. How much is remembered, and what goes first: remembered_layouts.h. Where no rank
// has data, as in abstract worlds, it is known that a layout would be there. All is decided by layouts, sizes, strides
// and the order of operators, the same on all ranks; that a rank reads parts changes nothing. Of tensors whose parts
// the user may write to (LocalStorage::user_may_write) nothing is remembered.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// A tensor as it was moved. The front one of a memory, if it says nothing else: the tensor that all others there are
// views of.
struct ReducedForm {
  SpecPtr from;
  int64_t offset = 0;     // where it begins in its memory, in elements
  bool is_dense = false;  // it fills that memory: what views within it are can be taken of what it was brought to
  LazyBits seen;          // DTensorMeta::seen
  RankTensors parts;      // as they are
  std::shared_ptr<const RedistributePlan> plan = nullptr;
  RankTensors locals = {};  // after the plan
  uint64_t writes = 0;      // LocalStorage::writes when it began
  std::shared_ptr<LocalStorage> storage = nullptr;
  at::Tensor sums = {};  // of one without a plan: see note_sums()
  int64_t summed_dim = -1;
  int64_t margin_dim = -1, margin = 0;  // of one without a plan: `locals` are what note_margins() says
  std::shared_ptr<const Surroundings> surroundings = nullptr;  // of one without a plan: see note_surroundings()
  uint64_t recording = 0;                                      // CallSites::recording() when it moved
  std::shared_ptr<RememberedBytes> counted_in = nullptr;       // what its bytes count in, by that id; null: no bytes
  uint64_t id = 0;
};

// That memory was written to: what was known of it before is forgotten. How often it was written to before.
uint64_t count_write(LocalStorage& storage);
// Forgets what was evicted.
void forget(const std::vector<RememberedBytes::Entry>& evicted);
// Inside backward: everything that is remembered of tensors on `mesh` is forgotten when this backward() ends.
void forget_after_backward(const DeviceMesh& mesh);

// All tensors of that memory are views of one that is laid out as `spec` over `parts` now, and were of another layout.
void note_whole(LocalStorage& storage, SpecPtr spec, RankTensors parts);
// A view of `t` is taken.
void note_view_of(const at::Tensor& t);
// The tensor that all others in the memory of `t` are views of, of which `t` is one, in a handle of its own. Undefined:
// it is `t`, or not known.
at::Tensor viewed_tensor(const at::Tensor& t);

// What `t` is after `plan`, if that is known: for operators, which read its parts and let go of them.
std::optional<RankTensors> find_known(const at::Tensor& t, const RedistributePlan& plan);
// What to move so that `t` is known as after `plan`, without `locals` yet: the tensor that it is a view of, where that
// takes little longer, or `t` itself.
ReducedForm choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan);
// Will `t` after `plan` be known when `moving`, chosen for `of`, has moved?
bool will_tell(const ReducedForm& moving, const at::Tensor& of, const at::Tensor& t, const RedistributePlan& plan);
// Will `t` after `plan` be remembered?
bool will_remember(const at::Tensor& t, const RedistributePlan& plan);
// What `t` is in the layout `to` when that has moved, which is remembered where that is the rule.
RankTensors finish_move(const at::Tensor& t, const Placements& to, ReducedForm moved);

// `t` as it was reduced before, if it is Partial and was, and nothing but reduced: not what was reduced to pieces, as
// who needs that whole would gather it. Else an undefined tensor.
at::Tensor reduced_before(const at::Tensor& t);

// The sums of `t` along `dim`, which becomes 1, are `sums`: who made `t` knows that without communication, as the
// gradient of a row's loss by its scores is one number and zeros.
void note_sums(const at::Tensor& t, int64_t dim, at::Tensor sums);
// Those; an undefined tensor if they are not known.
at::Tensor known_sums(const at::Tensor& t, int64_t dim);

// `margins` are what lies beside every rank's part of `t` along `dim`, the ends of the dim being neighbours: `width`
// elements before the part, then as many after it. Nothing, of a part without elements. `bytes`: of the rank that has
// most.
void note_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes);
// Those that are at least so wide, and how wide; nullopt if there are none.
struct Margins {
  int64_t width = 0;
  RankTensors locals;
};
std::optional<Margins> known_margins(const at::Tensor& t, int64_t dim, int64_t width);
void note_surroundings(const at::Tensor& t, Surroundings surroundings);
// Null: they are not known. Of a copied view they are those of what it last read: read_anew() comes first. Writing
// through a copied view keeps them where what ranks lack of it comes in the same exchange as what they store, or they
// lack nothing: carry_back() of view_origin.h.
std::shared_ptr<const Surroundings> known_surroundings(const at::Tensor& t);
// Is anything remembered of `t`? Not where the user could write to the parts unseen.
bool may_remember(const at::Tensor& t);
// Would it be of a new tensor?
bool may_remember_new(const Spec& spec);

}  // namespace dtensor
