#include "comm/tensor_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor::internal {

std::string_view short_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "f32";
    case c10::ScalarType::Double:
      return "f64";
    case c10::ScalarType::Half:
      return "f16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    case c10::ScalarType::Long:
      return "i64";
    case c10::ScalarType::Int:
      return "i32";
    case c10::ScalarType::Short:
      return "i16";
    case c10::ScalarType::Char:
      return "i8";
    case c10::ScalarType::Byte:
      return "u8";
    case c10::ScalarType::UInt16:
      return "u16";
    case c10::ScalarType::UInt32:
      return "u32";
    case c10::ScalarType::UInt64:
      return "u64";
    case c10::ScalarType::Bool:
      return "b8";
    case c10::ScalarType::ComplexHalf:
      return "c32";
    case c10::ScalarType::ComplexFloat:
      return "c64";
    case c10::ScalarType::ComplexDouble:
      return "c128";
    case c10::ScalarType::Float8_e4m3fn:
      return "f8e4m3fn";
    case c10::ScalarType::Float8_e5m2:
      return "f8e5m2";
    default:
      return c10::toString(dtype);
  }
}

std::string tensor_text(c10::ScalarType dtype, c10::ArrayRef<int64_t> sizes) {
  return absl::StrCat(std::string(short_name(dtype)), "[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace dtensor::internal
