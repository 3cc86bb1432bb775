// One call of a collective on plain tensors: among which ranks, and checks of its arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_call.h"
#include "comm/rank_tensors.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

// A call by the user: of which function, along which dim of which mesh. Backward makes its collectives in its name.
struct PlainCall {
  DeviceMesh mesh;
  std::string mesh_dim;
  CommCause cause;

  const std::string& function() const { return cause.op; }
  const RankGroups& group() const { return mesh.get_group(mesh_dim); }
  int64_t size() const { return group().size; }
  // Of the i-th owned rank in its group.
  int64_t position(size_t i) const { return group().position_of[mesh.local_ranks()[i]]; }
  // In the group of the i-th owned rank.
  int64_t rank_at(size_t i, int64_t position) const {
    const RankGroups& g = group();
    return g.members[g.group_of[mesh.local_ranks()[i]]][position];
  }
};

// Errors: no mesh, no such dim.
PlainCall plain_call(const char* function, const DeviceMesh& mesh, std::string_view mesh_dim);
// Error (ValueError): `position` is none along the mesh dim.
void check_position(const PlainCall& call, const char* name, int64_t position);
// Errors: as in dtensor/collectives.h. `uneven_dim`: in which tensors of a group may differ, -1: in none.
void check_tensors(const PlainCall& call, const RankTensors& tensors, int64_t uneven_dim = -1);
// The sum of the sizes before a position.
int64_t start_of(const std::vector<int64_t>& sizes, int64_t position);

// Where the tensors of a group lie in one that is all of them, concatenated.
struct Concatenation {
  int64_t dim = 0;
  std::vector<std::vector<int64_t>> sizes;  // along `dim`: for the group of the i-th owned rank, by position

  int64_t start(size_t i, int64_t position) const { return start_of(sizes[i], position); }
  int64_t whole(size_t i) const { return start_of(sizes[i], static_cast<int64_t>(sizes[i].size())); }
  // Without the smallest part: what one of the ranks lacks.
  int64_t most_lacking(size_t i) const;
};

// `tensors` are the parts. Errors (ValueError): as in dtensor/collectives.h.
Concatenation checked_parts(const PlainCall& call, const RankTensors& tensors, int64_t gather_dim,
                            c10::IntArrayRef sizes);
// `tensors` are to be split. Errors likewise.
Concatenation checked_whole(const PlainCall& call, const RankTensors& tensors, int64_t scatter_dim,
                            c10::IntArrayRef sizes);
// One list per owned rank. `splits`: as the user gives them; `of_input`: of the tensors themselves. Errors likewise.
std::vector<std::vector<int64_t>> checked_splits(const PlainCall& call, const char* name,
                                                 const std::vector<std::vector<int64_t>>& splits,
                                                 const RankTensors& tensors, bool of_input);

// An event for `bytes` that a rank receives of tensors like `tensors`.
CommCall comm_call(const PlainCall& call, const RankTensors& tensors, int64_t bytes);

}  // namespace dtensor::internal
