#include "checkpoint/formats/stored_dtypes.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace dtensor::internal {
namespace {

using c10::ScalarType;

constexpr ScalarType kOld[] = {ScalarType::Double,   ScalarType::Float,        ScalarType::Half,
                               ScalarType::BFloat16, ScalarType::Long,         ScalarType::Int,
                               ScalarType::Short,    ScalarType::Char,         ScalarType::Byte,
                               ScalarType::Bool,     ScalarType::ComplexFloat, ScalarType::ComplexDouble};

struct NewDtype {
  ScalarType dtype;
  std::string_view name;
};
constexpr NewDtype kNew[] = {{ScalarType::UInt16, "uint16"},
                             {ScalarType::UInt32, "uint32"},
                             {ScalarType::UInt64, "uint64"},
                             {ScalarType::ComplexHalf, "complex32"},
                             {ScalarType::Float8_e5m2, "float8_e5m2"},
                             {ScalarType::Float8_e4m3fn, "float8_e4m3fn"},
                             {ScalarType::Float8_e5m2fnuz, "float8_e5m2fnuz"},
                             {ScalarType::Float8_e4m3fnuz, "float8_e4m3fnuz"},
                             {ScalarType::Float8_e8m0fnu, "float8_e8m0fnu"},
                             {ScalarType::Float4_e2m1fn_x2, "float4_e2m1fn_x2"}};

}  // namespace

std::optional<ScalarType> dtype_of_storage(std::string_view class_name) {
  const auto is = [&](ScalarType dtype) { return std::string(c10::toString(dtype)) + "Storage" == class_name; };
  if (const auto* it = std::find_if(std::begin(kOld), std::end(kOld), is); it != std::end(kOld)) return *it;
  for (const NewDtype& n : kNew) {
    if (is(n.dtype)) return n.dtype;
  }
  return std::nullopt;
}

std::optional<ScalarType> new_dtype(std::string_view python_name) {
  for (const NewDtype& n : kNew) {
    if (n.name == python_name) return n.dtype;
  }
  return std::nullopt;
}

std::string_view new_dtype_name(ScalarType dtype) {
  for (const NewDtype& n : kNew) {
    if (n.dtype == dtype) return n.name;
  }
  return "";
}

bool can_be_stored(ScalarType dtype) {
  return !new_dtype_name(dtype).empty() || std::find(std::begin(kOld), std::end(kOld), dtype) != std::end(kOld);
}

}  // namespace dtensor::internal
