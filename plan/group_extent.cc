#include "plan/group_extent.h"

#include <algorithm>
#include <map>

namespace dtensor {

GroupExtent group_extent(const RankGroups& group, int64_t ranks_per_node) {
  if (const auto known = group.on_node.find(ranks_per_node)) return {group.size, *known};
  GroupExtent extent = GroupExtent::within_node(group.size);
  for (const auto& members : group.members) {
    std::map<int64_t, int64_t> on_node;
    for (const int64_t rank : members) ++on_node[rank / ranks_per_node];
    for (const auto& [node, count] : on_node) extent.on_node = std::min(extent.on_node, count);
  }
  group.on_node.set(ranks_per_node, extent.on_node);
  return extent;
}

}  // namespace dtensor
