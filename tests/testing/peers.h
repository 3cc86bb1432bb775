// What a redistribution would cost elsewhere, and the least it can cost: for tests and benchmarks to compare plans
// with.
//
//   PlanPeers peers(mesh, meta);
//   peers.greedy({Shard(0), Shard(0)}, {Replicate(), Shard(0)}).bytes;  // what PyTorch's eager path would send
//   peers.bound({Shard(0), Shard(0)}, {Replicate(), Shard(0)}).bytes;   // what no sequence of collectives can beat
//
// Shares nothing with the planner but local_layout(): bytes are counted by visiting every rank, so keep the meshes
// small. No test framework here. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/redistribute_plan.h"

namespace dtensor::testing {

struct PeerParts;

struct PeerStep {
  RedistributeStep::Kind kind = RedistributeStep::Kind::kSlice;
  Placements before, after;
  int64_t bytes = 0;  // received by the rank that receives most
};

struct PeerPlan {
  std::vector<PeerStep> steps;
  int64_t bytes = 0;              // of all steps
  int64_t largest_part = 0;       // bytes of the largest part that any rank holds before, between and after the steps
  std::string to_string() const;  // "P(sum)S(0) -> S(1)S(0) [reduce_scatter 64] -> S(0)S(0) [all_to_all 32]"
};

class PlanPeers {
 public:
  PlanPeers(const DeviceMesh& mesh, TensorMeta meta);
  ~PlanPeers();

  // torch 2.11's generate_greedy_transform_infos (torch/distributed/tensor/_redistribute.py), one mesh dim at a time:
  // nested cuts that do not match are gathered from the innermost outwards, then the rest is done from the outermost
  // inwards. Shard(i) -> Shard(j) gathers and slices, as it does over Gloo, or is one `all_to_all`. What torch refuses
  // goes through Replicate: to Partial, and from or to StridedShard.
  PeerPlan greedy(const Placements& from, const Placements& to, bool all_to_all = false);

  // The fewest bytes. Partial in `to` that is not so in `from` counts as Replicate, since filling is free.
  // Without Partial in `from`, the most that a rank lacks: one exchange reaches it. With Partial, the best of all
  // sequences of at most four steps: any change of what is not Partial, all-reduces, and reduce-scatters to wherever
  // every rank's part lies in its old one; of equal bytes, the one with the smallest parts. Each mesh dim is as in
  // `from`, as in `to`, replicated, sharded on any tensor dim, or, where it was Partial, a StridedShard within the cuts
  // of later mesh dims. Nothing is scattered along a tensor dim shorter than the mesh dim unless `to` asks for it: some
  // ranks would get nothing, and the others more than the formula says.
  PeerPlan bound(const Placements& from, const Placements& to);

  // What the rank that receives most lacks of its part in `after`; Partial counts as Replicate.
  int64_t received_bytes(const Placements& before, const Placements& after);
  int64_t largest_part(const Placements& placements);

 private:
  struct Search;
  void add_step(PeerPlan& plan, RedistributeStep::Kind kind, Placements after, const Placements& from);
  std::vector<Placements> choices(const Placements& from, const Placements& to) const;
  std::string search_key(const Placements& from, const Placements& to) const;
  template <typename Visit>
  void visit_steps(const Placements& state, const Placements& to, const std::vector<Placements>& choices,
                   bool after_exchange, const Visit& visit);
  const Search& search(const Placements& from, const Placements& to);

  std::vector<int64_t> mesh_shape_;
  TensorMeta meta_;
  std::unique_ptr<PeerParts> parts_;
  std::map<std::string, std::unique_ptr<Search>> searches_;
};

PeerPlan greedy_plan(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to);
int64_t bound_bytes(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to);

// The bytes of the best plan on one mesh dim of `ranks` for a tensor of `bytes` that every cut divides evenly.
int64_t closed_form_1d(const Placement& from, const Placement& to, int64_t bytes, int64_t ranks);

}  // namespace dtensor::testing
