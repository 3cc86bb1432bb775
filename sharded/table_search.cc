#include "sharded/table_search.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "sharded/chunk_sharding_spec.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

constexpr int kMostSweeps = 50;
constexpr int64_t kMostOwners = 8;          // ranks that a table is tried on where there are many
constexpr int64_t kMostSwapWork = 1 << 24;  // pairs of tables times ranks

// Less is better: first the budget, then time, then the fullest rank, then how even ranks are.
using Score = std::tuple<double, Picoseconds, int64_t, double>;

class Climb {
 public:
  Climb(const TableSearch& search, const std::vector<ParameterFacts>& parameters, bool memory_alone)
      : search_(search), parameters_(parameters), memory_alone_(memory_alone), sums_(search.setting()) {}

  // Builds a solution, largest parameters first.
  void fill() {
    choices_.resize(parameters_.size());
    for (size_t i : largest_first()) {
      std::optional<Score> best;
      for (const ShardingChoice& c : candidates(i)) {
        const Score score = score_with(i, c);
        if (!best || score < *best) best = score, choices_[i] = c;
      }
      sums_.add(parameters_[i], choices_[i]);
    }
  }

  void start(std::vector<ShardingChoice> choices) {
    choices_ = std::move(choices);
    for (size_t i = 0; i < choices_.size(); ++i) sums_.add(parameters_[i], choices_[i]);
  }

  // Puts the `count` smallest of the sharded tables on one rank each, the largest of them first on the rank that has
  // least. Single changes do not find this: one table on a single rank is never balanced. False if there are not so
  // many.
  bool put_on_owners(size_t count) {
    std::vector<size_t> cut;
    for (size_t i : largest_first()) {
      if (parameters_[i].is_table && choices_[i].kind != ShardingKind::kReplicated) cut.push_back(i);
    }
    if (cut.size() < count) return false;
    cut.erase(cut.begin(), cut.end() - static_cast<int64_t>(count));
    for (size_t i : cut) sums_.add(parameters_[i], choices_[i], -1);
    for (size_t i : cut) {
      choices_[i] = {ShardingKind::kTableWise, emptiest_rank()};
      sums_.add(parameters_[i], choices_[i]);
    }
    return true;
  }

  // Changes one parameter at a time, and two that swap owners, as long as it helps.
  void improve() {
    bool changed = true;
    for (int sweep = 0; sweep < kMostSweeps && changed; ++sweep) {
      changed = change_one();
      changed = change_two() || changed;
    }
  }

  const std::vector<ShardingChoice>& choices() const { return choices_; }
  Score score() const {
    const StepEstimate e = sums_.estimate();
    double over = 0, squares = 0;
    for (int64_t m : e.memory) {
      over += static_cast<double>(std::max<int64_t>(m - search_.budget, 0));
      squares += static_cast<double>(m) * static_cast<double>(m);
    }
    if (memory_alone_) return {static_cast<double>(e.largest()), 0, 0, squares};
    return {over, picoseconds(e.seconds), e.largest(), squares};
  }

 private:
  std::vector<size_t> largest_first() const {
    std::vector<size_t> order(parameters_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return parameters_[a].bytes() > parameters_[b].bytes(); });
    return order;
  }

  int64_t emptiest_rank() const {
    int64_t best = 0;
    for (int64_t r = 1; r < search_.ranks; ++r) {
      if (sums_.memory(r) < sums_.memory(best)) best = r;
    }
    return best;
  }

  std::vector<ShardingChoice> candidates(size_t i) const {
    std::vector<ShardingChoice> result = search_.possible(parameters_[i]);
    if (search_.ranks <= kMostOwners) return result;
    std::vector<int64_t> owners(search_.ranks);
    std::iota(owners.begin(), owners.end(), 0);
    std::stable_sort(owners.begin(), owners.end(),
                     [&](int64_t a, int64_t b) { return sums_.memory(a) < sums_.memory(b); });
    owners.resize(kMostOwners);
    std::erase_if(result, [&](const ShardingChoice& c) {
      return c.kind == ShardingKind::kTableWise && std::find(owners.begin(), owners.end(), c.rank) == owners.end();
    });
    return result;
  }

  Score score_with(size_t i, const ShardingChoice& c) {
    sums_.add(parameters_[i], c);
    const Score result = score();
    sums_.add(parameters_[i], c, -1);
    return result;
  }

  // The largest first: they decide where there is room.
  bool change_one() {
    bool changed = false;
    for (size_t i : largest_first()) {
      Score best = score();
      const ShardingChoice before = choices_[i];
      sums_.add(parameters_[i], before, -1);
      for (const ShardingChoice& c : candidates(i)) {
        const Score score = score_with(i, c);
        if (score < best) best = score, choices_[i] = c;
      }
      sums_.add(parameters_[i], choices_[i]);
      changed |= choices_[i] != before;
    }
    return changed;
  }

  void set(size_t i, const ShardingChoice& c) {
    sums_.add(parameters_[i], choices_[i], -1);
    choices_[i] = c;
    sums_.add(parameters_[i], c);
  }

  // Two parameters at once: they swap their kinds, or their owners.
  bool change_two() {
    const auto n = static_cast<int64_t>(parameters_.size());
    if (n * n * search_.ranks > kMostSwapWork) return false;
    bool changed = false;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = i + 1; k < n; ++k) {
        const ShardingChoice a = choices_[i], b = choices_[k];
        if (a == b || !allows(i, b) || !allows(k, a)) continue;
        const Score before = score();
        set(i, b);
        set(k, a);
        if (score() < before) {
          changed = true;
        } else {
          set(i, a);
          set(k, b);
        }
      }
    }
    return changed;
  }

  bool allows(size_t i, const ShardingChoice& c) const {
    const auto possible = search_.possible(parameters_[i]);
    return std::find(possible.begin(), possible.end(), c) != possible.end();
  }

  const TableSearch& search_;
  const std::vector<ParameterFacts>& parameters_;
  const bool memory_alone_;
  StepSums sums_;
  std::vector<ShardingChoice> choices_;
};

}  // namespace

StepSetting TableSearch::setting() const { return {ranks, samples, memory_factor, crosses_nodes, cost}; }

std::vector<ShardingChoice> TableSearch::possible(const ParameterFacts& p) const {
  std::vector<ShardingChoice> result = {{ShardingKind::kReplicated}};
  if (ranks == 1 || p.sizes.empty() || (!p.is_table && !shard_dense)) return result;
  if (p.is_table) {
    for (int64_t r = 0; r < ranks; ++r) result.push_back({ShardingKind::kTableWise, r});
  }
  if (p.sizes.size() == 2 && get_split_size(p.sizes[1], ranks) >= min_columns) {
    result.push_back({ShardingKind::kColumnWise});
  }
  result.push_back({ShardingKind::kRowWise});
  return result;
}

StepEstimate TableSearch::estimate(const std::vector<ParameterFacts>& parameters,
                                   const std::vector<ShardingChoice>& choices) const {
  StepSums sums(setting());
  for (size_t i = 0; i < parameters.size(); ++i) sums.add(parameters[i], choices[i]);
  return sums.estimate();
}

std::vector<ShardingChoice> TableSearch::smallest(const std::vector<ParameterFacts>& parameters) const {
  Climb climb(*this, parameters, /*memory_alone=*/true);
  climb.fill();
  climb.improve();
  return climb.choices();
}

std::optional<std::vector<ShardingChoice>> TableSearch::best(const std::vector<ParameterFacts>& parameters) const {
  std::vector<Climb> climbs(2, Climb(*this, parameters, /*memory_alone=*/false));
  climbs[0].fill();
  climbs[1].start(smallest(parameters));  // start from the smallest, too, since the cheapest may not fit
  for (Climb& climb : climbs) climb.improve();
  const auto best = [&]() -> const Climb& {
    return *std::min_element(climbs.begin(), climbs.end(),
                             [](const Climb& a, const Climb& b) { return a.score() < b.score(); });
  };
  const std::vector<ShardingChoice> first = best().choices();
  for (size_t count = 1; count <= parameters.size(); count = count * 2) {
    for (const size_t tables : {count, count + count / 2}) {
      Climb climb(*this, parameters, /*memory_alone=*/false);
      climb.start(first);
      if (!climb.put_on_owners(tables)) continue;
      climb.improve();
      climbs.push_back(std::move(climb));
    }
  }
  if (std::get<0>(best().score()) > 0) return std::nullopt;
  return best().choices();
}

}  // namespace dtensor::sharded
