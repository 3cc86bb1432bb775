// The plan of a redistribution: its steps, and their cost.
//
// The plan is one object for everything: the executor runs its steps, strategy selection adds up its cost, events
// report its bytes, explain() prints it. It holds no tensors, and every rank computes the same one.
//
//   auto plan = plan_redistribution(mesh, {{8, 8}, {8, 1}, at::kFloat}, {Shard(0)}, {Shard(1)});  // mesh(tp=4)
//   plan.to_string();   // "S(0) -> S(1): all_to_all(tp) 48 B, 7.8 us"
//   plan.short_form();  // "a2a(tp)"
//   plan.explain();     // a line per step, and the routes not taken
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "plan/layout.h"
#include "plan/limits.h"
#include "plan/mesh_dims.h"
#include "plan/spec.h"

namespace dtensor {

struct CostModel;

struct RedistributeStep {
  enum class Kind : uint8_t {
    kSlice,      // local: keep the part that the new layout needs
    kFill,       // local: Replicate -> Partial. Sum: the first rank along the dims keeps the value, others hold zeros;
                 // product likewise with ones; average, min, max: every rank keeps the value
    kAllReduce,  // Partial -> Replicate
    kReduceScatter,  // Partial -> sharded, cutting every rank's own part further
    kAllGather,      // every rank gets all that its group holds
    kPermute,        // every rank's new part is one other rank's old one
    kAllToAll,       // the overlay of the two layouts: any change between sharded and replicated
    kTransfer,       // the overlay between two meshes, or to or from boxes
  };
  Kind kind = Kind::kSlice;
  // The mesh dims whose ranks take part, ascending; only ranks that differ in no other dim communicate. Empty for
  // kTransfer, in which all ranks of both layouts take part.
  MeshDims dims;
  ReduceOp op = ReduceOp::kSum;  // kFill, kAllReduce, kReduceScatter
  // On plan.from's mesh up to a transfer, on plan.to's after it; empty where the layout is boxes.
  Placements before, after;
  // Number of rounds of the exchange, to keep buffers small (Limits).
  int64_t chunks = 1;
  // Received per rank. Exactly, on the rank that receives most (in groups of more than 2^14 ranks whose parts are
  // irregular: of a sample). all_reduce of N bytes over W ranks: 2 N (W-1)/W; reduce_scatter: N (W-1)/W.
  int64_t bytes = 0;
  // Alive at once on the rank that needs most: input, output and, if messages are packed by the cost model, the buffers
  // for all that it sends and receives; for a reduce_scatter also a copy of every addend. An all_reduce depends on the
  // world's backend: Gloo, over processes on CPU, exchanges addends; elsewhere as NCCL, in place of the output. As
  // exact as `bytes` if tensors of one dtype are sent and the input is contiguous, except between processes: there it
  // is an upper bound for a step in one round that is not asynchronous, as adjacent parts need no buffer.
  int64_t peak_bytes = 0;
  double seconds = 0;  // estimate

  // No communication. A transfer is local if every rank already has all that it needs.
  bool is_local() const {
    return kind == Kind::kSlice || kind == Kind::kFill || (kind == Kind::kTransfer && bytes == 0);
  }
  Collective collective() const;  // REQUIRES: !is_local(). A transfer is an all_to_all
};

struct RedistributePlan {
  TensorMeta tensor;
  Layout from, to;
  // Empty if every rank's part is the same in both layouts. Mesh dims of size 1 are as in `to` from the first step on.
  std::vector<RedistributeStep> steps;
  int64_t bytes = 0;       // of all steps
  int64_t peak_bytes = 0;  // of the largest step; without steps the part itself
  double seconds = 0;      // estimate of all steps, local copies included

  // The cost model used for the plan.
  std::shared_ptr<const CostModel> cost;
  Limits limits;

  // What running the plan needs: the blocks to send, and the spec of the result. Made at first use, shared by copies; a
  // copy with another layout or tensor needs a slot of its own (make_schedule_slot()).
  struct Schedule;
  std::shared_ptr<Schedule> schedule;

  bool is_local() const { return num_collectives() == 0; }  // no communication
  int64_t num_collectives() const;

  // "a2a(tp)", "rs(dp), ag(tp), slice"; "" without steps. ar, rs, ag, a2a, permute and transfer name collectives.
  std::string short_form() const;
  // One line: "S(0)R -> RS(1): slice, all_gather(dp) 4096 B, 8.1 us".
  std::string to_string() const;
  // For people, several lines: every step with its groups, bytes per rank, peak and estimate, then the routes that were
  // not taken, and why. Plans the alternatives again.
  std::string explain() const;
  // The same as a JSON document.
  std::string to_json() const;
};

// One possible route, whether a plan takes it or not.
struct Route {
  std::vector<RedistributeStep> steps;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
  double seconds = 0;

  void add_up();  // sets the totals from the steps
};

}  // namespace dtensor
