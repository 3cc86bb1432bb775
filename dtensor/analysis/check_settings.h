// What both searches of layouts require of their mesh dims and settings.
#pragma once

#include <string>
#include <vector>

#include "dtensor/layout_settings.h"

namespace dtensor::internal {

// Errors (ValueError), in the name of `function`: a name twice; a setting without values.
void check_settings(const char* function, const std::vector<std::string>& mesh_dims, const LayoutSettings& settings);

}  // namespace dtensor::internal
