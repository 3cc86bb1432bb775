// Tensors that move from rank to rank around a ring: the groups of one mesh dim, each rank sending to the next one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm_event.h"
#include "comm/comm_work.h"
#include "comm/rank_tensors.h"
#include "plan/spec.h"

namespace dtensor::internal {

class Ring {
 public:
  // Of parts of tensors laid out as `specs`, of one mesh; they travel as `dtype`.
  Ring(std::vector<SpecPtr> specs, int64_t mesh_dim, c10::ScalarType dtype);

  // Moves every rank's tensors to the next rank, in one permute: `parts` are those of the rank `steps` places before.
  // The results are to be used after wait().
  struct Move {
    RankPieces parts;
    std::shared_ptr<CommWork> work;
    void wait() const {
      if (work != nullptr) work->wait();
    }
  };
  Move begin_move(const RankPieces& parts, int64_t steps, const CommCause& cause) const;

  // Bytes of the parts of one rank, of the rank with the largest.
  int64_t bytes() const;

 private:
  std::vector<SpecPtr> specs_;
  int64_t mesh_dim_;
  c10::ScalarType dtype_;
};

// The position, along a mesh dim, of the rank whose part is on the i-th local rank after `steps` moves.
int64_t position_after(const DeviceMesh& mesh, int64_t mesh_dim, int64_t i, int64_t steps);

}  // namespace dtensor::internal
