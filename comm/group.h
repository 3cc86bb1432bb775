// The ranks that take part in a collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// The groups of ranks along one or several dims of a mesh: disjoint, of equal size, ordered by coordinate (row-major
// over the dims). Every rank of the mesh is in exactly one.
struct Group {
  std::string name;                           // mesh dim names, "tp" or "dp,tp"
  std::vector<std::vector<int64_t>> members;  // world ranks
  std::vector<int64_t> group_of;              // world rank -> index into members, -1 outside the mesh
  std::vector<int64_t> position_of;           // world rank -> position in its group, -1 outside the mesh
  int64_t size = 1;
};

namespace internal {

// "0-3", "0,2,4-6": how messages name some ranks.
std::string ranks_text(const std::vector<int64_t>& ranks);

}  // namespace internal

}  // namespace dtensor
