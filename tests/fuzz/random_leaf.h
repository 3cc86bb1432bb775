// Random leaves: shapes, dtypes, layouts, values.
#pragma once

#include <vector>

#include "tests/fuzz/program.h"
#include "tests/fuzz/random.h"

namespace dtensor::fuzz {

std::vector<int64_t> random_mesh(Random& random);
int64_t random_size(Random& random);
std::vector<int64_t> random_sizes(Random& random);
c10::ScalarType random_dtype(Random& random);
// A layout for a tensor with `ndim` dims and that dtype. Fits the mesh.
Placements random_layout(Random& random, const std::vector<int64_t>& mesh, int64_t ndim, c10::ScalarType dtype);

// Values of few binary digits, so that sums of them are exact in every dtype; sometimes zeros, an infinity or a NaN.
Leaf random_leaf(Random& random, const std::vector<int64_t>& mesh, const std::vector<int64_t>& sizes,
                 c10::ScalarType dtype);
// Integers below `bound`.
Leaf random_indices(Random& random, const std::vector<int64_t>& mesh, const std::vector<int64_t>& sizes, int64_t bound);

}  // namespace dtensor::fuzz
