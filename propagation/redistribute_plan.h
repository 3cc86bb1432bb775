// How to go from one layout to another: the steps, and what they cost.
//
// The plan is one object for everything: the executor runs its steps, strategy selection adds up its cost, events report its
// bytes, explain() prints it. It holds no tensors, and every rank computes the same one.
//
//   auto plan = plan_redistribution(mesh, {{8, 8}, {8, 1}, at::kFloat}, {Shard(0)}, {Shard(1)});  // mesh(tp=4)
//   plan.explain(mesh);   // "S(0) -> S(1): all_to_all(tp) 48 B, 7.8 us"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "mesh/comm_event.h"
#include "propagation/spec.h"

namespace dtensor {

using MeshDims = absl::InlinedVector<int64_t, 3>;

struct RedistributeStep {
  enum class Kind : uint8_t {
    kSlice,          // local: keep the part that the new layout asks for
    kFill,           // local: Replicate -> Partial. Sum: the first rank along the dims keeps the value, others hold zeros;
                     // product likewise with ones; average, min, max: every rank keeps the value
    kAllReduce,      // Partial -> Replicate
    kReduceScatter,  // Partial -> sharded, cutting every rank's own part further
    kAllGather,      // sharded -> Replicate, undoing the innermost cuts
    kAllToAll,       // the overlay of the two layouts: any change between sharded and replicated; `dims` are sharded before
  };
  Kind kind = Kind::kSlice;
  MeshDims dims;  // the mesh dims whose ranks take part, ascending; no two ranks talk that differ elsewhere
  int64_t tensor_dim = 0;  // kReduceScatter, kAllGather over one mesh dim: the tensor dim it cuts
  ReduceOp op = ReduceOp::kSum;  // kFill, kAllReduce, kReduceScatter
  Placements before, after;
  // Received per rank. all_gather, all_to_all: exactly, on the rank that receives most (in groups of more than 2^14 ranks
  // whose parts are irregular: of a sample). all_reduce of N bytes over W ranks: 2 N (W-1)/W; reduce_scatter: N (W-1)/W.
  int64_t bytes = 0;
  int64_t peak_bytes = 0;  // alive at once on the rank with the largest parts: input, output and received pieces
  double seconds = 0;      // estimate

  bool is_local() const { return kind == Kind::kSlice || kind == Kind::kFill; }
  Collective collective() const;  // REQUIRES: !is_local()
};

struct RedistributePlan {
  Placements from, to;
  // Empty if every rank's part is the same in both layouts. Mesh dims of size 1 stand as in `to` from the first step on.
  std::vector<RedistributeStep> steps;
  int64_t bytes = 0;       // of all steps
  int64_t peak_bytes = 0;  // of the largest step; without steps the part itself
  double seconds = 0;  // estimate of all steps, local copies included

  bool is_local() const;  // no communication
  int64_t num_collectives() const;
  // "S(0)R -> RS(1): slice, all_gather(dp) 4096 B, 8.1 us"
  std::string explain(const DeviceMesh& mesh) const;
};

}  // namespace dtensor
