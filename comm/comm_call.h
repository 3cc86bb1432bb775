// One call of a collective: among whom, on which tensors, what moves where.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "comm/comm_event.h"
#include "comm/group.h"
#include "comm/rank_tensors.h"
#include "placement/geometry.h"

namespace dtensor::internal {

class CommWork;  // comm_work.h

struct CommCall {
  const RankGroups* group = nullptr;
  // The owned ranks, in the order of the tensors: mesh.local_ranks().
  absl::Span<const int64_t> ranks;
  // The event to report. `collective`, `seconds`, `backward`, `mesh_dims`, `group_size` and `received_bytes` are filled
  // in by the communicator; `cause`, `bytes` and `dtype` by the caller, also in worlds without data.
  CommEvent event;
  // Shapes of the pieces that each owned rank receives, in the order of its result. For functions that allocate their
  // results: a rank does not know the shapes that another process sends. Unset: as large as its own input.
  std::vector<std::vector<Shape>> receive_shapes;
  // Of exchange(), reduce_scatter() and all_reduce_many(): set if the caller need not have the results at once. An
  // asynchronous backend then returns as soon as the inputs have been read, and stores here the work to wait for before
  // the results are used. The collective ends without that wait, too, so each rank may set this or not.
  std::shared_ptr<CommWork>* work = nullptr;
  // Of exchange() and reduce_scatter(): the messages passed check_messages() before, and the tensors have the sizes
  // that they had there, and one dtype. So a plan that runs again and again is checked once.
  bool are_messages_checked = false;
};

// A block of what one rank has, and where another one (or the same) wants it.
struct Message {
  int64_t sender = 0, receiver = 0;  // world ranks of one group
  int64_t input = 0, output = 0;     // which of the sender's inputs, which of the receiver's outputs
  Block block;
};

// The data for a listener while a collective is reported.
struct CommView {
  Collective collective;
  const CommCall& call;
  absl::Span<const Message> messages;  // none for all_reduce and barrier
  const RankPieces& inputs;
  const RankPieces& outputs;  // of an all_reduce its inputs, whose shapes they have
  int64_t sequence = 0;       // number of the call in its group, from 1; 0: not counted (call_recorder.h)
  // After a call that goes on: the number that CommListener::on_wait() gets, from 1. 0: the results are there.
  uint64_t begun = 0;
};

// Where world ranks stand in a list of some of them.
class RankSlots {
 public:
  RankSlots(absl::Span<const int64_t> ranks, int64_t world_size);
  explicit RankSlots(const CommCall& call) : RankSlots(call.ranks, static_cast<int64_t>(call.group->group_of.size())) {}
  // -1 if the rank is not in the list. REQUIRES: 0 <= rank < world_size.
  int64_t operator[](int64_t rank) const {
    const int64_t i = rank - first_;
    if (slots_.empty()) return i >= 0 && i < size_ ? i : -1;
    return slots_[rank];
  }

 private:
  int64_t first_ = 0, size_ = 0;
  std::vector<int64_t> slots_;  // by rank; empty where they are in a row
};

}  // namespace dtensor::internal
