// Collectives over vectors of ranks.
//
// A process passes one tensor per rank it owns, and gets one result per rank it owns: the same call serves one rank per
// process, all ranks in one process, and none. Sizes may differ between ranks in every collective that moves pieces.
// Results are fresh tensors or alias the inputs of other ranks only where said; inputs are never changed.
//
//   CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), event};
//   RankTensors sums = world.communicator().all_reduce(call, locals, ReduceOp::kSum);
//
// Every call is reported to the current scope's listeners (comm_event.h). Errors are c10::Error naming the collective,
// the ranks and the shapes that disagree, thrown before anything is moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "mesh/comm_event.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor {

using RankTensors = std::vector<at::Tensor>;              // one per owned rank
using RankPieces = std::vector<std::vector<at::Tensor>>;  // per owned rank, one per position in its group

struct CommCall {
  const Group* group = nullptr;
  // The owned ranks, in the order of the tensors: mesh.local_ranks().
  absl::Span<const int64_t> ranks;
  // What to report. `collective`, `seconds`, `backward`, `mesh_dims` and `group_size` are filled in by the
  // communicator; `cause`, `bytes` and `dtype` by the caller, who knows them also where nobody has data.
  CommEvent event;
  // Shapes of the pieces that each owned rank receives, by position in the group. Needed only by communicators whose
  // peers are out of reach (needs_shapes()).
  std::vector<std::vector<Shape>> receive_shapes;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual bool needs_shapes() const = 0;

  // Every rank gets the inputs of its whole group. In process the pieces alias the inputs: read them only.
  RankPieces all_gather(const CommCall& call, const RankTensors& inputs);
  RankTensors all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op);
  // inputs[r][i] is rank r's addend to what position i of its group receives.
  RankTensors reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op);
  // inputs[r][i] goes from r to position i of its group; the result's [r][i] came from there. Empty tensors are
  // allowed. In process the pieces alias the inputs: read them only.
  RankPieces all_to_all(const CommCall& call, const RankPieces& inputs);
  // Every rank gets a copy of the input at position `source` of its group.
  RankTensors broadcast(const CommCall& call, const RankTensors& inputs, int64_t source);
  // Position i gets piece i of position `source`, as a copy; pieces of other ranks are ignored and may be missing.
  RankTensors scatter(const CommCall& call, const RankPieces& inputs, int64_t source);
  // Position `target` gets everybody's input; others get an empty list. Pieces may alias the inputs.
  RankPieces gather(const CommCall& call, const RankTensors& inputs, int64_t target);
  // Position i gets the input of position sources[i], as a copy.
  RankTensors permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources);
  void barrier(const CommCall& call);

 protected:
  virtual RankPieces do_all_gather(const CommCall& call, const RankTensors& inputs) = 0;
  virtual RankTensors do_all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op) = 0;
  virtual RankTensors do_reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op) = 0;
  virtual RankPieces do_all_to_all(const CommCall& call, const RankPieces& inputs) = 0;
  virtual RankTensors do_broadcast(const CommCall& call, const RankTensors& inputs, int64_t source) = 0;
  virtual RankTensors do_scatter(const CommCall& call, const RankPieces& inputs, int64_t source) = 0;
  virtual RankPieces do_gather(const CommCall& call, const RankTensors& inputs, int64_t target) = 0;
  virtual RankTensors do_permute(const CommCall& call, const RankTensors& inputs,
                                 absl::Span<const int64_t> sources) = 0;
  virtual void do_barrier(const CommCall& call) = 0;
};

// World::local: all ranks of every group are owned by this process; copies between their tensors, across devices too.
// `devices`: where the results of each rank go. Reductions add in the order of the group, so that results repeat bit
// for bit; half types accumulate in float32.
std::unique_ptr<Communicator> make_local_communicator(std::vector<c10::Device> devices);
// World::abstract and World::fake: gives tensors of the right shape for the owned ranks; moves nothing. What would
// come from another rank is zeros, on the input's device or, where the call has no input, on `device`.
std::unique_ptr<Communicator> make_dry_communicator(c10::Device device);

}  // namespace dtensor
