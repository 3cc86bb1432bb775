// Collectives over vectors of ranks.
//
// A process passes the tensors of every rank it owns and gets those ranks' results: the same call serves one rank per
// process, all ranks in one process, and none. Inputs are never changed, and no result shares memory with them.
//
//   CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), event};
//   RankTensors sums = world.communicator().all_reduce(call, locals, ReduceOp::kSum);
//
// Everything that moves data without arithmetic is one primitive, exchange(): blocks go from where they lie to where they
// belong, so that in process nothing is copied twice and nothing is allocated.
//
// Every call is reported to the current scope's listeners (comm_event.h). Errors are c10::Error naming the collective,
// the ranks and the shapes that disagree, thrown before anything is moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "mesh/comm_event.h"
#include "mesh/device_mesh.h"
#include "placement/geometry.h"
#include "placement/placement.h"

namespace dtensor {

using RankTensors = std::vector<at::Tensor>;              // one per owned rank
using RankPieces = std::vector<std::vector<at::Tensor>>;  // per owned rank, any number

class CommWork;  // comm_work.h

struct CommCall {
  const Group* group = nullptr;
  // The owned ranks, in the order of the tensors: mesh.local_ranks().
  absl::Span<const int64_t> ranks;
  // What to report. `collective`, `seconds`, `backward`, `mesh_dims`, `group_size` and `received_bytes` are filled in by the
  // communicator; `cause`, `bytes` and `dtype` by the caller, who knows them also where nobody has data.
  CommEvent event;
  // Shapes of the pieces that each owned rank receives, in the order of its result. For the functions that make their results
  // themselves: a rank cannot know the shapes of what another process sends. Unset: as large as what it passes itself.
  std::vector<std::vector<Shape>> receive_shapes;
  // Of exchange(), reduce_scatter() and all_reduce_many(): set if the caller need not have the results at once. A backend that can
  // go on by itself then returns as soon as the inputs have been read, and leaves here what to wait for before the results are used.
  // It goes on whether anybody waits or not: ranks may set this or not, each for itself.
  std::shared_ptr<CommWork>* work = nullptr;
};

// A block of what one rank has, and where another one (or the same) wants it.
struct Message {
  int64_t sender = 0, receiver = 0;  // world ranks of one group
  int64_t input = 0, output = 0;     // which of the sender's inputs, which of the receiver's outputs
  Block block;
};

// What a listener may look at while a collective is reported.
struct CommView {
  Collective collective;
  const CommCall& call;
  absl::Span<const Message> messages;  // none for all_reduce and barrier
  const RankPieces& inputs;
  const RankPieces& outputs;  // of an all_reduce its inputs, whose shapes they have
  int64_t sequence = 0;       // which call of its group it is, from 1; 0: nobody counts (flight_recorder.h)
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

class FlightGroups;  // flight_recorder.h

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Writes the block of every message from the sender's input into the receiver's output, also where they are one rank.
  // inputs[i] and outputs[i] belong to call.ranks[i] and may be empty. A process passes all messages that a rank it owns sends
  // or receives, ordered by (sender, receiver, input); sender and receiver list what passes between them in the same order.
  // `c` is what it is called and counted as; a backend may use its own form of it. No two messages write to one place.
  void exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                const RankPieces& outputs);
  // The same, but all senders of a receiver write to the same places in the same order, and what arrives is reduced in the
  // order of the group.
  void reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                      const RankPieces& outputs, ReduceOp op);
  // Reduces the k-th tensors of a group's ranks, for every k, in one collective. Fresh, contiguous tensors.
  RankPieces all_reduce_many(const CommCall& call, const RankPieces& inputs, ReduceOp op);
  void barrier(const CommCall& call);

  // For whole tensors, with fresh results. Sizes may differ between ranks but where something is reduced.

  RankTensors all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op);
  // Every rank gets the inputs of its whole group.
  RankPieces all_gather(const CommCall& call, const RankTensors& inputs);
  // inputs[r][i] is rank r's addend to what position i of its group receives.
  RankTensors reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op);
  // inputs[r][i] goes from r to position i of its group; the result's [r][i] came from there. Empty tensors are allowed.
  RankPieces all_to_all(const CommCall& call, const RankPieces& inputs);
  // Every rank gets the input at position `source` of its group; other inputs may be undefined.
  RankTensors broadcast(const CommCall& call, const RankTensors& inputs, int64_t source);
  // Position i gets piece i of position `source`; pieces of other ranks are ignored and may be missing.
  RankTensors scatter(const CommCall& call, const RankPieces& inputs, int64_t source);
  // Position `target` gets everybody's input; others get an empty list.
  RankPieces gather(const CommCall& call, const RankTensors& inputs, int64_t target);
  // Position i gets the input of position sources[i].
  RankTensors permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources);

 protected:
  // `devices`: where the results of each rank go; a single entry stands for all ranks.
  explicit Communicator(std::vector<c10::Device> devices);
  c10::Device device(int64_t rank) const { return devices_.size() == 1 ? devices_[0] : devices_[rank]; }

  // Arguments are checked as far as this process can see them.
  virtual void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                           const RankPieces& outputs) = 0;
  virtual void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                                 const RankPieces& outputs, ReduceOp op) = 0;
  virtual RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) = 0;
  virtual void do_barrier(const CommCall& call) = 0;

 private:
  struct Source;
  using SourcesOf = std::function<void(int64_t position, std::vector<Source>& sources)>;
  RankPieces exchange_whole(const CommCall& call, Collective c, const RankPieces& inputs, const SourcesOf& sources_of);

  std::vector<c10::Device> devices_;
  std::shared_ptr<FlightGroups> flight_groups_;
};

// World::local: all ranks of every group are owned by this process; copies between their tensors, across devices too.
// `devices`: of each rank. Reductions add in the order of the group, so that results repeat bit for bit; half types
// accumulate in float32. Nothing but the results is allocated, half types and several devices aside.
std::unique_ptr<Communicator> make_local_communicator(std::vector<c10::Device> devices);
// World::abstract and World::fake: gives tensors of the right shape for the owned ranks. What a rank sends to itself is
// copied, what would come from another rank is zeros, and a reduction is the rank's own addend. `device`: of all ranks.
std::unique_ptr<Communicator> make_dry_communicator(c10::Device device);

}  // namespace dtensor
