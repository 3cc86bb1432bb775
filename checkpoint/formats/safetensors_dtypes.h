// The dtypes of the safetensors format that LibTorch has, too.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::internal {

// The format's word for a dtype, "BF16". Error (TypeError): it has none; the text lists those that there are.
std::string safetensors_dtype_name(c10::ScalarType dtype);

std::optional<c10::ScalarType> safetensors_dtype_of(std::string_view name);
std::string safetensors_dtype_names();  // "BOOL, U8, ..."

// The bytes of a tensor's data; none where a size is negative, or where sizes multiply to more than 2^63, empty dims
// not counted.
std::optional<int64_t> data_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace dtensor::internal
