// Reads the local tensors of a distributed tensor on one rank alone; writes to them other than by operators.
//
// A user may read local tensors on some ranks and not on others, at any time: that never communicates and does not
// affect later decisions of operators. Reading parts that first need a collective is an error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <string_view>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

// Whether the local tensors of `t` are available, or under way. They are not for
//   - a view whose parts had to be copies, after its base was written to;
//   - a slice or a padded tensor that no operator has read yet, of a sharded dim;
//   - a gradient inside backward that is computed together with others later.
// The same on all ranks. REQUIRES: is_dtensor(t).
bool has_parts(const at::Tensor& t);

// The local tensors of `t`, for a reader on any rank. Waits for a collective that is under way, and never begins one.
// Error (c10::Error): the parts are not available; the text names `function` and fetch_parts(), which fetches them.
const RankTensors& read_parts(const at::Tensor& t, std::string_view function);

// Collective if parts are not available; called by all ranks alike. The user may write to the local tensors from now
// on, unseen by the library. Nothing derived from them is cached any more, deferred operators that read them get
// copies, and copied views are read again.
void allow_user_writes(const at::Tensor& t);

// Calls `write`, which writes to memory of some or all of `tensors`; plain ones may be among them. Before, calls
// the CallHook. Afterwards, also if `write` throws, drops everything derived from it, and
// writes back to the bases of copied views. A collective call: see note_write(). `op`: the writer, for reports.
// REQUIRES: check_write() for each of them.
void write_parts(c10::ArrayRef<at::Tensor> tensors, std::string_view op, const std::function<void()>& write);

}  // namespace dtensor::internal
