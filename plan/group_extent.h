// The ranks of a collective, and where they are: what the cost of a collective depends on besides its bytes.
#pragma once

#include <cstdint>

#include "comm/group.h"

namespace dtensor {

class DeviceMesh;

// A node is a number of consecutive ranks of the world.
struct GroupExtent {
  int64_t size = 1;
  int64_t on_node = 1;  // at least so many of them on each node that has one; `size`: all are on one node

  bool crosses_nodes() const { return on_node < size; }
  static GroupExtent within_node(int64_t size) { return {size, size}; }
  // Of ranks that exchange with few others, each over its own link.
  static GroupExtent of_links(int64_t size, bool crosses_nodes) { return {size, crosses_nodes ? 1 : size}; }
};

// Of the groups of a mesh along `dims`, a bit each. Cached in the mesh.
GroupExtent group_extent(const DeviceMesh& mesh, uint64_t dims, int64_t ranks_per_node);
// A mesh may list the ranks of a group in any order.
GroupExtent group_extent(const Group& group, int64_t ranks_per_node);

}  // namespace dtensor
