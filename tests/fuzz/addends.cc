#include "tests/fuzz/addends.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>

#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

int mantissa_bits(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case c10::ScalarType::BFloat16:
      return 8;
    case c10::ScalarType::Half:
      return 11;
    case c10::ScalarType::Float:
      return 24;
    default:
      return 53;
  }
}

bool all_multiples(const std::vector<double>& values, double unit, double factor) {
  return std::all_of(values.begin(), values.end(),
                     [&](double v) { return !std::isfinite(v) || v * factor / unit == std::floor(v * factor / unit); });
}

// Whether every order of adding and averaging gives the exact value: all addends are multiples of one power of two, few
// enough for the mantissa.
bool is_exact(const DTensorMeta& meta, const at::Tensor& value) {
  int64_t divisor = 1, partial_dims = 0;
  for (int64_t d = 0; d < meta.spec->mesh().ndim(); ++d) {
    const Placement& p = meta.spec->placements()[d];
    if (p.is_partial()) ++partial_dims;
    if (p.is_partial() && p.reduce_op() == ReduceOp::kAvg) divisor *= meta.spec->mesh().size(d);
  }
  // With several Partial dims, averages of a group come before those of the others.
  const auto factor = partial_dims > 1 ? 1 / static_cast<double>(divisor) : 1;
  std::vector<std::vector<double>> addends;
  double total = 0;
  for (const at::Tensor& local : meta.locals) {
    addends.push_back(numbers(local));
    total += scale_of(addends.back());
  }
  const auto whole = numbers(value);
  for (double unit = 1; unit > 1e-6; unit /= 2) {
    if (total / unit > std::ldexp(1, mantissa_bits(value.scalar_type()))) return false;
    if (all_multiples(whole, unit, static_cast<double>(divisor)) &&
        std::all_of(addends.begin(), addends.end(), [&](const auto& a) { return all_multiples(a, unit, factor); }))
      return true;
  }
  return false;
}

std::map<int, Addends> now(const Execution& plain, const Execution& distributed) {
  std::map<int, Addends> all;
  for (const auto& [id, t] : distributed.tensors()) {
    if (!t.defined() || !is_dtensor(t) || !spec_of(t)->has_partial()) continue;
    const auto value = plain.tensors().find(id);
    if (value == plain.tensors().end() || !value->second.defined()) continue;
    all[id] = {addend_scale(t), is_exact(meta_for_read(t), value->second)};
  }
  return all;
}

}  // namespace

std::vector<std::map<int, Addends>> addends_of(const Program& program) {
  std::vector<std::map<int, Addends>> all;
  Execution plain, distributed(mesh_of(program.mesh));
  std::optional<ReplicateUnsupported> scope;
  if (program.replicate_unsupported) scope.emplace();
  try {
    for (const Leaf& leaf : program.leaves) plain.add(leaf), distributed.add(leaf);
    all.push_back(now(plain, distributed));
    for (const Step& step : program.steps) {
      plain.run(step);
      distributed.run(step);
      all.push_back(now(plain, distributed));
    }
  } catch (const std::exception&) {
  }
  return all;
}

}  // namespace dtensor::fuzz
