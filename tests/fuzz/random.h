// The only source of randomness of a program: everything follows from its seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

namespace dtensor::fuzz {

// A seed or a number of programs from the environment variable `name`; `otherwise` if it is not set.
inline uint64_t number_from_env(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  // In [0, n). REQUIRES: n > 0.
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(double probability) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < probability; }

  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[below(static_cast<int64_t>(from.size()))];
  }
  // One of them, the n-th with a probability proportional to its weight.
  template <typename T>
  const T& pick_weighted(const std::vector<std::pair<T, double>>& from) {
    double sum = 0;
    for (const auto& entry : from) sum += entry.second;
    double at = static_cast<double>(engine_() >> 11) * 0x1p-53 * sum;
    for (const auto& entry : from) {
      if ((at -= entry.second) < 0) return entry.first;
    }
    return from.back().first;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace dtensor::fuzz
