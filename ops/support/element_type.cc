#include "ops/support/element_type.h"

namespace dtensor::internal {

bool has_element_type(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf || dtype == c10::kBFloat16;
}

ElementType element_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kHalf:
      return ElementType::kHalf;
    case c10::kBFloat16:
      return ElementType::kBFloat16;
    case c10::kFloat:
      return ElementType::kFloat;
    default:
      return ElementType::kDouble;
  }
}

}  // namespace dtensor::internal
