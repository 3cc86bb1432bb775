// The level at which a cost model prices the collectives of a group.
#pragma once

#include <cstdint>

#include "absl/algorithm/container.h"
#include "comm/group.h"

namespace dtensor::internal {

// Whether some group has ranks on several nodes, of which each has `ranks_per_node` consecutive ranks. A mesh may list
// the ranks of a group in any order.
inline bool crosses_nodes(const Group& group, int64_t ranks_per_node) {
  return absl::c_any_of(group.members, [&](const auto& members) {
    const int64_t node = members.front() / ranks_per_node;
    return absl::c_any_of(members, [&](int64_t rank) { return rank / ranks_per_node != node; });
  });
}

}  // namespace dtensor::internal
