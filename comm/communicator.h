// Collectives over vectors of ranks.
//
// A process passes the tensors of every rank it owns and gets those ranks' results: the same call serves one rank per
// process, all ranks in one process, and none. Inputs are never changed, and no result shares memory with them.
//
//   CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), event};
//   RankTensors sums = world.communicator().all_reduce(call, locals, ReduceOp::kSum);
//
// Everything that moves data without arithmetic is one primitive, exchange(): blocks go from where they lie to where
// they belong, so that in process nothing is copied twice and nothing is allocated.
//
// Every call is reported to the current scope's listeners (comm_event.h). Errors are c10::Error naming the collective,
// the ranks and the shapes that disagree, thrown before anything is moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "comm/comm_call.h"
#include "placement/placement.h"

namespace dtensor::internal {

class CallRecorder;  // call_recorder.h

class Communicator {
 public:
  virtual ~Communicator();

  // Writes the block of every message from the sender's input into the receiver's output, also where they are one rank.
  // inputs[i] and outputs[i] belong to call.ranks[i] and may be empty. A process passes all messages that a rank it
  // owns sends or receives, ordered by (sender, receiver, input); sender and receiver list what passes between them in
  // the same order. `c` is what it is called and counted as; a backend may use its own form of it. No two messages
  // write to one place.
  void exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                const RankPieces& outputs);
  // The same, but all senders of a receiver write to the same places in the same order, and what arrives is reduced in
  // the order of the group.
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
  // inputs[r][i] goes from r to position i of its group; the result's [r][i] came from there. Empty tensors are
  // allowed.
  RankPieces all_to_all(const CommCall& call, const RankPieces& inputs);
  // Every rank gets the input at position `source` of its group; other inputs may be undefined.
  RankTensors broadcast(const CommCall& call, const RankTensors& inputs, int64_t source);
  // Position i gets piece i of position `source`; pieces of other ranks are ignored and may be missing.
  RankTensors scatter(const CommCall& call, const RankPieces& inputs, int64_t source);
  // Position `target` gets the inputs of all; others get an empty list.
  RankPieces gather(const CommCall& call, const RankTensors& inputs, int64_t target);
  // Position i gets the input of position sources[i].
  RankTensors permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources);

  // For plans that keep a limit.

  // Whether what is sent and received lies in buffers of its own meanwhile, as with message passing. If not, ranks read
  // each other's memory.
  virtual bool uses_staging_buffers() const { return true; }
  // Bytes that a reduction holds at most at once, on the rank that needs most, if messages are packed into buffers.
  // kAllReduce: besides its input of `bytes` and its result. kReduceScatter: besides its input, its result of `bytes`,
  // the messages and the addends that arrive, all of which depend on the layouts that plans know. A world whose ranks
  // are not processes answers for the job that it stands for, on GPUs with NCCL.
  virtual int64_t scratch_bytes(Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                                int64_t group_size) const;

 protected:
  // `devices`: where the results of each rank go; a single entry stands for all ranks.
  explicit Communicator(std::vector<c10::Device> devices);
  c10::Device device(int64_t rank) const { return devices_.size() == 1 ? devices_[0] : devices_[rank]; }

  // Arguments are checked as far as this process can see them.
  virtual void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages,
                           const RankPieces& inputs, const RankPieces& outputs) = 0;
  virtual void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                                 const RankPieces& outputs, ReduceOp op) = 0;
  virtual RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) = 0;
  virtual void do_barrier(const CommCall& call) = 0;

 private:
  struct Source;
  using SourcesOf = std::function<void(int64_t position, std::vector<Source>& sources)>;
  RankPieces exchange_whole(const CommCall& call, Collective c, const RankPieces& inputs, const SourcesOf& sources_of);

  std::vector<c10::Device> devices_;
  std::unique_ptr<CallRecorder> recorder_;  // null: no recording
};

// World::local: all ranks of every group are owned by this process; copies between their tensors, across devices too.
// `devices`: of each rank. Reductions add in the order of the group, so that results repeat bit for bit; half types
// accumulate in float32. Nothing but the results is allocated, half types and several devices aside.
std::unique_ptr<Communicator> make_local_communicator(std::vector<c10::Device> devices);
// World::abstract and World::fake: gives tensors of the right shape for the owned ranks. What a rank sends to itself is
// copied, what would come from another rank is zeros, and a reduction is the rank's own addend. `device`: of all ranks.
std::unique_ptr<Communicator> make_dry_communicator(c10::Device device);

}  // namespace dtensor::internal
