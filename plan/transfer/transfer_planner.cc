// plan_transfer(): routes between two meshes, and to and from boxes.
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "placement/parse_placements.h"
#include "plan/largest_part.h"
#include "plan/redistribute_planner.h"
#include "plan/search/mesh_steps.h"
#include "plan/search/step_pricer.h"
#include "plan/transfer/schedule.h"
#include "plan/transfer/transfer.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = RedistributeStep::Kind;

constexpr int64_t kMaxParts = int64_t{1} << 20;  // of its messages, over all rounds: planning must end
constexpr size_t kMaxLegs = 24;                  // on either mesh

Layout normalized(const TensorMeta& meta, const Layout& layout, const char* name) {
  if (layout.is_boxes()) return layout;
  Placements normal;  // one by one: kinds of Partial may be mixed, since all are reduced on the way
  for (const Placement& p : layout.placements()) {
    const auto placement = normalize_placements({p}, static_cast<int64_t>(meta.sizes.size()));
    TORCH_CHECK_VALUE(placement.ok(), "[redistribute] `", name, "`: ", std::string(placement.status().message()));
    normal.push_back((*placement)[0]);
  }
  return Layout(layout.mesh(), std::move(normal));
}

// The steps on one mesh that come before a transfer, or after it.
struct Leg {
  Placements middle;     // of the transfer, at this end
  bool possible = true;  // within the limits
  std::vector<RedistributeStep> steps;
  int64_t least_peak = -1;  // the smallest limit with a route; -1: not computed
};

// Partials are reduced, or scattered along any dim. Elements that every rank of the target needs may be sent in pieces
// that the target then gathers, so that no sender sends them often. With `every`, separately per mesh dim, and
// replicated dims may be cut before the transfer, too: then a rank has less, if it is in both meshes.
std::vector<Placements> middles(const TensorMeta& meta, const Layout& layout, bool is_first, bool every) {
  std::vector<Placements> list = {without_partials(layout.placements())};
  if (layout.is_boxes()) return list;
  const Placements& p = layout.placements();
  const std::vector<int64_t>& shape = layout.mesh().shape();
  // Whether and how mesh dim m may cut tensor dim d; nullopt if parts would be too short.
  const auto landing = [&](size_t m, int64_t d, bool strided) -> std::optional<Placement> {
    if (meta.sizes[d] < shape[m]) return std::nullopt;
    int64_t inner = 1;  // parts that later mesh dims cut this one's into
    for (size_t later = m + 1; later < p.size(); ++later) inner *= p[later].is_sharded_on(d) ? shape[later] : 1;
    if (inner == 1) return Shard(d);
    return strided ? std::optional<Placement>(StridedShard(d, inner)) : std::nullopt;
  };
  const auto add = [&](Placements middle) {
    if (std::find(list.begin(), list.end(), middle) == list.end()) list.push_back(std::move(middle));
  };
  const auto ndim = static_cast<int64_t>(meta.sizes.size());
  for (int64_t d = 0; d < ndim; ++d) {
    Placements sharded = list[0];
    for (size_t m = 0; m < p.size(); ++m) {
      if (is_first ? p[m].is_partial() : !p[m].is_sharded()) sharded[m] = landing(m, d, false).value_or(sharded[m]);
    }
    add(std::move(sharded));
  }
  for (size_t m = p.size(); every && m-- > 0;) {
    for (size_t i = 0, n = list.size(); !p[m].is_sharded() && i < n; ++i) {
      for (int64_t d = -1; d < ndim && list.size() < kMaxLegs; ++d) {
        Placements other = list[i];
        other[m] = d < 0 ? list[0][m] : landing(m, d, true).value_or(list[0][m]);
        add(std::move(other));
      }
    }
  }
  return list;
}

// Divides `step` into rounds whose buffers stay within `limit`. False if no number of rounds does; `least` is then the
// smallest sufficient limit, if it is below `hopeless`.
bool fit(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& t, const CostModel& cost,
         int64_t limit, int64_t hopeless, RedistributeStep& step, int64_t& least) {
  least = step.peak_bytes;
  if (step.peak_bytes <= limit) return true;
  if (meta.sizes.empty() || !cost.uses_staging_buffers || t.held > hopeless) return false;
  const auto messages = messages_between_ranks(meta, before, after);
  if (!messages) return false;
  int64_t longest = 1;
  for (const Message& m : *messages)
    longest = std::max(longest, *std::max_element(m.block.sizes.begin(), m.block.sizes.end()));
  longest =
      std::min({longest, kMaxRounds, std::max<int64_t>(2, kMaxParts / static_cast<int64_t>(1 + messages->size()))});
  const double latency = cost.collective(Collective::kAllToAll, GroupExtent::within_node(2), 0);
  for (int64_t chunks = 2; chunks < 2 * longest && step.peak_bytes > limit; chunks *= 2) {
    const int64_t rounds = std::min(chunks, longest);
    absl::flat_hash_map<std::pair<int64_t, int64_t>, int64_t> buffers;  // by rank and round
    for (const Message& m : *messages) {
      auto bytes = static_cast<int64_t>(c10::elementSize(meta.dtype));
      for (int64_t size : m.block.sizes) bytes *= size;
      const int64_t length = *std::max_element(m.block.sizes.begin(), m.block.sizes.end());
      for (int64_t c = 0; c < std::min(rounds, length); ++c) {
        const int64_t part = bytes / length * chunk(length, rounds, c).size;
        buffers[{m.sender, c}] += part;
        buffers[{m.receiver, c}] += part;
      }
    }
    absl::flat_hash_map<int64_t, int64_t> held;
    for (const Traffic::Rank& r : t.ranks) held[r.rank] = r.in + r.out;
    step.peak_bytes = t.held;
    for (const auto& [rank_and_round, bytes] : buffers) {
      step.peak_bytes = std::max(step.peak_bytes, held[rank_and_round.first] + bytes);
    }
    step.seconds += static_cast<double>(rounds - step.chunks) * latency;
    step.chunks = rounds;
    least = std::min(least, step.peak_bytes);
  }
  return step.peak_bytes <= limit;
}

// The possible routes: some steps on the mesh of `from`, the transfer, some steps on the mesh of `to`.
class TransferRoutes {
 public:
  // `every`: also routes that only help with limits.
  TransferRoutes(const TensorMeta& meta, const Layout& from, const Layout& to, const CostModel& cost,
                 const Limits& limits, bool every)
      : meta_(meta), from_(from), to_(to), cost_(cost), limits_(limits) {
    std::vector<int64_t> ranks = from.ranks();
    const std::vector<int64_t> targets = to.ranks();
    ranks.insert(ranks.end(), targets.begin(), targets.end());
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    absl::flat_hash_set<int64_t> nodes;
    for (int64_t rank : ranks) nodes.insert(rank / cost.ranks_per_node);
    group_ = GroupExtent::of_links(static_cast<int64_t>(ranks.size()), nodes.size() > 1);
    for (Placements& middle : middles(meta, from, true, every)) {
      Leg& leg = firsts_.emplace_back();
      leg.possible =
          from.is_boxes() || find_mesh_steps(from.mesh(), meta, from.placements(), middle, cost, limits, leg.steps);
      leg.middle = std::move(middle);
    }
    for (Placements& middle : middles(meta, to, false, every)) {
      Leg& leg = lasts_.emplace_back();
      leg.possible =
          to.is_boxes() || find_mesh_steps(to.mesh(), meta, middle, to.placements(), cost, limits, leg.steps);
      leg.middle = std::move(middle);
    }
  }

  // All within the limits, cheapest first.
  std::vector<Route> all() const {
    std::vector<Route> routes;
    for (const Leg& first : firsts_) {
      for (const Leg& last : lasts_) {
        if (!first.possible || !last.possible) continue;
        Route route{first.steps};
        int64_t least = 0;
        if (!go_over(first, last, limits_.max_bytes, limits_.max_bytes, route.steps, least)) continue;
        route.steps.insert(route.steps.end(), last.steps.begin(), last.steps.end());
        route.add_up();
        routes.push_back(std::move(route));
      }
    }
    std::stable_sort(routes.begin(), routes.end(),
                     [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
    return routes;
  }

  // Adds the buffers to the peak of a route of all(), if it was planned without limits.
  void add_buffers(Route& route) const {
    if (!cost_.uses_staging_buffers || limits_.any()) return;
    for (RedistributeStep& step : route.steps) {
      if (step.kind != Kind::kTransfer) continue;
      const Layout before = from_.is_boxes() ? from_ : Layout(from_.mesh(), step.before);
      const Layout after = to_.is_boxes() ? to_ : Layout(to_.mesh(), step.after);
      step.peak_bytes = packed_bytes(meta_, before, after, traffic_of(meta_, before, after));
    }
    route.add_up();
  }

  // The smallest limit with a route. REQUIRES: all() is empty.
  int64_t least_peak() {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (Leg& first : firsts_) {
      for (Leg& last : lasts_) {
        int64_t peak = 0;
        std::vector<RedistributeStep> transfer;
        go_over(first, last, 0, least, transfer, peak);
        if (peak >= least) continue;
        if (!first.possible) peak = std::max(peak, least_peak(first, from_, from_.placements(), first.middle));
        if (peak >= least) continue;
        if (!last.possible) peak = std::max(peak, least_peak(last, to_, last.middle, to_.placements()));
        least = std::min(least, peak);
      }
    }
    return least;
  }

 private:
  // Adds the transfer, if one is needed. False if `limit` forbids it; `least` and `hopeless` as in fit().
  bool go_over(const Leg& first, const Leg& last, int64_t limit, int64_t hopeless, std::vector<RedistributeStep>& steps,
               int64_t& least) const {
    const Layout before = from_.is_boxes() ? from_ : Layout(from_.mesh(), first.middle);
    const Layout after = to_.is_boxes() ? to_ : Layout(to_.mesh(), last.middle);
    const Traffic t = traffic_of(meta_, before, after);
    least = 0;
    if (t.same && last.possible && last.steps.empty())
      return true;  // with steps after it there must be one: the mesh changes
    RedistributeStep& step = steps.emplace_back();
    step.kind = Kind::kTransfer;
    step.before = before.placements();
    step.after = after.placements();
    step.bytes = t.received;
    step.peak_bytes = t.held;
    const bool unlimited = limit == Limits::kNone;  // later, by add_buffers(), for the routes that are kept
    if (cost_.uses_staging_buffers && !unlimited && t.held <= hopeless)
      step.peak_bytes = packed_bytes(meta_, before, after, t);
    step.seconds = cost_.copy(t.held);
    if (t.received > 0) {
      step.seconds += cost_.collective(Collective::kAllToAll, group_, std::max(t.received, t.sent));
    }
    return fit(meta_, before, after, t, cost_, limit, hopeless, step, least);
  }

  int64_t least_peak(Leg& leg, const Layout& on, const Placements& from, const Placements& to) const {
    if (leg.least_peak < 0) leg.least_peak = least_mesh_peak(on.mesh(), meta_, from, to, cost_, limits_.max_bytes);
    return leg.least_peak;
  }

  const TensorMeta& meta_;
  const Layout& from_;
  const Layout& to_;
  const CostModel& cost_;
  const Limits& limits_;
  GroupExtent group_;
  std::vector<Leg> firsts_, lasts_;
};

}  // namespace

namespace internal {

std::vector<Route> transfer_routes(const RedistributePlan& plan) {
  const Limits none;
  const TransferRoutes search(plan.tensor, plan.from, plan.to, *plan.cost, none, /*every=*/false);
  std::vector<Route> routes = search.all();
  for (Route& route : routes) search.add_buffers(route);
  return routes;
}

}  // namespace internal

RedistributePlan plan_transfer(const TensorMeta& meta, const Layout& given_from, const Layout& given_to,
                               const PlanOptions& options) {
  check_layout(meta, given_from, "from", /*is_source=*/true);
  check_layout(meta, given_to, "to", /*is_source=*/false);
  const Layout from = normalized(meta, given_from, "from");
  const Layout to = normalized(meta, given_to, "to");
  TORCH_CHECK_VALUE(from.world() == to.world(), "[redistribute] `from` is in ", from.world().name(),
                    " and `to` in another world, ", to.world().name(), "; both must be in one");
  check_covered(meta, from, to);
  if (!from.is_boxes() && !to.is_boxes() && from.mesh() == to.mesh()) {
    return plan_redistribution(from.mesh(), meta, from.placements(), to.placements(), options);
  }
  RedistributePlan plan;
  plan.tensor = meta;
  plan.from = from.idle();
  plan.to = to.idle();
  plan.cost = options.cost ? options.cost : cost_model(from.world());
  plan.limits = options.limits;
  plan.schedule = make_schedule_slot();
  std::vector<Route> routes;
  for (bool every : {false, true}) {
    TransferRoutes search(meta, plan.from, plan.to, *plan.cost, plan.limits, every);
    routes = search.all();
    if (!routes.empty()) {
      search.add_buffers(routes[0]);
      break;
    }
    TORCH_CHECK_VALUE(!every, "[redistribute] ", from.to_string(), " -> ", to.to_string(), " of ", to_string(meta),
                      ": max_bytes is ", plan.limits.max_bytes, ", but every route needs at least ",
                      search.least_peak(), " bytes per rank; raise max_bytes");
  }
  Route* chosen = &routes[0];
  plan.steps = std::move(chosen->steps);
  plan.bytes = chosen->bytes;
  plan.peak_bytes = chosen->peak_bytes;
  plan.seconds = chosen->seconds;
  if (plan.steps.empty()) {
    plan.peak_bytes = largest_part_bytes(meta, to);
  }
  return plan;
}

}  // namespace dtensor
