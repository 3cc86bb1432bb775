#include "tests/fuzz/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

// The value of one place of the mesh, its addends combined.
struct Place {
  int64_t rank = 0;  // the first of its ranks
  at::Tensor wide;
  std::vector<double> values;
};

// On the CPU. Wide enough for sums and products; integers are exact, and wrap as their dtype's own arithmetic does.
at::Tensor widened(const at::Tensor& t) {
  const auto dtype = t.is_complex() ? at::kComplexDouble : t.is_floating_point() ? at::kDouble : at::kLong;
  return t._is_zerotensor() ? at::zeros(t.sizes(), dtype) : t.detach().resolve_conj().resolve_neg().cpu().to(dtype);
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kNorm2:
      return at::where(a.isnan() | b.isnan(), a + b,  // hypot() of infinity and nan is infinity
                       (a.sgn() + (a == 0) * b.sgn()) * a.hypot(b));
    default:
      return a + b;
  }
}

std::map<std::vector<int64_t>, Place> places_of(const DTensorMeta& meta) {
  const auto& placements = meta.spec->placements();
  const auto& mesh = meta.spec->mesh();
  const c10::ScalarType dtype = meta.spec->dtype();
  ReduceOp op = ReduceOp::kSum;
  double divisor = 1;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (!placements[d].is_partial()) continue;
    if (placements[d].reduce_op() == ReduceOp::kAvg) divisor *= static_cast<double>(mesh.size(d));
    if (placements[d].reduce_op() != ReduceOp::kAvg) op = placements[d].reduce_op();
  }
  std::map<std::vector<int64_t>, Place> places;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    std::vector<int64_t> where;
    for (int64_t d = 0; d < mesh.ndim(); ++d)
      where.push_back(placements[d].is_partial() ? 0 : mesh.local_coordinate(i)[d]);
    const at::Tensor wide = widened(meta.locals[i]);
    auto [place, fresh] = places.try_emplace(where, Place{static_cast<int64_t>(i), wide, {}});
    if (!fresh) place->second.wide = combine(place->second.wide, wide, op);
  }
  for (auto& [where, place] : places) {
    place.values = numbers((divisor == 1 ? place.wide : place.wide / divisor).to(dtype));  // which may overflow
  }
  return places;
}

bool is_finite_pair(const std::vector<double>& values, int64_t at) {
  return std::isfinite(values[at - at % 2]) && std::isfinite(values[at - at % 2 + 1]);
}

// The row-major index in the whole of each element of a part.
std::vector<int64_t> offsets_of(const LocalLayout& layout, at::IntArrayRef sizes) {
  std::vector<int64_t> offsets = {0};
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    std::vector<int64_t> longer;
    for (int64_t before : offsets) {
      for (const IndexRange& run : layout.dims[d]) {
        for (int64_t k = run.begin; k < run.begin + run.size; ++k) longer.push_back(before * sizes[d] + k);
      }
    }
    offsets = std::move(longer);
  }
  return offsets;
}

std::optional<std::string> metadata_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (!is_dtensor(actual)) return "is a plain tensor";
  if (actual.sizes() != expected.sizes())
    return c10::str("has sizes ", actual.sizes(), ", should have ", expected.sizes());
  if (actual.scalar_type() != expected.scalar_type()) {
    return c10::str("has dtype ", actual.scalar_type(), ", should have ", expected.scalar_type());
  }
  const DTensorMeta& meta = meta_for_read(actual);
  if (meta.spec->dtype() != expected.scalar_type()) return c10::str("has a layout of dtype ", meta.spec->dtype());
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    const auto shape = meta.spec->local_shape(i);
    const at::Tensor& local = meta.locals[i];
    if (local.sizes() == at::IntArrayRef(shape.data(), shape.size()) && local.scalar_type() == expected.scalar_type())
      continue;
    return c10::str("on rank ", i, " is ", local.scalar_type(), local.sizes(), ", the layout ", meta.spec->placements(),
                    " says ", at::IntArrayRef(shape.data(), shape.size()));
  }
  return std::nullopt;
}

}  // namespace

double tolerance_of(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case c10::ScalarType::BFloat16:
      return 6e-2;
    case c10::ScalarType::Half:
      return 4e-2;  // some kernels add up a hundred of them in the dtype itself
    case c10::ScalarType::Float:
      return 1e-4;
    default:
      return 1e-8;
  }
}

std::vector<double> numbers(const at::Tensor& t) {
  if (t._is_zerotensor()) return std::vector<double>(t.numel() * (t.is_complex() ? 2 : 1));  // has no memory
  at::Tensor all = t.detach().resolve_conj().resolve_neg().cpu();
  all = all.is_complex() ? at::view_as_real(all.to(at::kComplexDouble)).contiguous() : all.to(at::kDouble).contiguous();
  std::vector<double> values(all.numel());
  if (!values.empty()) std::memcpy(values.data(), all.const_data_ptr<double>(), values.size() * sizeof(double));
  return values;
}

double scale_of(const std::vector<double>& values) {
  double scale = 0;
  for (double v : values) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
  return scale;
}

bool differs(double actual, double expected, double scale, double tolerance) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) != std::isnan(expected);
  if (std::isinf(actual) || std::isinf(expected)) return actual != expected;
  return std::abs(actual - expected) > tolerance * (1 + scale);
}

double addend_scale(const at::Tensor& t) {
  if (!is_dtensor(t)) return 0;
  const DTensorMeta& meta = meta_for_read(t);
  bool added = false;
  double divisor = 1;
  for (int64_t d = 0; d < meta.spec->mesh().ndim(); ++d) {
    const Placement& p = meta.spec->placements()[d];
    if (!p.is_partial()) continue;
    added = added || p.reduce_op() == ReduceOp::kSum || p.reduce_op() == ReduceOp::kAvg;
    if (p.reduce_op() == ReduceOp::kAvg) divisor *= static_cast<double>(meta.spec->mesh().size(d));
  }
  double scale = 0;
  for (const at::Tensor& local : meta.locals) scale = added ? std::max(scale, scale_of(numbers(local))) : scale;
  return scale / divisor;
}

std::optional<std::string> difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (auto wrong = metadata_difference(actual, expected)) return wrong;
  const DTensorMeta& meta = meta_for_read(actual);
  const auto want = numbers(expected);
  // Addends that cancel leave the rounding of the addends.
  const double scale = std::max(scale_of(want), addend_scale(actual));
  const double allowed = c10::isIntegralType(expected.scalar_type(), true) ? 0 : tolerance;
  const int64_t width = expected.is_complex() ? 2 : 1;
  const auto& mesh = meta.spec->mesh();
  for (const auto& [where, place] : places_of(meta)) {
    const auto layout = local_layout(Shape(expected.sizes().begin(), expected.sizes().end()), mesh.shape(),
                                     meta.spec->placements(), mesh.local_coordinate(place.rank));
    const auto offsets = offsets_of(layout, expected.sizes());
    for (size_t k = 0; k < place.values.size(); ++k) {
      const int64_t at = offsets[k / width] * width + static_cast<int64_t>(k) % width;
      if (width == 2 && !is_finite_pair(want, at))
        continue;  // which half of it is NaN depends on how a product is computed
      if (!differs(place.values[k], want[at], scale, allowed)) continue;
      return absl::StrCat("laid out ", dtensor::to_string(meta.spec->placements()), ", on rank ", place.rank,
                          " element ", at / width, " of ", expected.numel(), " is ", place.values[k], ", should be ",
                          want[at]);
    }
  }
  return std::nullopt;
}

}  // namespace dtensor::fuzz
