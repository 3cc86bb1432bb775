#include "plan/group_extent.h"

#include <algorithm>
#include <map>

#include "mesh/device_mesh.h"

namespace dtensor {

GroupExtent group_extent(const DeviceMesh& mesh, uint64_t dims, int64_t ranks_per_node) {
  GroupExtent group;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if ((dims >> d & 1) != 0) group.size *= mesh.size(d);
  }
  const bool crosses = (dims & mesh.dims_between_nodes(ranks_per_node)) != 0;
  group.on_node = crosses ? mesh.ranks_on_node(dims, ranks_per_node) : group.size;
  return group;
}

GroupExtent group_extent(const Group& group, int64_t ranks_per_node) {
  GroupExtent extent = GroupExtent::within_node(group.size);
  for (const auto& members : group.members) {
    std::map<int64_t, int64_t> on_node;
    for (const int64_t rank : members) ++on_node[rank / ranks_per_node];
    for (const auto& [node, count] : on_node) extent.on_node = std::min(extent.on_node, count);
  }
  return extent;
}

}  // namespace dtensor
