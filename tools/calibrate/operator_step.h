// Steps with the operators that models are made of, for measuring what each takes.
#pragma once

#include <cstdint>
#include <functional>

#include "mesh/world.h"

namespace dtensor::tools {

// Forward, backward and an update of parameters, with tensors of about `bytes` on each rank and weights of `width` by
// `width` and 4 * `width`, in float32.
std::function<void()> make_operator_step(const World& world, int64_t bytes, int64_t width);

}  // namespace dtensor::tools
