// Which strategy an operator is computed with: the cheapest, or near it. Internal to propagate().
//
// The strategies of the mesh dims combine freely, so there are as many as a number to the power of the mesh dims. While these
// are few, all are looked at. Else the search starts from some (each input's layout followed; as little changed as
// possible; everything replicated), changes the strategy of one mesh dim, then of two, wherever that is cheaper, and ends
// where nothing is. It counts, and looks at no clock: every rank finds the same.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "propagation/cost_model.h"
#include "propagation/op_rule.h"
#include "propagation/propagate.h"

namespace dtensor {

// Estimates are compared in picoseconds: sums of the same numbers in another order stay equal.
using Picoseconds = int64_t;

// What is to be decided: the call as rules see it, what comes out, and which placements are not free.
struct Problem {
  const OpCall& call;  // as called
  OpCall functional;   // without out= arguments
  OutputMetas metas;
  // Per output of a strategy: the input whose layout it must have since it is written there, or -1.
  std::vector<int> fixed_outputs;
  // Per input of `functional`: its layout must stay.
  std::vector<bool> fixed_inputs;

  int64_t mesh_ndim() const { return call.mesh.ndim(); }
  const Placement& given(size_t input, int64_t d) const { return call.inputs[input]->placements()[d]; }
  std::shared_ptr<const CostModel> cost = cost_model(call.mesh.world());
};

// How long a search may take, and what one took.
struct SearchEffort {
  int64_t every = 0;   // all combinations, if they are no more than this. 0: as is usual
  int64_t priced = 0;  // combinations looked at
  int64_t planned = 0;  // redistributions planned for that
  double seconds = 0;  // what the chosen one is estimated to take
};

struct Score {
  Picoseconds cost = std::numeric_limits<Picoseconds>::max();
  int changed = 0;

  friend bool operator<(const Score& a, const Score& b) {
    return std::tie(a.cost, a.changed) < std::tie(b.cost, b.changed);
  }
};

// Cost of strategies, each redistribution planned once.
class Pricer {
 public:
  // Inputs that are alike in every strategy: one of them, and how many they are.
  struct Group {
    size_t input = 0;
    int count = 1;
  };

  // All inputs, or only some that stand for others.
  explicit Pricer(const Problem& problem);
  Pricer(const Problem& problem, std::vector<Group> groups) : problem_(problem), groups_(std::move(groups)) {}

  // nullopt: not possible, or dearer than `limit`. `quick`: by routes that are there, without looking for the best.
  std::optional<Score> price(const Strategy& s, Picoseconds limit, bool quick = false);

  int64_t priced() const { return priced_; }
  int64_t planned() const { return planned_; }

 private:
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

  struct Price {
    Picoseconds cost = -1;
    bool planned = false;  // else a lower bound
    Picoseconds quick = -1;
  };

  Picoseconds made_partials(const Strategy& s) const;
  void bound(const Spec& spec, const Placements& to, Price& price) const;
  void plan(const Spec& spec, const Placements& to, Price& price);

  const Problem& problem_;
  std::vector<Group> groups_;
  absl::flat_hash_map<std::pair<const Spec*, Placements>, Price> prices_;
  std::vector<Group> changes_;
  int64_t priced_ = 0, planned_ = 0;
};

// The best combination of `options`, the strategies of each mesh dim, best first where costs are equal. nullopt: none fits.
std::optional<Strategy> best_combination(const Problem& problem, std::vector<std::vector<DimStrategy>> options,
                                         SearchEffort& effort);

// As propagate(call), which allows no more than is usual. For tests and tools.
std::shared_ptr<const OpPlan> propagate(const OpCall& call, SearchEffort& effort);

}  // namespace dtensor
