// One call of any collective in the groups of a mesh dim, with tensors of a given size.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "plan/group_extent.h"

namespace dtensor::tools {

// Groups to measure in: along one dim of a mesh.
struct Groups {
  DeviceMesh mesh;
  int64_t dim = 0;
  GroupExtent extent = {};
  const RankGroups& group() const { return mesh.get_group(dim); }
};

// The arguments of one call of any collective.
struct CallArguments {
  internal::CommCall call;
  internal::RankTensors whole;
  internal::RankPieces pieces;
  std::vector<int64_t> neighbours;  // to each position its next
  int64_t bytes = 0;                // received per rank
};

// Of a call in which every rank receives about `bytes`.
CallArguments arguments_of(Collective c, const Groups& groups, int64_t bytes);

void run_collective(internal::Communicator& comm, Collective c, const CallArguments& a);

}  // namespace dtensor::tools
