// Prices a strategy: the redistributions of the inputs, the work of each rank, and the reductions that are deferred.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "plan/cost_model.h"
#include "propagation/op_rule.h"

namespace dtensor::internal {

// Whether results share memory with arguments that are not written to.
bool returns_view(const c10::FunctionSchema& schema);

// The spec of the tensor that is sent to bring an input to the layout `to`: the input itself, or if it was expanded
// along dims that neither layout cuts, the unexpanded tensor, in which those dims have size 1. Every rank makes the
// copies locally.
SpecPtr moved_of(const OpCall& call, size_t input, const Placements& to);

// A decision to make: the call as rules get it, the results, and the placements that are fixed.
struct Problem {
  const OpCall& call;  // as called
  OpCall functional;   // without out= arguments, with its results
  const OutputMetas& metas = *functional.results;
  // Per output of a strategy: the input that it is written to and whose layout it must have, or -1.
  std::vector<int> fixed_outputs = {};
  // Per input of `functional`: whether its layout must stay.
  std::vector<bool> fixed_inputs = {};
  Limits limits = call.context.scope.limits;  // strategies whose redistributions exceed them are not possible

  int64_t mesh_ndim() const { return call.mesh.ndim(); }
  const Placement& given(size_t input, int64_t d) const { return call.inputs[input]->placements()[d]; }
  // Does an input move to its preferred placement?
  bool returns_to_preferred(size_t input, int64_t d, const Placement& taken) const {
    const Placement* preferred = call.preferred_placement(input, d);
    return preferred != nullptr && *preferred == taken;
  }
  std::shared_ptr<const CostModel> cost = cost_model(call.mesh.world());
  bool is_view = returns_view(call.schema());
  Flops flops = {};                      // empty: the call multiplies no matrices
  std::vector<uint64_t> displaced = {};  // per input, a bit per mesh dim along which it is displaced; empty: none is
  bool is_displaced(size_t input, int64_t d) const {
    return input < displaced.size() && (displaced[input] >> d & 1) != 0;
  }
};

struct Score {
  Picoseconds cost = std::numeric_limits<Picoseconds>::max();
  int changed = 0;

  friend bool operator<(const Score& a, const Score& b) {
    return std::tie(a.cost, a.changed) < std::tie(b.cost, b.changed);
  }
};

// Cost of strategies. Each redistribution is planned once: the decision runs the plans made here.
class Pricer {
 public:
  // Inputs with the same placements in every strategy: one of them, and their number.
  struct Group {
    size_t input = 0;
    int count = 1;
  };

  static std::vector<Group> all_inputs(const Problem& problem);
  // Prices all inputs, or only one per group.
  explicit Pricer(const Problem& problem);
  Pricer(const Problem& problem, std::vector<Group> groups)
      : problem_(problem), groups_(std::move(groups)), shares_samples_(shares_samples()) {}

  // nullopt: not possible, or costlier than `limit`. `quick`: by existing routes, without searching for the best; if
  // memory is limited, by the best all the same.
  std::optional<Score> price(const Strategy& s, Picoseconds limit, bool quick = false);

  int64_t priced() const { return priced_; }
  int64_t planned() const { return planned_; }

 private:
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

  struct Price {
    Picoseconds cost = -1;
    bool planned = false;  // else a lower bound
    Picoseconds quick = -1;
    Picoseconds latency = 0;          // in `cost` and `quick`
    int move_count = 1;               // number of redistributions, as in the key
    int64_t strategy = 0, count = 0;  // in the strategy with that number: how many inputs have this redistribution

    // Inputs of a group move together: they pay one latency.
    Picoseconds of_all(Picoseconds one) const { return move_count * (one + (count - 1) * (one - latency)); }
  };

  bool shares_samples() const;
  int move_count(const Group& g) const;  // number of redistributions per input
  Picoseconds collective(Collective kind, int64_t d, int64_t bytes) const;
  Picoseconds reduction(const TensorMeta& meta, const Placements& placements, int64_t d,
                        Collective kind = Collective::kAllReduce) const;
  // The inputs of a strategy with a Partial result, along one mesh dim.
  struct InputsOfPartial {
    bool moves = false;         // a sharded one moves to another dim, or to all ranks
    bool fills = false;         // a sharded one becomes Partial
    bool reduces = false;       // a Partial one is reduced
    bool scaled = false;        // one is whole, and no plain number
    bool multiplied = false;    // one is whole, and has several elements
    bool are_numbers = true;    // all have one element
    bool extreme = false;       // the last one is a Partial minimum or maximum; read if there is only one
    int64_t elements = 0;       // of the largest that was Partial and stays so
    Picoseconds reduction = 0;  // to reduce those that were Partial and stay so
  };
  InputsOfPartial inputs_of_partial(const Strategy& s, int64_t d) const;
  bool is_useless_deferral(const InputsOfPartial& in, Picoseconds later) const;
  Picoseconds made_partials(const Strategy& s) const;
  Picoseconds displaced(const Strategy& s) const;
  // Whether to defer the reduction of a factor, which takes `now`, to its product, where it takes `later`.
  bool defers_past_product(Picoseconds now, Picoseconds later) const;
  bool begins_to_shard(const Strategy& s, int64_t d) const;  // along mesh dim d
  Picoseconds new_sharding_cost(const Strategy& s) const;
  Picoseconds work(const Strategy& s) const;
  int64_t bytes_read(const Strategy& s) const;
  int64_t local_bytes(const TensorMeta& meta, const Placements& placements) const;
  Picoseconds way_back(const Strategy& s);
  void bound(size_t input, const Placements& to, Price& price) const;
  void plan(size_t input, const Placements& to, Price& price);

  const Problem& problem_;
  std::vector<Group> groups_;
  const bool shares_samples_;
  absl::flat_hash_map<std::tuple<const Spec*, int, Placements>, Price>
      prices_;                  // by layout, move_count(), and target layout
  std::vector<Group> changes_;  // one input per group
  int64_t priced_ = 0, planned_ = 0;
};

}  // namespace dtensor::internal
