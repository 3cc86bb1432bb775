// Results of calls in backward that are computed later: late_calls.h. Internal.
//
// The result is there at once, without memory: who reads it (meta_of()) has it computed before, in a collective call,
// and so has who writes to what it is computed of, wherever that is. What is written unseen is not waited for: of
// tensors whose parts the user holds, or gets, copies are kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>

#include "dtensor/internal/late_calls.h"

namespace dtensor {

// May the result of a call wait for others, as inputs have to move for it and nobody but the gradient of `leaf`, which
// may be undefined, wants it?
bool may_come_late(const OpInfo& info, const Inputs& in, const Decision& decision, const at::Tensor& leaf);
// That result. REQUIRES: may_come_late().
at::Tensor make_late_result(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                            std::shared_ptr<const Decision> decision, decltype(LateCall::run) run);

// A call is about to write to some of its arguments, if to any: what is late and is computed of them is computed
// before, and what is late and overwritten as a whole is not computed at all.
void settle_before_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// The user gets the parts of `t`, to write to them unseen: nothing that is derived from them is remembered from now on,
// and nothing late is computed of them.
void give_away(const at::Tensor& t);

}  // namespace dtensor
