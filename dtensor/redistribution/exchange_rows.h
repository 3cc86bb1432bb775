// Rows of plain matrices that go to other ranks, as many to each as the program says: one differentiable all_to_all.
// For numbers of rows that depend on values, which no layout describes; all ranks of a group must know them before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "comm/comm_event.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

struct RowExchange {
  DeviceMesh mesh;
  int64_t mesh_dim = 0;  // rows go to ranks of one group along it
  // One list per mesh.local_ranks(), in a world without data one (stand_in.h); one number per position in the group.
  std::vector<std::vector<int64_t>> sent, received;
  // Rows from other ranks that the rank of the group gets that gets most; and if all are sent back.
  int64_t most_received = 0, most_sent = 0;
  CommCause cause;
};

// The same, with all rows sent back where they came from.
RowExchange sent_back(RowExchange exchange, CommCause cause);

// `rows`: [rows, width], one per mesh.local_ranks(), sorted by the position of their receiver. Returns those that each
// rank receives, sorted by their sender. Communicates on all ranks of the group, also where there are no rows; nothing
// if the group is one rank. `reached_by`: plain tensors whose backward must run on every rank if that of the result
// does, although a rank may have computed nothing with them; they get no gradient.
// Error (ValueError): rows that are not as many as are sent.
std::vector<at::Tensor> exchange_rows(const std::vector<at::Tensor>& rows, const RowExchange& exchange,
                                      const std::vector<at::Tensor>& reached_by = {});

}  // namespace dtensor::internal
