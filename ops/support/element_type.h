// Types of tensors' elements as kernels take them.
#pragma once

#include <c10/core/ScalarType.h>

#include "ops/kernels/element_type.h"

namespace dtensor::internal {

// Whether kernels compute with elements of this type.
bool has_element_type(c10::ScalarType dtype);

// REQUIRES: has_element_type().
ElementType element_type(c10::ScalarType dtype);

}  // namespace dtensor::internal
