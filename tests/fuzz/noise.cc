#include "tests/fuzz/noise.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"

namespace dtensor::fuzz {
namespace {

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

// A value of few binary digits: sums and products of such are exact.
bool is_exact(double v) { return !std::isfinite(v) || (std::abs(v) < 1024 && v * 64 == std::floor(v * 64)); }

void disturb(const at::Tensor& t, std::mt19937_64& random) {
  if (!t.defined() || !(t.is_floating_point() || t.is_complex()) || t.numel() == 0 || t.is_conj() || t.is_neg()) return;
  auto values = numbers(t);
  const double scale = scale_of(values), digit = 4 * last_digit(t.scalar_type());
  std::uniform_real_distribution<double> side(-1, 1);
  bool any = false;
  for (double& v : values) {
    if (is_exact(v)) continue;
    v += digit * side(random) * std::max(std::abs(v), 0.1 * scale);
    any = true;
  }
  if (!any) return;
  std::vector<int64_t> sizes = t.sizes().vec();
  if (t.is_complex()) sizes.push_back(2);
  at::Tensor disturbed = at::tensor(at::ArrayRef<double>(values), at::kDouble).view(sizes);
  if (t.is_complex()) disturbed = at::view_as_complex(disturbed);
  try {
    t.variable_data().copy_(disturbed);
  } catch (const c10::Error&) {  // several elements in one place
  }
}

struct Result {
  std::vector<std::vector<double>> tensors;
  double tolerance = 0;
};

Result run_once(const Program& program, int order, std::mt19937_64* random) {
  Execution plain;
  Result result;
  for (const Leaf& leaf : program.leaves) plain.add(leaf);
  try {
    for (const Step& step : program.steps) {
      plain.run(step);
      if (random == nullptr) continue;
      for (int k = 0; k < 32; ++k) {
        const auto found = plain.tensors().find(step.first_id + k);
        if (found != plain.tensors().end()) disturb(found->second, *random);
      }
    }
    for (const auto& [id, t] : plain.tensors()) {
      if (!t.defined()) continue;
      result.tolerance = std::max(result.tolerance, tolerance_of(t.scalar_type()));
      result.tensors.push_back(numbers(t));
    }
    for (int k = 1; k <= order; ++k) {
      for (const at::Tensor& g : plain.gradients(program, k)) {
        if (g.defined()) result.tensors.push_back(numbers(g));
      }
    }
  } catch (const c10::Error&) {
  }
  return result;
}

}  // namespace

bool unstable(const Program& program, int order) {
  const Result exact = run_once(program, order, nullptr);
  std::mt19937_64 random(1);
  for (int run = 0; run < 4; ++run) {
    const Result disturbed = run_once(program, order, &random);
    if (disturbed.tensors.size() != exact.tensors.size()) return true;
    for (size_t k = 0; k < exact.tensors.size(); ++k) {
      const auto &a = exact.tensors[k], &b = disturbed.tensors[k];
      if (a.size() != b.size()) return true;
      const double scale = scale_of(a);
      for (size_t i = 0; i < a.size(); ++i) {
        if (differs(b[i], a[i], scale, exact.tolerance / 4)) return true;
      }
    }
  }
  return false;
}

}  // namespace dtensor::fuzz
