// Values for arguments that are not tensors, guessed from their names.
#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "tests/fuzz/arguments.h"
#include "tests/fuzz/random_leaf.h"

namespace dtensor::fuzz {
namespace {

bool is_dim_name(const std::string& name) {
  return name == "dim" || name == "dim0" || name == "dim1" || name == "dim2" || name == "axis" || name == "axis0" ||
         name == "axis1" || name == "start_dim" || name == "end_dim" || name == "source" || name == "destination" ||
         name == "dimension" || name == "dim_self";
}

// Sizes with that product.
std::vector<int64_t> factors(Random& random, int64_t numel) {
  std::vector<int64_t> sizes;
  int64_t rest = numel;
  while (rest > 1 && sizes.size() < 3) {
    std::vector<int64_t> divisors;
    for (int64_t k = 1; k <= rest; ++k) {
      if (rest % k == 0) divisors.push_back(k);
    }
    sizes.push_back(random.pick(divisors));
    rest /= sizes.back();
  }
  if (rest != 1 || sizes.empty()) sizes.push_back(rest);
  if (numel > 0 && random.chance(0.2)) sizes[random.below(static_cast<int64_t>(sizes.size()))] = -1;
  return sizes;
}

std::vector<int64_t> permutation(Random& random, int64_t n) {
  std::vector<int64_t> dims(n);
  std::iota(dims.begin(), dims.end(), 0);
  for (int64_t k = n - 1; k > 0; --k) std::swap(dims[k], dims[random.below(k + 1)]);
  for (int64_t& d : dims) d -= random.chance(0.2) ? n : 0;
  return dims;
}

}  // namespace

int64_t Arguments::size_of_dim() const {
  if (!self_.defined() || self_.dim() == 0) return 1;
  const int64_t dim = dim_.value_or(0);
  return dim >= -self_.dim() && dim < self_.dim() ? self_.size(dim) : 1;
}

int64_t Arguments::integer(const std::string& name) {
  Random& random = draft_.random;
  const int64_t n = size_of_dim();
  if (is_dim_name(name)) return any_dim();
  if (name == "index") return n == 0 ? 0 : random.between(-n, n - 1);
  if (name == "start") return random.between(-n, n);
  if (name == "end") return random.chance(0.3) ? INT64_MAX : random.between(-1, n + 1);
  if (name == "length") return random.between(0, std::max<int64_t>(n, 1));
  if (name == "step" || name == "chunks" || name == "sections" || name == "split_size" ||
      name == "indices_or_sections") {
    return random.between(1, 3);
  }
  if (name == "size" || name == "num_classes" || name == "groups" || name == "num_groups") return random.between(1, 3);
  if (name == "k") return random.between(1, std::max<int64_t>(n, 1));
  if (name == "offset" || name == "diagonal") return random.between(-2, 2);
  if (name == "reduction") return random.between(0, 2);
  if (name == "correction" || name == "n") return random.between(0, 2);
  if (name == "padding_idx" || name == "ignore_index") return random.between(-1, 2);
  if (name == "fill_value") return random.between(0, 4);
  return random.between(-1, 3);
}

std::vector<int64_t> Arguments::integers(const std::string& name) {
  Random& random = draft_.random;
  const int64_t n = ndim();
  const std::string& base = op_.base;
  if (name == "dims" && (base == "permute" || base == "permute_copy")) return permutation(random, n);
  if (name == "dim" || name == "dims" || name == "axis" || name == "source" || name == "destination") {
    auto dims = permutation(random, n);
    dims.resize(base == "rot90" ? std::min<int64_t>(2, n) : random.between(0, n));
    return dims;
  }
  if (name == "shifts") return {random.between(-3, 3)};
  if (name == "repeats") {
    std::vector<int64_t> repeats(n + random.below(2));
    for (int64_t& r : repeats) r = random.between(random.chance(0.1) ? 0 : 1, 2);
    return repeats;
  }
  if (name == "pad") {
    std::vector<int64_t> pad(2 * random.between(0, std::max<int64_t>(n, 1)));
    for (int64_t& p : pad) p = random.between(-1, 2);
    return pad;
  }
  if (name == "split_sizes") {
    const int64_t all = size_of_dim(), first = random.between(0, all);
    return {first, all - first};
  }
  if ((base == "expand" || base == "expand_copy" || base == "broadcast_to" || base == "sum_to_size") &&
      self_.defined()) {
    std::vector<int64_t> sizes = self_.sizes().vec();
    for (int64_t& s : sizes) {
      if (base == "sum_to_size") s = random.chance(0.5) ? 1 : s;
      if (base != "sum_to_size" && s == 1) s = random.between(1, 4);
    }
    if (random.chance(0.3) && base != "sum_to_size") sizes.insert(sizes.begin(), random.between(1, 3));
    return sizes;
  }
  if (base == "as_strided" || base == "as_strided_copy" || base == "as_strided_scatter") {
    if (name == "size") return {random.between(1, 3), random.between(1, 3)};
    return {random.between(1, 4), random.between(1, 2)};
  }
  if (name == "tensor_indices_or_sections" || name == "indices") return {random.between(0, 3), random.between(3, 5)};
  if (name == "sizes" && base == "unflatten") return factors(random, size_of_dim());
  if (name == "size" || name == "shape") return self_.defined() ? factors(random, self_.numel()) : random_sizes(random);
  return std::vector<int64_t>(random.between(1, 2), random.between(0, 2));
}

double Arguments::number(const std::string& name) {
  Random& random = draft_.random;
  if (name == "eps" || name == "rtol" || name == "atol") return 1e-3;
  return random.pick(std::vector<double>{0, 0.5, 1, 2, 1.5, -1, 0.25});
}

Argument Arguments::scalar() {
  Random& random = draft_.random;
  const bool floating = self_.defined() && (self_.is_floating_point() || self_.is_complex());
  if (random.chance(floating ? 0.5 : 0.15)) return random.pick(std::vector<double>{0, 0.5, 1, 2, -1.5, 3, -0.25});
  if (random.chance(0.1)) return random.chance(0.5);
  return random.between(-2, 3);
}

std::string Arguments::text(const std::string& name) {
  Random& random = draft_.random;
  using Texts = std::vector<std::string>;
  if (name == "reduce") {
    return random.pick(op_.base == "scatter" ? Texts{"add", "multiply"} : Texts{"sum", "prod", "mean", "amax", "amin"});
  }
  if (name == "rounding_mode") return random.pick(Texts{"floor", "trunc"});
  if (name == "approximate") return random.pick(Texts{"none", "tanh"});
  if (name == "indexing") return random.pick(Texts{"ij", "xy"});
  if (name == "side") return random.pick(Texts{"left", "right"});
  if (name == "mode") return random.pick(Texts{"constant", "reflect", "replicate", "circular"});
  if (name == "padding") return random.pick(Texts{"same", "valid"});
  if (name == "interpolation") return random.pick(Texts{"linear", "lower", "higher", "nearest", "midpoint"});
  if (name == "ord") return random.pick(Texts{"fro", "nuc"});
  if (name == "UPLO") return random.pick(Texts{"L", "U"});
  return "";
}

}  // namespace dtensor::fuzz
