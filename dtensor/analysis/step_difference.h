// Why one predicted step takes longer than another, and what became of a step that threw, for searches of layouts.
#pragma once

#include <functional>
#include <string>

#include "dtensor/step_prediction.h"

namespace dtensor::internal {

// "all_reduce(dp) +1.30 ms, matrix products -0.20 ms": the terms that make up most of what `other` takes more.
std::string step_difference(const StepPrediction& best, const StepPrediction& other);

// The error that `run` throws, whatever it is; "": none.
std::string error_of(const std::function<void()>& run);

}  // namespace dtensor::internal
