#include "propagation/transfer.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "propagation/mesh_steps.h"
#include "propagation/plan_many.h"

namespace dtensor {
namespace {

using Kind = RedistributeStep::Kind;

constexpr int64_t kMaxRounds = 1024;  // of one transfer
constexpr size_t kMaxLegs = 24;        // on either mesh
constexpr int64_t kMaxPairs = int64_t{1} << 18;

int64_t numel_of(const LocalLayout& part) {
  int64_t numel = 1;
  for (const Runs& runs : part.dims) numel *= total_size(runs);
  return numel;
}

int64_t item_bytes(const TensorMeta& meta) { return static_cast<int64_t>(c10::elementSize(meta.dtype)); }

// Layout::parts() of every rank. Boxes are looked through once.
class PartsByRank {
 public:
  PartsByRank(const TensorMeta& meta, const Layout& layout) : meta_(meta), layout_(layout) {
    if (!layout.is_boxes()) return;
    for (const RankBox& box : layout.boxes()) {
      LocalLayout& part = parts_[box.rank].emplace_back();
      part.offsets = box.offsets;
      for (size_t d = 0; d < box.sizes.size(); ++d) {
        Runs& runs = part.dims.emplace_back();
        if (box.sizes[d] > 0) runs.push_back({box.offsets[d], box.sizes[d]});
      }
    }
  }
  const std::vector<LocalLayout>& of(int64_t rank) {
    const auto [it, is_new] = parts_.try_emplace(rank);
    if (is_new && !layout_.is_boxes()) it->second = layout_.parts(meta_.sizes, rank);
    return it->second;
  }

 private:
  const TensorMeta& meta_;
  const Layout& layout_;
  absl::node_hash_map<int64_t, std::vector<LocalLayout>> parts_;
};

// A part that a rank holds.
struct Held {
  int64_t rank = 0;
  int64_t number = 0;  // of the rank's parts
  const LocalLayout* part = nullptr;  // owned by somebody else
};

// The ranks of `layout` that together hold the tensor once, for one receiver.
class Sources {
 public:
  Sources(const TensorMeta& meta, const Layout& layout) : parts_(meta, layout) {
    if (layout.is_boxes()) {
      copies_.push_back(layout.ranks());
      return;
    }
    // Ranks that differ only in mesh dims that cut nothing hold copies.
    const DeviceMesh& mesh = layout.mesh();
    absl::flat_hash_map<std::vector<int64_t>, size_t> index;
    for (int64_t rank : mesh.ranks()) {
      std::vector<int64_t> coordinate = mesh.coordinate(rank);
      for (int64_t m = 0; m < mesh.ndim(); ++m) {
        if (layout.placements()[m].is_sharded()) coordinate[m] = 0;
      }
      const auto [it, is_new] = index.try_emplace(std::move(coordinate), copies_.size());
      if (is_new) copies_.emplace_back();
      copies_[it->second].push_back(rank);
      copy_of_[rank] = it->second;
    }
  }

  size_t num_copies() const { return copies_.size(); }

  // Who may have something of `part`, and which of its own: visit(held), which returns false to stop. `position`: of the receiver
  // among those of the target.
  template <typename Visit>
  void of(int64_t receiver, int64_t position, const LocalLayout&, Visit visit) {
    const auto it = copy_of_.find(receiver);
    for (int64_t rank : copies_[it != copy_of_.end() ? it->second : static_cast<size_t>(position) % copies_.size()]) {
      const auto& parts = parts_.of(rank);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (!visit(Held{rank, static_cast<int64_t>(i), &parts[i]})) return;
      }
    }
  }

 private:
  PartsByRank parts_;
  std::vector<std::vector<int64_t>> copies_;
  absl::flat_hash_map<int64_t, size_t> copy_of_;
};

// What a transfer moves, at the ranks that receive, send and hold most.
struct Traffic {
  struct Rank {
    int64_t rank = 0;
    int64_t in = 0, out = 0, kept = 0;  // bytes
  };
  std::vector<Rank> ranks;
  int64_t received = 0;
  int64_t sent = 0;
  int64_t held = 0;   // before and after together
  bool same = true;  // every rank has the same parts as before
};

// Sums over ranks without listing blocks: what a receiver lacks comes evenly from those that hold a copy of the tensor.
Traffic traffic(const TensorMeta& meta, const Layout& before, const Layout& after) {
  Traffic t;
  const int64_t item = item_bytes(meta);
  const std::vector<int64_t> senders = before.ranks(), receivers = after.ranks();
  std::vector<int64_t> ranks;
  std::set_union(senders.begin(), senders.end(), receivers.begin(), receivers.end(), std::back_inserter(ranks));
  PartsByRank all_old(meta, before), all_new(meta, after);
  int64_t total = 0;
  for (int64_t rank : ranks) {
    const auto& old_parts = all_old.of(rank);
    const auto& new_parts = all_new.of(rank);
    Traffic::Rank& r = t.ranks.emplace_back();
    r.rank = rank;
    for (const LocalLayout& part : old_parts) r.in += numel_of(part) * item;
    for (const LocalLayout& part : new_parts) {
      r.out += numel_of(part) * item;
      for (const LocalLayout& old : old_parts) r.kept += overlap_numel(old, part) * item;
    }
    bool same = old_parts.size() == new_parts.size();
    for (size_t i = 0; same && i < old_parts.size(); ++i) {
      same = old_parts[i].dims == new_parts[i].dims || (old_parts[i].empty() && new_parts[i].empty() &&
                                                         old_parts[i].sizes() == new_parts[i].sizes());
    }
    t.same &= same;
    t.received = std::max(t.received, r.out - r.kept);
    t.held = std::max(t.held, r.in + r.out);
    total += r.out - r.kept;
  }
  const auto num_senders = static_cast<int64_t>(std::max<size_t>(1, senders.size()));
  t.sent = (total + num_senders - 1) / num_senders;
  return t;
}

// What the transfer needs where messages are packed, on the rank that needs most: its parts, what it sends and what it receives.
// Exact, unless more than kMaxPairs pairs of parts meet and the sums are not plain: then every rank sends as much.
int64_t packed_bytes(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& t) {
  absl::flat_hash_map<int64_t, int64_t> wanted;  // of each rank, by all, itself among them
  Sources sources(meta, before);
  if (sources.num_copies() == 1 && !after.is_boxes()) {  // the target takes the tensor so many times
    int64_t times = 1;
    for (int64_t m = 0; m < after.mesh().ndim(); ++m) times *= after.placements()[m].is_sharded() ? 1 : after.mesh().size(m);
    for (const Traffic::Rank& r : t.ranks) wanted[r.rank] = times * r.in;
  } else {
    PartsByRank parts(meta, after);
    const std::vector<int64_t> receivers = after.ranks();
    int64_t pairs = 0;
    for (size_t position = 0; position < receivers.size() && pairs <= kMaxPairs; ++position) {
      for (const LocalLayout& part : parts.of(receivers[position])) {
        sources.of(receivers[position], static_cast<int64_t>(position), part, [&](const Held& source) {
          wanted[source.rank] += overlap_numel(*source.part, part) * item_bytes(meta);
          return ++pairs <= kMaxPairs;
        });
      }
    }
    if (pairs > kMaxPairs) {
      for (const Traffic::Rank& r : t.ranks) wanted[r.rank] = r.kept + (r.in > 0 ? t.sent : 0);
    }
  }
  int64_t most = 0;
  for (const Traffic::Rank& r : t.ranks) most = std::max(most, r.in + r.out + wanted[r.rank] - r.kept + r.out - r.kept);
  return most;
}

void check_boxes(const TensorMeta& meta, const Layout& layout, const char* name, bool is_source) {
  if (!layout.is_boxes()) {
    TORCH_CHECK_VALUE(layout.mesh().defined(), "[redistribute] `", name, "` has neither a mesh nor boxes");
    TORCH_CHECK_VALUE(layout.mesh().num_copies() == 1, "[redistribute] `", name, "` is on ", layout.mesh().to_string(),
                      ", a slice of a larger mesh that stands for ", layout.mesh().num_copies(),
                      " submeshes, each with a tensor of its own; give the mesh of one of them");
    TORCH_CHECK_VALUE(static_cast<int64_t>(layout.placements().size()) == layout.mesh().ndim(), "[redistribute] `", name, "` has ",
                      layout.placements().size(), " placements for ", layout.mesh().to_string(), ": give one per mesh dim");
    return;
  }
  const auto& boxes = layout.boxes();
  const auto describe = [&](size_t i) {
    return c10::str("box ", i, " (rank ", boxes[i].rank, ", offsets ", c10::IntArrayRef(boxes[i].offsets.data(), boxes[i].offsets.size()),
                    ", sizes ", c10::IntArrayRef(boxes[i].sizes.data(), boxes[i].sizes.size()), ")");
  };
  for (size_t i = 0; i < boxes.size(); ++i) {
    TORCH_CHECK_VALUE(boxes[i].rank >= 0 && boxes[i].rank < layout.world().size(), "[redistribute] `", name, "`: ", describe(i),
                      ": ", layout.world().name(), " has ranks 0..", layout.world().size() - 1);
    TORCH_CHECK_VALUE(boxes[i].offsets.size() == meta.sizes.size() && boxes[i].sizes.size() == meta.sizes.size(),
                      "[redistribute] `", name, "`: ", describe(i), " must have ", meta.sizes.size(), " offsets and sizes, as ",
                      to_string(meta), " has dims");
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      TORCH_CHECK_VALUE(boxes[i].offsets[d] >= 0 && boxes[i].sizes[d] >= 0 &&
                            boxes[i].sizes[d] <= meta.sizes[d] - boxes[i].offsets[d],
                        "[redistribute] `", name, "`: ", describe(i), " leaves ", to_string(meta), " on dim ", d);
    }
  }
  if (!is_source) return;
  // Along the first dim boxes are met in order; only those that still reach further can overlap the next.
  std::vector<size_t> order;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (std::all_of(boxes[i].sizes.begin(), boxes[i].sizes.end(), [](int64_t n) { return n > 0; })) order.push_back(i);
  }
  if (meta.sizes.empty()) {
    TORCH_CHECK_VALUE(order.size() <= 1, "[redistribute] `", name, "`: ", describe(order[1]), " overlaps ", describe(order[0]));
    return;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return boxes[a].offsets[0] < boxes[b].offsets[0]; });
  std::vector<size_t> open;
  for (size_t i : order) {
    open.erase(std::remove_if(open.begin(), open.end(),
                              [&](size_t o) { return boxes[o].offsets[0] + boxes[o].sizes[0] <= boxes[i].offsets[0]; }),
               open.end());
    for (size_t o : open) {
      bool overlaps = true;
      for (size_t d = 0; d < meta.sizes.size(); ++d) {
        overlaps &= boxes[o].offsets[d] < boxes[i].offsets[d] + boxes[i].sizes[d] &&
                    boxes[i].offsets[d] < boxes[o].offsets[d] + boxes[o].sizes[d];
      }
      TORCH_CHECK_VALUE(!overlaps, "[redistribute] `", name, "`: ", describe(std::max(i, o)), " overlaps ",
                        describe(std::min(i, o)), "; of what two ranks hold it is not said whose value counts");
    }
    open.push_back(i);
  }
}

Layout normalized(const TensorMeta& meta, const Layout& layout, const char* name) {
  if (layout.is_boxes()) return layout;
  Placements normal;  // one by one: kinds of Partial may mix, since all are reduced on the way
  for (const Placement& p : layout.placements()) {
    const auto placement = normalize_placements({p}, static_cast<int64_t>(meta.sizes.size()));
    TORCH_CHECK_VALUE(placement.ok(), "[redistribute] `", name, "`: ", std::string(placement.status().message()));
    normal.push_back((*placement)[0]);
  }
  return Layout(layout.mesh(), std::move(normal));
}

// Boxes may leave parts out, as long as nobody needs them.
void check_covered(const TensorMeta& meta, const Layout& from, const Layout& to) {
  if (!from.is_boxes()) return;
  Sources sources(meta, from);
  PartsByRank parts(meta, to);
  for (int64_t rank : to.ranks()) {
    for (const LocalLayout& part : parts.of(rank)) {
      int64_t found = 0;
      sources.of(rank, 0, part, [&](const Held& source) {
        found += overlap_numel(*source.part, part);
        return true;
      });
      TORCH_CHECK_VALUE(found == numel_of(part), "[redistribute] rank ", rank, " needs ", numel_of(part), " elements of ",
                        to_string(meta), " as `to` says, but the boxes of `from` hold ", found, " of them");
    }
  }
}

// The steps on one mesh that come before a transfer, or after it.
struct Leg {
  Placements middle;  // of the transfer, at this end
  bool possible = true;  // within the limits
  std::vector<RedistributeStep> steps;
  int64_t least_peak = -1;  // the smallest limit that leaves some; -1: nobody asked
};

// What is Partial is reduced, or scattered along any dim. What every rank of the target wants may come in pieces that they
// then gather, so that no sender sends it often. With `every`, each mesh dim for itself, and what is replicated may be cut
// before the transfer, too: a rank then has less, where it is in both meshes.
std::vector<Placements> middles(const TensorMeta& meta, const Layout& layout, bool is_first, bool every) {
  std::vector<Placements> list = {without_partials(layout.placements())};
  if (layout.is_boxes()) return list;
  const Placements& p = layout.placements();
  const std::vector<int64_t>& shape = layout.mesh().shape();
  // Where mesh dim m may cut tensor dim d, and how; nullopt where parts would be too short.
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

void add_up(Route& route) {
  route.bytes = route.peak_bytes = 0;
  route.seconds = 0;
  for (const RedistributeStep& step : route.steps) {
    route.bytes += step.bytes;
    route.seconds += step.seconds;
    route.peak_bytes = std::max(route.peak_bytes, step.peak_bytes);
  }
}

// `wanted(sender, receiver)`: whether to list that pair's blocks.
template <typename Wanted>
std::vector<TransferBlock> blocks_between(const TensorMeta& meta, const Layout& before, const Layout& after, Wanted wanted) {
  std::vector<TransferBlock> blocks;
  Sources sources(meta, before);
  PartsByRank all_parts(meta, after);
  const std::vector<int64_t> receivers = after.ranks();
  for (size_t position = 0; position < receivers.size(); ++position) {
    const int64_t receiver = receivers[position];
    const auto& parts = all_parts.of(receiver);
    for (size_t o = 0; o < parts.size(); ++o) {
      sources.of(receiver, static_cast<int64_t>(position), parts[o], [&](const Held& source) {
        if (!wanted(source.rank, receiver)) return true;
        for (Block& block : overlap(*source.part, parts[o])) {
          blocks.push_back({source.rank, receiver, source.number, static_cast<int64_t>(o), std::move(block)});
        }
        return true;
      });
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const TransferBlock& a, const TransferBlock& b) {
    return std::tie(a.sender, a.receiver, a.input, a.output) < std::tie(b.sender, b.receiver, b.input, b.output);
  });
  return blocks;
}

// Spreads `step` over as many rounds as keep its buffers within `limit`. False if none do; `least` is then the smallest limit
// that would do, if it is below `hopeless`.
bool fit(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& t, const CostModel& cost, int64_t limit,
         int64_t hopeless, RedistributeStep& step, int64_t& least) {
  least = step.peak_bytes;
  if (step.peak_bytes <= limit) return true;
  if (meta.sizes.empty() || !cost.packs || t.held > hopeless) return false;
  const auto blocks = blocks_between(meta, before, after, [](int64_t sender, int64_t receiver) { return sender != receiver; });
  int64_t longest = 1;
  for (const TransferBlock& b : blocks) longest = std::max(longest, *std::max_element(b.block.sizes.begin(), b.block.sizes.end()));
  longest = std::min(longest, kMaxRounds);
  const double latency = cost.collective(Collective::kAllToAll, 2, false, 0);
  for (int64_t chunks = 2; chunks < 2 * longest && step.peak_bytes > limit; chunks *= 2) {
    const int64_t rounds = std::min(chunks, longest);
    absl::flat_hash_map<std::pair<int64_t, int64_t>, int64_t> buffers;  // by rank and round
    for (const TransferBlock& b : blocks) {
      int64_t bytes = item_bytes(meta);
      for (int64_t size : b.block.sizes) bytes *= size;
      const int64_t length = *std::max_element(b.block.sizes.begin(), b.block.sizes.end());
      for (int64_t c = 0; c < std::min(rounds, length); ++c) {
        const int64_t part = bytes / length * chunk(length, rounds, c).size;
        buffers[{b.sender, c}] += part;
        buffers[{b.receiver, c}] += part;
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

// Ways to go: some steps on the mesh of `from`, then over, then some on the mesh of `to`.
class TransferRoutes {
 public:
  // `every`: also those that only serve limits.
  TransferRoutes(const TensorMeta& meta, const Layout& from, const Layout& to, const CostModel& cost, const Limits& limits, bool every)
      : meta_(meta), from_(from), to_(to), cost_(cost), limits_(limits) {
    std::vector<int64_t> ranks = from.ranks();
    const std::vector<int64_t> targets = to.ranks();
    ranks.insert(ranks.end(), targets.begin(), targets.end());
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    num_ranks_ = static_cast<int64_t>(ranks.size());
    absl::flat_hash_set<int64_t> nodes;
    for (int64_t rank : ranks) nodes.insert(rank / cost.ranks_per_node);
    crosses_nodes_ = nodes.size() > 1;
    for (Placements& middle : middles(meta, from, true, every)) {
      Leg& leg = firsts_.emplace_back();
      leg.possible = from.is_boxes() || find_mesh_steps(from.mesh(), meta, from.placements(), middle, cost, limits, leg.steps);
      leg.middle = std::move(middle);
    }
    for (Placements& middle : middles(meta, to, false, every)) {
      Leg& leg = lasts_.emplace_back();
      leg.possible = to.is_boxes() || find_mesh_steps(to.mesh(), meta, middle, to.placements(), cost, limits, leg.steps);
      leg.middle = std::move(middle);
    }
  }

  // All within the limits, the cheapest first.
  std::vector<Route> all() const {
    std::vector<Route> routes;
    for (const Leg& first : firsts_) {
      for (const Leg& last : lasts_) {
        if (!first.possible || !last.possible) continue;
        Route route{first.steps};
        int64_t least = 0;
        if (!go_over(first, last, limits_.peak_bytes, limits_.peak_bytes, route.steps, least)) continue;
        route.steps.insert(route.steps.end(), last.steps.begin(), last.steps.end());
        add_up(route);
        routes.push_back(std::move(route));
      }
    }
    std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
    return routes;
  }

  // The peak of a route of all(), if that was not asked for within limits.
  void add_buffers(Route& route) const {
    if (!cost_.packs || limits_.peak_bytes != std::numeric_limits<int64_t>::max()) return;
    for (RedistributeStep& step : route.steps) {
      if (step.kind != Kind::kTransfer) continue;
      const Layout before = from_.is_boxes() ? from_ : Layout(from_.mesh(), step.before);
      const Layout after = to_.is_boxes() ? to_ : Layout(to_.mesh(), step.after);
      step.peak_bytes = packed_bytes(meta_, before, after, traffic(meta_, before, after));
    }
    add_up(route);
  }

  // The smallest limit that leaves a route. REQUIRES: all() is empty.
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
  // Adds the transfer, if there is one. False if `limit` forbids it; `least` and `hopeless` as fit().
  bool go_over(const Leg& first, const Leg& last, int64_t limit, int64_t hopeless, std::vector<RedistributeStep>& steps,
               int64_t& least) const {
    const Layout before = from_.is_boxes() ? from_ : Layout(from_.mesh(), first.middle);
    const Layout after = to_.is_boxes() ? to_ : Layout(to_.mesh(), last.middle);
    const Traffic t = traffic(meta_, before, after);
    least = 0;
    if (t.same && last.possible && last.steps.empty()) return true;  // with steps after it there must be one: the mesh changes
    RedistributeStep& step = steps.emplace_back();
    step.kind = Kind::kTransfer;
    step.before = before.placements();
    step.after = after.placements();
    step.bytes = t.received;
    step.peak_bytes = t.held;
    const bool unlimited = limit == std::numeric_limits<int64_t>::max();  // then add_buffers() does it, for those that count
    if (cost_.packs && !unlimited && t.held <= hopeless) step.peak_bytes = packed_bytes(meta_, before, after, t);
    step.seconds = cost_.copy(t.held);
    if (t.received > 0) {
      step.seconds +=
          cost_.collective(Collective::kAllToAll, num_ranks_, crosses_nodes_, std::max(t.received, t.sent));
    }
    return fit(meta_, before, after, t, cost_, limit, hopeless, step, least);
  }

  int64_t least_peak(Leg& leg, const Layout& on, const Placements& from, const Placements& to) const {
    if (leg.least_peak < 0) leg.least_peak = least_mesh_peak(on.mesh(), meta_, from, to, cost_, limits_.peak_bytes);
    return leg.least_peak;
  }

  const TensorMeta& meta_;
  const Layout& from_;
  const Layout& to_;
  const CostModel& cost_;
  const Limits& limits_;
  int64_t num_ranks_ = 0;
  bool crosses_nodes_ = false;
  std::vector<Leg> firsts_, lasts_;
};

}  // namespace

std::vector<TransferBlock> transfer_blocks(const TensorMeta& meta, const Layout& before, const Layout& after) {
  const std::vector<int64_t>& owned = before.world().owned_ranks();
  const absl::flat_hash_set<int64_t> is_owned(owned.begin(), owned.end());
  if (owned.empty()) return {};
  return blocks_between(meta, before, after, [&](int64_t sender, int64_t receiver) {
    return is_owned.contains(sender) || is_owned.contains(receiver);
  });
}

std::vector<Route> transfer_routes(const RedistributePlan& plan) {
  const Limits none;
  const TransferRoutes search(plan.tensor, plan.from, plan.to, *plan.cost, none, /*every=*/false);
  std::vector<Route> routes = search.all();
  for (Route& route : routes) search.add_buffers(route);
  return routes;
}

RedistributePlan plan_transfer(const TensorMeta& meta, const Layout& given_from, const Layout& given_to,
                               const PlanOptions& options) {
  check_boxes(meta, given_from, "from", /*is_source=*/true);
  check_boxes(meta, given_to, "to", /*is_source=*/false);
  const Layout from = normalized(meta, given_from, "from");
  const Layout to = normalized(meta, given_to, "to");
  TORCH_CHECK_VALUE(from.world() == to.world(), "[redistribute] `from` is in ", from.world().name(), " and `to` in another world, ",
                    to.world().name(), "; both must be in one");
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
                      ": limits.peak_bytes is ", plan.limits.peak_bytes, ", but no route needs less than ", search.least_peak(),
                      " bytes on a rank; allow as many");
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
