// Estimates memory and communication of a step of training in which every parameter is replicated or cut in some way.
// Pure; table_search.h searches for the best choices.
//
// One step of n ranks with b samples each is estimated by what it communicates. A table has N bytes and rows of D
// bytes, of which a sample takes p (one for a bag):
//
//   replicated   the gradient is added up: 2 N (n-1)/n, one all_reduce for all such parameters
//   otherwise    every rank gets all ids, one all_gather of all tables; rows go back to the ranks of the ids, one
//                exchange of all tables; their gradients come back, one exchange. A rank receives
//     table-wise   b p D where it is not the owner; the owner (n-1) b p D of gradients
//     row-wise     (n-1) b p D of addends; as much of gradients
//     column-wise  b p (D less its own columns); (n-1) b p of its own columns of gradients
//
// plus the reading of rows, of which none takes less than a cache line. Dense parameters that are cut are gathered
// twice a step, and their gradients scattered.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "placement/geometry.h"
#include "plan/cost_model.h"

namespace dtensor::sharded {

enum class ShardingKind { kReplicated, kTableWise, kRowWise, kColumnWise };
const char* to_string(ShardingKind kind);  // "replicated", "table-wise", ...

struct ParameterFacts {
  std::string name;
  Shape sizes;
  int64_t element_bytes = 4;
  bool is_table = false;  // looked up by ids; else dense
  double ids = 1;         // of a sample, in a table
  double rows = 1;        // that a sample gets: 1 of a bag, `ids` of an embedding

  double bytes() const;
};

struct ShardingChoice {
  ShardingKind kind = ShardingKind::kReplicated;
  int64_t rank = 0;  // the owner, of kTableWise
  friend bool operator==(const ShardingChoice&, const ShardingChoice&) = default;
};

// The result of an estimate for all parameters.
struct StepEstimate {
  std::vector<int64_t> memory;  // bytes of each rank
  double received = 0;          // bytes a step, on the rank that receives most of every collective
  double seconds = 0;           // collectives and reading
  int64_t largest() const;      // of `memory`
};

// The facts of a step that all parameters share.
struct StepSetting {
  int64_t ranks = 1;
  double samples = 1;          // a rank and step
  double memory_factor = 1;    // bytes kept per byte of parameter: gradients, moments
  bool crosses_nodes = false;  // argument of the cost model
  CostModel cost;
};

// The sums that an estimate is made of. A search adds parameters and takes them away again.
class StepSums {
 public:
  explicit StepSums(StepSetting setting) : setting_(std::move(setting)), ranks_(setting_.ranks) {}

  // `sign`: 1, or -1 to take away a parameter that was added with the same choice.
  void add(const ParameterFacts& parameter, const ShardingChoice& choice, double sign = 1);
  StepEstimate estimate() const;
  int64_t memory(int64_t rank) const { return ranks_[rank].memory; }

 private:
  struct Rank {
    int64_t memory = 0;
    double forward = 0, backward = 0, read = 0;  // bytes: received in either direction, and read
  };
  double held_part(const ParameterFacts& parameter, const ShardingChoice& choice, int64_t rank) const;
  void add_traffic(Rank& rank, const ParameterFacts& parameter, const ShardingChoice& choice, double held,
                   double sign) const;

  StepSetting setting_;
  std::vector<Rank> ranks_;
  double ids_ = 0, all_reduced_ = 0, gathered_ = 0;  // bytes; ids: of one rank
  int tables_ = 0;
};

}  // namespace dtensor::sharded
