// Reading the local parts of a tensor on one rank alone. For the folders above.
//
// A user may read parts on some ranks and not on others, at any time: that never communicates and changes nothing that
// an operator decides later. Parts that only a collective can bring are not read then: the caller says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "dtensor/tensor/representation.h"

namespace dtensor {

// Are the parts of `t` there, or under way? Not those of
//   - a view whose parts had to be copies, after the tensor that it is a view of was written to;
//   - a slice or a padded tensor that no operator has read yet, of a sharded dim;
//   - a gradient inside backward that is computed together with others later.
// The same on all ranks. REQUIRES: is_dtensor(t).
bool has_parts(const at::Tensor& t);

// The locals of `t`, for a reader on any rank. Waits for what is under way, and never begins a collective.
// Error (c10::Error): the parts are not there; the text names `function` and fetch_parts(), which brings them.
const RankTensors& read_parts(const at::Tensor& t, std::string_view function);

// Collective where parts are not there, and called by all ranks alike: the user may write to the parts from now on,
// without the library seeing it. Nothing that is derived from them is remembered any more, deferred operators that read
// them get copies, and views that had to be copies are read anew.
void allow_user_writes(const at::Tensor& t);

}  // namespace dtensor
