// Code shared by the loss families.
#pragma once

#include <ATen/core/Reduction.h>

#include "propagation/op_call.h"

namespace dtensor::internal {

inline bool reduces(const OpCall& call) { return call.get_int("reduction") != at::Reduction::None; }

}  // namespace dtensor::internal
