// Globs over the paths of modules, as a ParallelPlan has them.
#pragma once

#include <string>
#include <vector>

namespace dtensor::internal {

// Only the pattern "" matches the path "".
bool pattern_matches(const std::string& pattern, const std::string& path);
// The pattern that matches this path alone.
std::string pattern_of_path(const std::string& path);
// The `count` paths that least changes of characters make match, best first.
std::vector<std::string> nearest_paths(const std::string& pattern, std::vector<std::string> paths, size_t count);

}  // namespace dtensor::internal
