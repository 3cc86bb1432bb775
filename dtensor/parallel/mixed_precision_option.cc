#include "dtensor/parallel/mixed_precision_option.h"

#include <c10/util/Exception.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "dtensor/tensor/module_traits.h"

namespace dtensor::internal {
namespace {

void check_floating(const char* option, std::optional<c10::ScalarType> dtype, const char* function) {
  TORCH_CHECK_VALUE(!dtype || c10::isFloatingType(*dtype), "[", function, "] mixed_precision.", option, " is ",
                    dtype ? c10::toString(*dtype) : "", ": give a floating-point dtype such as BFloat16, or none");
}

// "param_dtype BFloat16, no reduce_dtype"
std::string described(const MixedPrecision& p) {
  const auto part = [](const char* option, std::optional<c10::ScalarType> dtype) {
    return dtype ? absl::StrCat(option, " ", c10::toString(*dtype)) : absl::StrCat("no ", option);
  };
  return absl::StrCat(part("param_dtype", p.param_dtype), ", ", part("reduce_dtype", p.reduce_dtype));
}

}  // namespace

void check_dtypes(const MixedPrecision& given, const char* function) {
  check_floating("param_dtype", given.param_dtype, function);
  check_floating("reduce_dtype", given.reduce_dtype, function);
}

void check_agrees(const MixedPrecision& given, const std::string& name, const at::Tensor& t, const char* function) {
  const MixedPrecision present = mixed_precision_of(t);
  TORCH_CHECK_VALUE(present == given, "[", function, "] '", name, "' has ", described(present),
                    " from an earlier call, but this one gives ", described(given),
                    ": give fully_shard() and parallelize_module() the same mixed_precision, or fully_shard() alone");
}

}  // namespace dtensor::internal
