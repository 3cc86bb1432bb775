// Chooses where the parameters of a model are stored so that every rank stays within a memory budget and a step
// communicates little. Pure: facts in, choices out, the same on every rank; embedding_sharding_planner.h collects the
// facts of a module.
//
//   TableSearch search{.ranks = 4, .samples = 64, .budget = 1 << 20};
//   auto choices = search.best({{"user", {100000, 16}, 4, true, 1, 1}, {"country", {200, 16}, 4, true, 1, 1}});
//
// One step of training is estimated by what it communicates, n ranks of b samples, a table of N bytes with rows of D
// bytes, of which a sample takes p (one for a bag):
//
//   replicated   the gradient is added up: 2 N (n-1)/n, one all_reduce for all such parameters
//   otherwise    every rank gets all ids, one all_gather of all tables; rows are sent to the requesters, one exchange
//   of all
//                tables; their gradients come back, one exchange. A rank receives
//     table-wise   b p D where it is not the owner; the owner (n-1) b p D of gradients
//     row-wise     (n-1) b p D of addends; as much of gradients
//     column-wise  b p (D less its own columns); (n-1) b p of its own columns of gradients
//
// plus the reading of rows, of which none takes less than a cache line. Dense parameters that are cut are gathered
// twice a step, and their gradients scattered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
};

struct ShardingChoice {
  ShardingKind kind = ShardingKind::kReplicated;
  int64_t rank = 0;  // the owner, of kTableWise
  friend bool operator==(const ShardingChoice&, const ShardingChoice&) = default;
};

// The estimate for the choices of all parameters.
struct StepEstimate {
  std::vector<int64_t> memory;  // bytes of each rank
  double received = 0;          // bytes a step, on the rank that receives most of every collective
  double seconds = 0;           // collectives and reading
  int64_t largest() const;      // of `memory`
};

struct TableSearch {
  int64_t ranks = 1;
  double samples = 1;          // a rank and step
  int64_t budget = 0;          // bytes a rank
  double memory_factor = 1;    // bytes kept per byte of parameter: gradients, moments
  int64_t min_columns = 1;     // narrower column shards are not made
  bool shard_dense = false;    // dense parameters may be cut by rows or columns
  bool crosses_nodes = false;  // as the cost model expects
  CostModel cost;

  // The choices found, in the order of `parameters`; nullopt if none that was tried stays within the budget. A
  // parameter with other than 2 dims is split by rows, or not at all if it has none.
  std::optional<std::vector<ShardingChoice>> best(const std::vector<ParameterFacts>& parameters) const;
  // The choices that need the least memory on the rank that needs most.
  std::vector<ShardingChoice> smallest(const std::vector<ParameterFacts>& parameters) const;
  // The possible choices for a parameter, with table-wise on every rank.
  std::vector<ShardingChoice> possible(const ParameterFacts& parameter) const;
  StepEstimate estimate(const std::vector<ParameterFacts>& parameters,
                        const std::vector<ShardingChoice>& choices) const;
};

}  // namespace dtensor::sharded
