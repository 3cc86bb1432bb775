// The ranks of a collective, and where they are: what the cost of a collective depends on besides its bytes.
#pragma once

#include <cstdint>

#include "comm/collective.h"
#include "comm/group.h"

namespace dtensor {

// A node is a number of consecutive ranks of the world.
struct GroupExtent {
  int64_t size = 1;
  int64_t on_node = 1;  // at least so many of them on each node that has one; `size`: all are on one node

  bool crosses_nodes() const { return on_node < size; }
  static GroupExtent within_node(int64_t size) { return {size, size}; }
  // As if each rank had nothing but its own link to other nodes: how decisions price a collective, so that bytes of all
  // kinds count alike, and what ranks take that exchange with few others.
  static GroupExtent of_links(int64_t size, bool crosses_nodes) { return {size, crosses_nodes ? 1 : size}; }
};

// Over how many links between nodes a rank's bytes come: gathers and reductions run in rings, one for each rank of a
// node, whose link leads to the next node; what a rank receives in other collectives may all come over its own.
double links_of(Collective kind, const GroupExtent& group);

// A mesh may list the ranks of a group in any order. Remembers the last answer in the group.
GroupExtent group_extent(const RankGroups& group, int64_t ranks_per_node);

}  // namespace dtensor
