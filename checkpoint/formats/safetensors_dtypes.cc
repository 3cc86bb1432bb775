#include "checkpoint/formats/safetensors_dtypes.h"

#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>

#include "absl/strings/str_join.h"

namespace dtensor::internal {
namespace {

using c10::ScalarType;

struct Dtype {
  const char* name;
  ScalarType dtype;
};

constexpr Dtype kDtypes[] = {
    {"BOOL", ScalarType::Bool},
    {"U8", ScalarType::Byte},
    {"I8", ScalarType::Char},
    {"U16", ScalarType::UInt16},
    {"I16", ScalarType::Short},
    {"U32", ScalarType::UInt32},
    {"I32", ScalarType::Int},
    {"U64", ScalarType::UInt64},
    {"I64", ScalarType::Long},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E4M3FNUZ", ScalarType::Float8_e4m3fnuz},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"F8_E5M2FNUZ", ScalarType::Float8_e5m2fnuz},
    {"F8_E8M0", ScalarType::Float8_e8m0fnu},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"F32", ScalarType::Float},
    {"F64", ScalarType::Double},
    {"C64", ScalarType::ComplexFloat},
};

}  // namespace

std::optional<ScalarType> safetensors_dtype_of(std::string_view name) {
  for (const Dtype& d : kDtypes) {
    if (name == d.name) return d.dtype;
  }
  return std::nullopt;
}

std::string safetensors_dtype_names() {
  return absl::StrJoin(kDtypes, ", ", [](std::string* out, const Dtype& d) { out->append(d.name); });
}

std::string safetensors_dtype_name(ScalarType dtype) {
  const auto it =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return d.dtype == dtype; });
  TORCH_CHECK_TYPE(it != std::end(kDtypes), "safetensors files have no ", c10::toString(dtype), ", only ",
                   safetensors_dtype_names());
  return it->name;
}

std::optional<int64_t> data_bytes(ScalarType dtype, const std::vector<int64_t>& shape) {
  // Strides are products of what is not empty, so an empty tensor has to fit without its empty dims, too.
  int64_t product = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const int64_t n : shape) {
    if (n < 0 || c10::mul_overflows(product, std::max<int64_t>(n, 1), &product)) return std::nullopt;
    empty = empty || n == 0;
  }
  return empty ? 0 : product;
}

}  // namespace dtensor::internal
