// Estimated time of a collective, on two levels: within a node and between nodes; and of a rank's local work.
//
// Per level and collective: a latency, another one per doubling of the group (as in NCCL's trees, so that the latencies
// of one collective over several mesh dims are not longer than those of one per dim), and a bandwidth. Bytes are those
// of the ring algorithms (Gloo's docs/algorithms.md, PyTorch's _collective_utils.py). A group that has ranks on two
// nodes is priced as a whole at the level between nodes. There predictions let the links of all ranks that a group has
// on a node carry the bytes of its gathers and reductions: those over 2 x 8 ranks are as fast as eight links, but not
// faster than one within a node; in an all-to-all each rank receives over its own link. Decisions price each collective
// by one link (GroupExtent). The built-in numbers are estimates for GPUs; `calibrate` measures a machine and writes a
// file:
//
//   set_cost_model(world, CostModel::load("cost_model.json"));   // or DTENSOR_COST_MODEL=cost_model.json in the environment
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "comm/comm_event.h"
#include "mesh/world.h"
#include "plan/group_extent.h"
#include "plan/operator_times.h"

namespace dtensor {

namespace internal {

// Times that are added up and compared are integers: their sums do not depend on the order.
using Picoseconds = int64_t;
inline Picoseconds picoseconds(double seconds) { return std::llround(seconds * 1e12); }

}  // namespace internal

struct LinkCost {
  double latency = 6.6e-6;      // seconds per collective
  double hop_latency = 0.6e-6;  // seconds per doubling of the group; an all-reduce pays it twice, a permute once
  double bandwidth = 87.7e9;    // bytes per second that one rank receives over its own link
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

struct CostModel {
  CostModel();  // sets the built-in numbers between nodes

  using Level = std::array<LinkCost, kNumCollectives>;  // by Collective
  int64_t ranks_per_node = 8;                           // consecutive ranks of a world
  Level within_node;
  Level between_nodes;
  double copy_bandwidth = 1.0e12;  // bytes per second of a local copy or fill
  double flops_per_second = 1e14;  // for a rank's matrix products
  // For products of these dtypes instead: {{at::kFloat, 67e12}, {at::kBFloat16, 989e12}}.
  std::map<c10::ScalarType, double> flops_by_dtype;
  // Seconds to start an operator on a rank. predict_step() counts it; decisions do not, as all ways of an operator
  // start it once.
  double operator_latency = 0;
  // What measure_operators() found. predict_step() takes an operator's time from its row, one that is no product else
  // from the row "other", and views from the row "view"; from the speeds above where there is none, and then views take
  // none.
  OperatorTimes operators;
  bool uses_staging_buffers = true;  // as Communicator::uses_staging_buffers(), used by the built-in models

  // `bytes`: received per rank. A group of one costs nothing.
  double collective(Collective kind, const GroupExtent& group, int64_t bytes) const;
  double copy(int64_t bytes) const { return static_cast<double>(bytes) / copy_bandwidth; }
  // `bytes`: that operators read and write. A copy of n bytes reads n and writes n.
  double traffic(int64_t bytes) const { return copy(bytes) / 2; }
  // `flops`: of a rank's matrix products of tensors of `dtype`.
  double products(double flops, c10::ScalarType dtype) const;
  // The same and `bytes` that are read and written for them.
  double work(double flops, c10::ScalarType dtype, int64_t bytes) const { return products(flops, dtype) + copy(bytes); }
  // A lower bound for collectives that move `bytes` to a rank.
  double least(int64_t bytes) const;

  // Reads and writes a JSON file; a missing field has its built-in value.
  // Errors (c10::Error): the file cannot be read or is not JSON; an unknown field, collective or dtype; a number that
  // is not positive (operator_latency may be 0), or a row of "operators" without ascending amounts and positive
  // seconds. Each names file and field. "flops_by_dtype" has PyTorch's names of dtypes: {"float32": 67e12, "bfloat16":
  // 989e12}, and "operators" pairs of amount and seconds:
  // {"aten::mul.Tensor": [[4096, 3e-6], [65536, 9e-6]]}.
  static CostModel load(const std::string& path);
  static CostModel from_json(const std::string& text, const std::string& name = "cost model");
  std::string to_json() const;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

// The model for a world's plans. Initially the file that DTENSOR_COST_MODEL names, else the built-in one, in which the
// ranks of World::local read each other's memory.
std::shared_ptr<const CostModel> cost_model(const World& world);
// Clears the world's cached plans and decisions. No other threads may use the world meanwhile.
// Error (ValueError): a speed or ranks_per_node that is not positive, a negative or infinite latency, a row of
// operators without ascending amounts and positive seconds; the text names it.
void set_cost_model(const World& world, const CostModel& model);

}  // namespace dtensor
