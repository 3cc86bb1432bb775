// Numbers by name that a search of layouts tries, besides layouts: sizes of mesh dims, and settings of the program.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

using NamedNumbers = std::vector<std::pair<std::string, int64_t>>;

// Each with the values to try: {{"micro_batch", {1, 2, 4}}, {"checkpoint", {0, 1}}}.
using LayoutSettings = std::vector<std::pair<std::string, std::vector<int64_t>>>;

namespace internal {

// The value of the setting. Error (ValueError), in the name of `function`: there is none; the text lists those that
// are.
int64_t setting_of(const NamedNumbers& settings, const std::string& name, const char* function);

// How many combinations of one value per setting there are; at most the largest int64_t.
int64_t num_combinations(const LayoutSettings& settings);
// The n-th of them; the last setting changes first.
NamedNumbers combination(const LayoutSettings& settings, int64_t n);

// The largest number if the product is larger. REQUIRES: both are at least 0.
int64_t product_or_most(int64_t a, int64_t b);

// "dp=16 tp=4".
std::string numbers_text(const NamedNumbers& numbers);

}  // namespace internal

}  // namespace dtensor
