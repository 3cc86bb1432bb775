#include "propagation/strategy_search.h"

#include <algorithm>
#include <tuple>

#include "absl/container/inlined_vector.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kEvery = 64;            // up to this many combinations, all are priced
constexpr int64_t kEveryOfThree = 16384;  // on meshes of up to three dims
constexpr int64_t kMaxPriced = 2048;      // of others
constexpr size_t kMaxSeeds = 8;           // inputs whose layout is a starting point

class Search {
 public:
  Search(const Problem& problem, std::vector<std::vector<DimStrategy>> options);

  std::optional<Strategy> run(SearchEffort& effort);

 private:
  using Choice = absl::InlinedVector<size_t, 4>;  // per mesh dim, which of its options

  std::vector<Pricer::Group> group_inputs() const;
  int num_changed(const DimStrategy& option, int64_t d) const;
  uint64_t needs_traffic(const DimStrategy& option, int64_t d) const;
  int64_t num_combinations() const;
  bool run_unchanged();
  void compare_options();
  void branch(size_t d, uint64_t traffic);
  std::optional<Score> consider();
  std::vector<Choice> seeds() const;
  bool is_better(Score& score);
  void descend(bool pairs);
  Choice change_pairs(Choice at, Score score);
  bool is_exhausted() const { return pricer_.priced() >= kMaxPriced; }
  void combine(const Choice& chosen, bool all, Strategy& s) const;
  const Strategy& candidate();

  const Problem& problem_;
  const Picoseconds latency_ = picoseconds(problem_.cost->least(0)) - 1;
  const std::vector<std::vector<DimStrategy>> options_;  // per mesh dim, best first
  // By compare_options(), which calls that move nothing do without:
  std::vector<absl::InlinedVector<uint64_t, 16>> traffic_;  // needs_traffic() of each
  std::vector<absl::InlinedVector<size_t, 16>> order_;      // in which they are tried: few changes first
  const std::vector<Pricer::Group> groups_;
  Pricer pricer_;
  Choice chosen_, best_chosen_;
  Strategy candidate_;  // the priced strategy; its memory is reused
  Score best_;
  bool found_ = false;
};

Search::Search(const Problem& problem, std::vector<std::vector<DimStrategy>> options)
    : problem_(problem), options_(std::move(options)), groups_(group_inputs()), pricer_(problem, groups_) {}

void Search::compare_options() {
  traffic_.resize(options_.size());
  order_.resize(options_.size());
  for (size_t d = 0; d < options_.size(); ++d) {
    absl::InlinedVector<int, 16> changed;
    for (const DimStrategy& option : options_[d]) {
      traffic_[d].push_back(needs_traffic(option, d));
      changed.push_back(num_changed(option, d));
      order_[d].push_back(order_[d].size());
    }
    const auto changes_less = [&](size_t a, size_t b) { return std::tie(changed[a], a) < std::tie(changed[b], b); };
    std::sort(order_[d].begin(), order_[d].end(), changes_less);
  }
}

// Lists may hold a hundred tensors of one layout: inputs with the same placements are priced once, and counted.
std::vector<Pricer::Group> Search::group_inputs() const {
  const OpCall& call = problem_.call;
  // By layout, how they are priced, and what all options make of them.
  const auto alike = [&](size_t a, size_t b) {
    if (call.inputs[a] != call.inputs[b] || !call.context.has_same_hints(a, b)) return false;
    const auto wants_same = [&](const DimStrategy& option) { return option.inputs[a] == option.inputs[b]; };
    return std::all_of(options_.begin(), options_.end(), [&](const std::vector<DimStrategy>& options) {
      return std::all_of(options.begin(), options.end(), wants_same);
    });
  };
  const std::vector<Pricer::Group> inputs = Pricer::all_inputs(problem_);
  std::vector<Pricer::Group> groups;
  groups.reserve(inputs.size());
  for (const Pricer::Group& input : inputs) {
    const auto it = std::find_if(groups.begin(), groups.end(),
                                 [&](const Pricer::Group& group) { return alike(group.input, input.input); });
    if (it == groups.end()) {
      groups.push_back(input);
    } else {
      ++it->count;
    }
  }
  return groups;
}

int Search::num_changed(const DimStrategy& option, int64_t d) const {
  int changed = 0;
  for (const Pricer::Group& g : groups_) changed += option.inputs[g.input] != problem_.given(g.input, d) ? g.count : 0;
  return changed;
}

// The inputs (of the first 64 groups, one per group) whose change along mesh dim d takes a collective, whatever happens
// on the other dims.
uint64_t Search::needs_traffic(const DimStrategy& option, int64_t d) const {
  uint64_t mask = 0;
  if (problem_.call.mesh.size(d) == 1) return mask;
  for (size_t g = 0; g < std::min<size_t>(groups_.size(), 64); ++g) {
    const SpecPtr& spec = problem_.call.inputs[groups_[g].input];
    if (spec->meta().numel() == 0) continue;
    const Placement& from = problem_.given(groups_[g].input, d);
    const Placement& to = option.inputs[groups_[g].input];
    // A change of the sharded dim, and no other mesh dim shards: some rank lacks elements, unless both dims are of size
    // 1.
    const bool changes_dim = options_.size() == 1 && from.is_shard() && to.is_shard() && from != to &&
                             (spec->sizes()[from.dim()] > 1 || spec->sizes()[to.dim()] > 1);
    if (!changes_dim && !(from.is_sharded() && to.is_replicate()) && !(from.is_partial() && !to.is_partial())) continue;
    size_t first = 0;  // equal inputs move together
    while (problem_.call.inputs[groups_[first].input] != spec) ++first;
    mask |= uint64_t{1} << first;
  }
  return mask;
}

int64_t Search::num_combinations() const {
  int64_t product = 1;
  for (const auto& options : options_) {
    product *= static_cast<int64_t>(options.size());
    if (product > int64_t{1} << 40) break;
  }
  return product;
}

std::optional<Strategy> Search::run(SearchEffort& effort) {
  chosen_.assign(options_.size(), 0);
  if (!run_unchanged()) {
    compare_options();
    const int64_t usual = options_.size() <= 3 ? kEveryOfThree : kEvery;
    const bool every = num_combinations() <= (effort.every > 0 ? effort.every : usual);
    if (!every || options_.size() > 1)
      descend(/*pairs=*/!every);  // also if all are priced: gives a good upper bound at once
    if (every) branch(0, 0);
  }
  effort.priced += pricer_.priced();
  effort.planned += pricer_.planned();
  if (!found_) return std::nullopt;
  effort.seconds = static_cast<double>(best_.cost) * 1e-12;
  combine(best_chosen_, /*all=*/true, candidate_);
  return std::move(candidate_);
}

// The first strategies that use every input in its layout, if all mesh dims have one: nothing can be cheaper, unless
// they defer a reduction that would be cheaper now.
bool Search::run_unchanged() {
  for (size_t d = 0; d < options_.size(); ++d) {
    size_t k = 0;
    while (k < options_[d].size() && num_changed(options_[d][k], d) > 0) ++k;
    if (k == options_[d].size()) return false;
    chosen_[d] = k;
  }
  consider();
  return found_ && best_.cost == 0;
}

// All combinations except those that cannot be better.
void Search::branch(size_t d, uint64_t traffic) {
  // Every redistribution with traffic pays the latency of one collective at least.
  if (found_ && __builtin_popcountll(traffic) * latency_ > best_.cost) return;
  if (d == options_.size()) {
    if (!found_ || chosen_ != best_chosen_) consider();  // not again the starting point
    return;
  }
  for (size_t k : order_[d]) {
    chosen_[d] = k;
    branch(d + 1, traffic | traffic_[d][k]);
  }
}

// Prices chosen_, and records it if it is the best; among equals the one first in the rules' order. nullopt: not
// possible, or not the best.
std::optional<Score> Search::consider() {
  const auto score = pricer_.price(candidate(), found_ ? best_.cost : std::numeric_limits<Picoseconds>::max());
  if (!score) return std::nullopt;
  if (found_ && (best_ < *score || (!(*score < best_) && best_chosen_ < chosen_))) return std::nullopt;
  found_ = true;
  best_ = *score;
  best_chosen_ = chosen_;
  return score;
}

std::vector<Search::Choice> Search::seeds() const {
  std::vector<Choice> seeds(2);
  for (size_t d = 0; d < options_.size(); ++d) {
    seeds[0].push_back(order_[d][0]);  // few changes
    seeds[1].push_back(0);             // everything replicated, the first strategy of rules
  }
  for (size_t g = 0; g < std::min(groups_.size(), kMaxSeeds); ++g) {  // the layout of this input
    const size_t i = groups_[g].input;
    Choice seed;
    for (size_t d = 0; d < options_.size(); ++d) {
      const auto keeps = [&](size_t k) {
        return options_[d][k].inputs[i] == problem_.given(i, static_cast<int64_t>(d));
      };
      const auto it = std::find_if(order_[d].begin(), order_[d].end(), keeps);
      seed.push_back(it == order_[d].end() ? order_[d][0] : *it);
    }
    if (std::find(seeds.begin(), seeds.end(), seed) == seeds.end()) seeds.push_back(std::move(seed));
  }
  return seeds;
}

// Whether chosen_ is cheaper than `score`, by quick prices; then that is the score.
bool Search::is_better(Score& score) {
  const auto other = pricer_.price(candidate(), score.cost, /*quick=*/true);
  if (!other || !(*other < score)) return false;
  score = *other;
  return true;
}

// From each seed, improves one mesh dim after the other until that changes nothing. The seeds and the ends are priced
// exactly.
void Search::descend(bool pairs) {
  Choice best;
  Score best_score;
  std::vector<Choice> ends;
  for (Choice at : seeds()) {
    ends.push_back(at);  // quick prices may miss the best by exact price
    Score score;
    chosen_ = at;
    is_better(score);
    for (bool changed = true; changed && !is_exhausted();) {
      changed = false;
      for (size_t d = 0; d < options_.size(); ++d) {
        chosen_ = at;
        for (size_t k : order_[d]) {
          chosen_[d] = k;
          if (k == at[d] || !is_better(score)) continue;
          at[d] = k;
          changed = true;
        }
      }
    }
    if (score < best_score) {
      best = at;
      best_score = score;
    }
    ends.push_back(std::move(at));
  }
  if (pairs && !best.empty()) {
    ends.push_back(change_pairs(std::move(best), best_score));
  } else if (pairs && problem_.limits.any()) {  // neither they nor their neighbours stay within the limit
    for (Choice& at : seeds()) ends.push_back(change_pairs(std::move(at), Score()));
  }
  for (Choice& end : ends) {
    chosen_ = std::move(end);
    consider();
  }
}

// Two mesh dims at a time: one may take over the sharding of the other.
Search::Choice Search::change_pairs(Choice at, Score score) {
  for (bool changed = true; changed && !is_exhausted();) {
    changed = false;
    for (size_t a = 0; a < options_.size() && !is_exhausted(); ++a) {
      for (size_t b = a + 1; b < options_.size(); ++b) {
        for (size_t k : order_[a]) {
          for (size_t l : order_[b]) {
            if (k == at[a] || l == at[b]) continue;
            chosen_ = at;
            chosen_[a] = k;
            chosen_[b] = l;
            if (!is_better(score)) continue;
            at = chosen_;
            changed = true;
          }
        }
      }
    }
  }
  return at;
}

// Sets `s` to the strategy of `chosen`. Without `all`, only for one input per group.
void Search::combine(const Choice& chosen, bool all, Strategy& s) const {
  s.inputs.resize(problem_.functional.inputs.size());
  if (!options_.empty()) s.outputs.resize(options_[0][chosen[0]].outputs.size());
  for (auto* all_placements : {&s.inputs, &s.outputs}) {
    for (Placements& placements : *all_placements) {
      placements.clear();
      placements.reserve(options_.size());
    }
  }
  for (size_t d = 0; d < options_.size(); ++d) {
    const DimStrategy& option = options_[d][chosen[d]];
    if (all) {
      for (size_t i = 0; i < s.inputs.size(); ++i) s.inputs[i].push_back(option.inputs[i]);
    } else {
      for (const Pricer::Group& g : groups_) s.inputs[g.input].push_back(option.inputs[g.input]);
    }
    for (size_t o = 0; o < s.outputs.size(); ++o) s.outputs[o].push_back(option.outputs[o]);
  }
}

const Strategy& Search::candidate() {
  // The work of a matrix product is counted from the parts of all inputs, not of one per group.
  combine(chosen_, /*all=*/static_cast<bool>(problem_.flops), candidate_);
  return candidate_;
}

}  // namespace

std::optional<Strategy> best_combination(const Problem& problem, std::vector<std::vector<DimStrategy>> options,
                                         SearchEffort& effort) {
  return Search(problem, std::move(options)).run(effort);
}

}  // namespace dtensor::internal
