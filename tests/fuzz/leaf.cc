// The values of leaves, whole and in parts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <random>

#include "placement/geometry.h"
#include "placement/parse_placements.h"
#include "tests/fuzz/execution.h"
#include "tests/testing/partial_kind.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

using testing::PartialKind;

// Multiples of a quarter, so that sums are exact in every dtype.
at::Tensor random_like(const at::Tensor& t, std::mt19937_64& random) {
  const bool whole = c10::isIntegralType(t.scalar_type(), true);
  at::Tensor r = at::empty(t.sizes(), at::kDouble);
  double* data = r.data_ptr<double>();
  for (int64_t k = 0; k < r.numel(); ++k) {
    const auto n = static_cast<double>(random() % 9);
    data[k] = t.scalar_type() == at::kByte ? n : whole ? n - 4 : (n - 4) / 4;
  }
  return r.to(t.scalar_type());
}

// 1, 2 or a half of either sign (for integers those that exist).
at::Tensor random_factor(const at::Tensor& t, std::mt19937_64& random) {
  const bool whole = c10::isIntegralType(t.scalar_type(), true);
  at::Tensor r = at::empty(t.sizes(), at::kDouble);
  double* data = r.data_ptr<double>();
  const double factors[] = {1, -1, 2, 0.5};
  for (int64_t k = 0; k < r.numel(); ++k)
    data[k] = factors[random() % (t.scalar_type() == at::kByte ? 1 : whole ? 2 : 4)];
  return r.to(t.scalar_type());
}

// Each a multiple of the divisor: the average of any group is exact, whichever mesh dim is reduced first.
std::vector<at::Tensor> sums(const at::Tensor& value, const PartialKind& kind, std::mt19937_64& random) {
  std::vector<at::Tensor> addends(kind.addends);
  at::Tensor rest = value * kind.divisor;
  for (int64_t a = 1; a < kind.addends; ++a) {
    addends[a] = random_like(value, random) * kind.divisor;
    rest = rest - addends[a];
  }
  addends[0] = rest;
  return addends;
}

std::vector<at::Tensor> products(const at::Tensor& value, const PartialKind& kind, std::mt19937_64& random) {
  std::vector<at::Tensor> addends(kind.addends);
  at::Tensor rest = value;
  for (int64_t a = 1; a < kind.addends; ++a) {
    addends[a] = random_factor(value, random);
    rest = rest.div(addends[a]).to(value.scalar_type());
  }
  addends[0] = rest;
  return addends;
}

// A rank, another one for each element, holds the extreme value.
std::vector<at::Tensor> extremes(const at::Tensor& value, const PartialKind& kind, std::mt19937_64& random) {
  std::vector<at::Tensor> addends(kind.addends);
  at::Tensor owner = at::empty(value.sizes(), at::kLong);
  for (int64_t k = 0; k < owner.numel(); ++k)
    owner.data_ptr<int64_t>()[k] = static_cast<int64_t>(random() % kind.addends);
  for (int64_t a = 0; a < kind.addends; ++a) {
    const at::Tensor away = random_like(value, random).abs();
    at::Tensor other = kind.op == ReduceOp::kMin ? value + away : value - away;
    if (value.scalar_type() == at::kByte)
      other = kind.op == ReduceOp::kMin ? value.maximum(other) : value.minimum(other);  // it wraps
    addends[a] = at::where(owner == a, value, other);
  }
  return addends;
}

// Sums of bool are `or`, as in c10d; so the maximum is the sum.
std::vector<at::Tensor> of_bool(const at::Tensor& value, const PartialKind& kind, std::mt19937_64& random) {
  const bool all = kind.op == ReduceOp::kMin || kind.op == ReduceOp::kProduct;
  std::vector<at::Tensor> addends(kind.addends);
  at::Tensor owner = at::empty(value.sizes(), at::kLong);
  for (int64_t k = 0; k < owner.numel(); ++k)
    owner.data_ptr<int64_t>()[k] = static_cast<int64_t>(random() % kind.addends);
  for (int64_t a = 0; a < kind.addends; ++a) {
    addends[a] = at::where(owner == a, value, all ? at::ones_like(value) : at::zeros_like(value));
  }
  return addends;
}

// LibTorch cannot divide ComplexHalf, and has hardly any arithmetic of the wide unsigned integers.
at::ScalarType dtype_to_compute(at::ScalarType dtype) {
  if (dtype == at::kComplexHalf) return at::kComplexFloat;
  return dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64 ? at::kLong : dtype;
}

std::vector<at::Tensor> make_addends(const at::Tensor& value, const PartialKind& kind, uint64_t seed) {
  std::mt19937_64 random(seed);
  if (value.scalar_type() == at::kBool) return of_bool(value, kind, random);
  if (const auto wide = dtype_to_compute(value.scalar_type()); wide != value.scalar_type()) {
    auto addends = make_addends(value.to(wide), kind, seed);
    for (at::Tensor& a : addends) {
      if (kind.op == ReduceOp::kMax && wide == at::kLong) a = a.clamp_min(0);  // not wrapped to what is greater
      a = a.to(value.scalar_type());
    }
    return addends;
  }
  switch (kind.op) {
    case ReduceOp::kProduct:
      return products(value, kind, random);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return extremes(value, kind, random);
    default:
      return sums(value, kind, random);
  }
}

at::Tensor part_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements, int64_t i) {
  const Shape shape(full.sizes().begin(), full.sizes().end());
  const auto layout = local_layout(shape, mesh.shape(), placements, mesh.local_coordinate(i));
  at::Tensor part = full;
  for (int64_t d = 0; d < full.dim(); ++d) {
    std::vector<at::Tensor> runs;
    for (const IndexRange& run : layout.dims[d]) runs.push_back(part.narrow(d, run.begin, run.size));
    part = runs.empty() ? part.narrow(d, 0, 0) : at::cat(runs, d);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

at::Tensor value_of(const Leaf& leaf) {
  const bool complex = c10::isComplexType(leaf.dtype);
  std::vector<int64_t> sizes = leaf.sizes;
  if (complex) sizes.push_back(2);
  at::Tensor t = at::tensor(at::ArrayRef<double>(leaf.values), at::kDouble).view(sizes);
  if (complex) t = at::view_as_complex(t);
  return t.to(leaf.dtype).clone();
}

std::vector<at::Tensor> parts_of(const Leaf& leaf, const DeviceMesh& mesh) {
  const auto placements = normalize_placements(leaf.placements, static_cast<int64_t>(leaf.sizes.size())).value();
  const auto addends = make_addends(value_of(leaf), testing::partial_kind(mesh, placements), leaf.addends);
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < static_cast<int64_t>(mesh.local_ranks().size()); ++i) {
    parts.push_back(part_of(addends[testing::addend_index(mesh, placements, i)], mesh, placements, i));
  }
  return parts;
}

}  // namespace dtensor::fuzz
