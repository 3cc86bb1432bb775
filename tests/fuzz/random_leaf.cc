#include "tests/fuzz/random_leaf.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "placement/parse_placements.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<double> shuffled_grid(Random& random, int64_t count, double step) {
  std::vector<double> values(count);
  for (int64_t k = 0; k < count; ++k) values[k] = static_cast<double>(k - count / 2) * step + step;
  for (int64_t k = count - 1; k > 0; --k) std::swap(values[k], values[random.below(k + 1)]);
  return values;
}

std::vector<double> floating_values(Random& random, int64_t count) {
  auto values = shuffled_grid(random, count, 0.25);
  const int64_t style = random.below(20);
  if (style < 3) {  // for logarithms and roots
    for (double& v : values) v = std::abs(v) + 0.25;
  } else if (style < 6) {
    for (double& v : values) v = random.chance(0.4) ? 0 : v;
  } else if (style < 8) {  // for inverse sines
    for (double& v : values) v = static_cast<double>(random.between(-7, 7)) / 8;
  } else if (style == 8 && count > 0) {
    values[random.below(count)] = random.pick(std::vector<double>{INFINITY, -INFINITY, NAN});
  }
  return values;
}

std::vector<double> integer_values(Random& random, int64_t count, c10::ScalarType dtype) {
  if (random.chance(0.5)) {
    auto values = shuffled_grid(random, count, 1);
    for (double& v : values)
      v = dtype == c10::ScalarType::Byte ? static_cast<double>(static_cast<uint8_t>(std::abs(v))) : v;
    if (count < 120) return values;
  }
  std::vector<double> values(count);
  for (double& v : values)
    v = static_cast<double>(dtype == c10::ScalarType::Byte ? random.below(10) : random.between(-4, 5));
  return values;
}

Placement random_partial(Random& random, c10::ScalarType dtype, ReduceOp op) {
  const bool floating = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  if (op == ReduceOp::kSum && floating && random.chance(0.3)) return Partial(ReduceOp::kAvg);
  return Partial(op);
}

}  // namespace

std::vector<int64_t> random_mesh(Random& random) {
  static const std::vector<std::pair<int64_t, double>> sizes = {{1, 1}, {2, 6}, {3, 4}, {4, 2}, {5, 1}};
  static const std::vector<std::pair<int, double>> dims = {{1, 5}, {2, 5}, {3, 2}};
  while (true) {
    std::vector<int64_t> mesh(random.pick_weighted(dims));
    for (int64_t& n : mesh) n = random.pick_weighted(sizes);
    if (product(mesh) <= 12 || random.chance(0.02)) return mesh;  // many ranks take long
  }
}

int64_t random_size(Random& random) {
  static const std::vector<std::pair<int64_t, double>> sizes = {{0, 0.4}, {1, 1.5}, {2, 2}, {3, 2},
                                                                {4, 2},   {5, 2},   {6, 1}, {7, 0.6}};
  return random.pick_weighted(sizes);
}

std::vector<int64_t> random_sizes(Random& random) {
  static const std::vector<std::pair<int, double>> dims = {{0, 0.5}, {1, 2}, {2, 4}, {3, 2}, {4, 0.7}};
  std::vector<int64_t> sizes(random.pick_weighted(dims));
  for (int64_t& n : sizes) n = random_size(random);
  return sizes;
}

c10::ScalarType random_dtype(Random& random) {
  using T = c10::ScalarType;
  static const std::vector<std::pair<T, double>> dtypes = {
      {T::Double, 45}, {T::Float, 12}, {T::Half, 4},  {T::BFloat16, 4}, {T::ComplexDouble, 6}, {T::ComplexFloat, 2},
      {T::Long, 12},   {T::Int, 5},    {T::Short, 1}, {T::Char, 1},     {T::Byte, 3},          {T::Bool, 6}};
  return random.pick_weighted(dtypes);
}

Placements random_layout(Random& random, const std::vector<int64_t>& mesh, int64_t ndim, c10::ScalarType dtype) {
  static const std::vector<std::pair<ReduceOp, double>> ops = {
      {ReduceOp::kSum, 6}, {ReduceOp::kProduct, 1}, {ReduceOp::kMin, 1.5}, {ReduceOp::kMax, 1.5}};
  while (true) {
    ReduceOp op = random.pick_weighted(ops);
    if (c10::isComplexType(dtype) && op != ReduceOp::kProduct) op = ReduceOp::kSum;
    Placements placements;
    for (size_t m = 0; m < mesh.size(); ++m) {
      const double what = static_cast<double>(random.below(100));
      if (what < 40) {
        placements.push_back(Replicate());
      } else if (what < 57) {
        placements.push_back(random_partial(random, dtype, op));
      } else if (ndim == 0) {
        placements.push_back(Replicate());
      } else if (what < 90) {
        placements.push_back(Shard(random.below(ndim)));
      } else {
        placements.push_back(StridedShard(random.below(ndim), random.between(1, 4)));
      }
    }
    if (normalize_placements(placements, ndim).ok()) return placements;
  }
}

Leaf random_leaf(Random& random, const std::vector<int64_t>& mesh, const std::vector<int64_t>& sizes,
                 c10::ScalarType dtype) {
  Leaf leaf;
  leaf.dtype = dtype;
  leaf.sizes = sizes;
  leaf.placements = random_layout(random, mesh, static_cast<int64_t>(sizes.size()), dtype);
  leaf.addends = random.bits();
  const int64_t count = product(sizes) * (c10::isComplexType(dtype) ? 2 : 1);
  const bool floating = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  if (dtype == c10::ScalarType::Bool) {
    for (int64_t k = 0; k < count; ++k) leaf.values.push_back(static_cast<double>(random.below(2)));
  } else if (floating) {
    leaf.values = floating_values(random, count);
    if (c10::isComplexType(dtype) && is_partial(leaf)) {  // infinity times a real number has NaN in its other half
      for (double& v : leaf.values) v = std::isfinite(v) ? v : 1;
    }
  } else {
    leaf.values = integer_values(random, count, dtype);
  }
  leaf.requires_grad = floating && random.chance(0.5);
  return leaf;
}

Leaf random_indices(Random& random, const std::vector<int64_t>& mesh, const std::vector<int64_t>& sizes,
                    int64_t bound) {
  Leaf leaf = random_leaf(random, mesh, sizes, c10::ScalarType::Long);
  const bool negative = random.chance(0.1);
  for (double& v : leaf.values) {
    v = static_cast<double>(random.below(std::max<int64_t>(bound, 1)) - (negative && random.chance(0.5) ? bound : 0));
  }
  return leaf;
}

}  // namespace dtensor::fuzz
