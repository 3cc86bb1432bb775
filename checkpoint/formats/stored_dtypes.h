// Names of dtypes in torch's pickles.
//
// Old dtypes are given by the class of their storage, "torch.FloatStorage". New ones (float8, unsigned, complex32) have
// a storage without a type and are given by name, "torch.float8_e5m2", by Python; LibTorch's C++ calls them
// "torch.Float8_e5m2Storage".
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace dtensor::internal {

// "FloatStorage", or "Float8_e5m2Storage". nullopt: no such dtype, or one that is not stored (quantized, below a byte).
std::optional<c10::ScalarType> dtype_of_storage(std::string_view class_name);
// "float8_e5m2": of Python's names those of new dtypes.
std::optional<c10::ScalarType> new_dtype(std::string_view python_name);

// Python's name of a new dtype; "" for one given by its storage.
std::string_view new_dtype_name(c10::ScalarType dtype);
// Whether files can hold tensors of a dtype, ours as well as what torch reads.
bool can_be_stored(c10::ScalarType dtype);

}  // namespace dtensor::internal
