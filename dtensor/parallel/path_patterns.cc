#include "dtensor/parallel/path_patterns.h"

#include <fnmatch.h>

#include <algorithm>

namespace dtensor::internal {
namespace {

// A pattern in parts that match one character each, or any text: "a", "[qkv]", "?", "*".
std::vector<std::string> parts_of_pattern(const std::string& pattern) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < pattern.size();) {
    size_t end = i + 1;
    if (pattern[i] == '\\' && end < pattern.size()) {
      ++end;
    } else if (const size_t close = pattern.find(']', i + 2); pattern[i] == '[' && close != std::string::npos) {
      end = close + 1;
    }
    parts.push_back(pattern.substr(i, end - i));
    i = end;
  }
  return parts;
}

// The least number of characters to insert, remove or replace in `path` so that it matches.
size_t changes_to_match(const std::vector<std::string>& parts, const std::string& path) {
  std::vector<size_t> least(path.size() + 1);  // for the parts so far and the first j characters
  for (size_t j = 0; j < least.size(); ++j) least[j] = j;
  for (const std::string& part : parts) {
    std::vector<size_t> next(least.size());
    const bool any_text = part == "*";
    next[0] = any_text ? least[0] : least[0] + 1;
    for (size_t j = 1; j < next.size(); ++j) {
      if (any_text) {
        next[j] = std::min(least[j], next[j - 1]);
      } else {
        const bool same = ::fnmatch(part.c_str(), path.substr(j - 1, 1).c_str(), 0) == 0;
        next[j] = std::min({least[j - 1] + (same ? 0 : 1), least[j] + 1, next[j - 1] + 1});
      }
    }
    least = std::move(next);
  }
  return least.back();
}

}  // namespace

bool pattern_matches(const std::string& pattern, const std::string& path) {
  if (path.empty()) return pattern.empty();
  return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

std::string pattern_of_path(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

std::vector<std::string> nearest_paths(const std::string& pattern, std::vector<std::string> paths, size_t count) {
  const std::vector<std::string> parts = parts_of_pattern(pattern);
  std::erase(paths, "");
  const auto changes = [&](const std::string& path) { return changes_to_match(parts, path); };
  std::stable_sort(paths.begin(), paths.end(),
                   [&](const std::string& a, const std::string& b) { return changes(a) < changes(b); });
  if (paths.size() > count) paths.resize(count);
  return paths;
}

}  // namespace dtensor::internal
