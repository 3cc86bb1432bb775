// How texts name a tensor: "f32[8, 8]".
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dtensor::internal {

// "f32", "bf16", "i64", "b8", ...
std::string_view short_name(c10::ScalarType dtype);

// "f32[8, 8]"
std::string tensor_text(c10::ScalarType dtype, c10::ArrayRef<int64_t> sizes);

}  // namespace dtensor::internal
