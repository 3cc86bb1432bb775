#include "tests/fuzz/disturb.h"

#include <ATen/ops/signbit.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "tests/fuzz/compare.h"

namespace dtensor::fuzz {
namespace {

// A value of few binary digits: sums and products of few such values are exact, also in half types.
bool is_exact(double v, bool in_half) {
  const double most = in_half ? 1 : 1024, unit = in_half ? 0.5 : 1. / 64;
  return !std::isfinite(v) || (std::abs(v) < most && v / unit == std::floor(v / unit));
}

// Its square may or may not underflow to zero in between: for example 0.25 of a float next to a zero.
double smallest(c10::ScalarType dtype) {
  return c10::toRealValueType(dtype) == c10::ScalarType::Double ? 1e-150 : 1e-18;
}

// The numbers in memory behind a conjugated or negated view.
at::Tensor in_memory(const at::Tensor& seen) {
  at::Tensor t = seen.variable_data();
  if (t.is_conj()) t = t.conj();
  return t.is_neg() ? t._neg_view() : t;
}

}  // namespace

double last_digit(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case c10::ScalarType::BFloat16:
      return 4e-3;
    case c10::ScalarType::Half:
      return 5e-4;
    case c10::ScalarType::Float:
      return 1e-7;
    default:
      return 1e-15;
  }
}

bool is_number(const at::Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

void write(const at::Tensor& t, const std::vector<double>& values) {
  std::vector<int64_t> sizes = t.sizes().vec();
  if (t.is_complex()) sizes.push_back(2);
  at::Tensor written = at::tensor(at::ArrayRef<double>(values), at::kDouble).view(sizes);
  if (t.is_complex()) written = at::view_as_complex(written);
  try {
    t.variable_data().copy_(written);
    if (c10::isReducedFloatingType(t.scalar_type())) {  // the cast makes every NaN positive
      const at::Tensor bits = t.variable_data().view(at::kShort);
      bits.copy_(at::where(written.isnan().logical_and(at::signbit(written)), bits.bitwise_or(-32768), bits));
    }
  } catch (const c10::Error&) {  // several elements in one place
  }
}

void disturb(const at::Tensor& seen, const Rounding& rounding, std::mt19937_64& random) {
  if (!is_number(seen) || seen.numel() == 0) return;
  const at::Tensor t = in_memory(seen);
  const double scale = rounding.scale;
  const bool in_half = rounding.added_up && c10::isReducedFloatingType(t.scalar_type());
  auto values = numbers(t);
  const double own = 0.1 * scale_of(values), digit = (in_half ? 0.5 : 4) * last_digit(t.scalar_type());
  std::uniform_real_distribution<double> side(-1, 1);
  bool any = false;
  for (double& v : values) {
    if (std::isnan(v) || (v == 0 && rounding.signs)) {
      v = std::copysign(v, side(random));
    } else if (scale == 0 && !rounding.always && is_exact(v, in_half)) {
      continue;
    }
    if (v != 0 && std::abs(v) < smallest(t.scalar_type())) v *= 1 + 0.5 * side(random);
    if (std::isfinite(v) && (scale > 0 || v != 0)) v += digit * side(random) * std::max({std::abs(v), own, scale});
    any = true;
  }
  if (any) write(t, values);
}

}  // namespace dtensor::fuzz
