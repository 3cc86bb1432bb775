// The ways to simplify a program. Each proposes candidates, the most promising first; every candidate is simpler by a
// measure, so that no two ways undo each other forever.
#pragma once

#include <functional>
#include <vector>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

using Candidates = std::function<std::vector<Program>(const Program&)>;

std::vector<Program> without_a_step(const Program& program);
// The result of a step becomes a leaf.
std::vector<Program> with_a_leaf_for_a_step(const Program& program);
std::vector<Program> with_less_mesh(const Program& program);
std::vector<Program> with_plain_flags(const Program& program);
std::vector<Program> with_simpler_layouts(const Program& program);
std::vector<Program> with_smaller_sizes(const Program& program);
std::vector<Program> with_simpler_dtypes(const Program& program);
std::vector<Program> with_simpler_values(const Program& program);
std::vector<Program> with_simpler_arguments(const Program& program);

}  // namespace dtensor::fuzz
