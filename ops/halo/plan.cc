#include "ops/halo/plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "plan/cost_model.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kMaxPieces = 512;  // of one rank's part

struct RankSegments {
  std::vector<Segments> held, wanted;  // per dim of the request
};

// Elements at the same place in both, along one dim.
struct Shared {
  int64_t held = 0;          // which segment
  int64_t from = 0, to = 0;  // in it; in the receiver's tensor
  int64_t size = 0;
};

std::vector<Shared> shared_by(const Segments& held, const Segments& wanted) {
  std::vector<Shared> result;
  for (size_t h = 0; h < held.size(); ++h) {
    for (const Segment& w : wanted) {
      if (held[h].stretch != w.stretch) continue;
      const int64_t begin = std::max(held[h].first, w.first);
      const int64_t end = std::min(held[h].first + held[h].size, w.first + w.size);
      if (begin >= end) continue;
      result.push_back({static_cast<int64_t>(h), begin - held[h].first, w.index + begin - w.first, end - begin});
    }
  }
  return result;
}

int64_t num_shared(const Segments& held, const Segments& wanted) {
  int64_t n = 0;
  for (const Segment& h : held) {
    for (const Segment& w : wanted) {
      if (h.stretch != w.stretch) continue;
      n += std::max<int64_t>(0, std::min(h.first + h.size, w.first + w.size) - std::max(h.first, w.first));
    }
  }
  return n;
}

// "15:16 and 0:3": the elements that the segments show; the first few.
std::string elements_text(const IndexMap& map, const Segments& wanted) {
  constexpr size_t kMost = 4;
  std::string text = wanted.empty() ? "none" : "";
  for (size_t i = 0; i < std::min(wanted.size(), kMost); ++i) {
    const Stretch& stretch = map.stretches[wanted[i].stretch];
    const int64_t begin = stretch.source + stretch.step * wanted[i].first;
    absl::StrAppend(&text, i > 0 ? " and " : "", begin, ":", begin + stretch.step * wanted[i].size);
    if (stretch.step != 1) absl::StrAppend(&text, ":", stretch.step);
  }
  return wanted.size() > kMost ? text + " and more" : text;
}

// All messages of a pair of ranks. `sizes`: of the dims outside the request.
void add_messages(const HaloRequest& request, int64_t sender, int64_t receiver, const RankSegments& from,
                  const RankSegments& to, Shape sizes, std::vector<Message>& messages) {
  const size_t n = request.dims.size();
  std::vector<std::vector<Shared>> shared;
  for (size_t k = 0; k < n; ++k) {
    shared.push_back(shared_by(from.held[k], to.wanted[k]));
    if (shared.back().empty()) return;
    sizes[request.dims[k].dim] = 1;
  }
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  std::vector<size_t> at(n, 0);
  for (;;) {
    Message m{sender, receiver, 0, 0, {Shape(sizes.size(), 0), Shape(sizes.size(), 0), sizes}};
    for (size_t k = 0; k < n; ++k) {
      const Shared& s = shared[k][at[k]];
      const auto d = static_cast<size_t>(request.dims[k].dim);
      m.input = m.input * static_cast<int64_t>(from.held[k].size()) + s.held;
      m.block.from[d] = s.from;
      m.block.to[d] = s.to;
      m.block.sizes[d] = s.size;
    }
    messages.push_back(std::move(m));
    size_t k = n;
    while (k > 0 && ++at[k - 1] == shared[k - 1].size()) at[--k] = 0;
    if (k == 0) return;
  }
}

// The elements in a box along a dim of n elements, in the order of their places in it. Beyond the ends of the dim a box
// has the elements of the other end. None is listed twice.
IndexRanges elements_in(const IndexRange& box, int64_t n) {
  const int64_t begin = (box.begin % n + n) % n, size = std::min(box.size, n);
  const int64_t before_end = std::min(size, n - begin);
  IndexRanges elements{{begin, before_end}};
  if (size > before_end) elements.push_back({0, size - before_end});
  return elements;
}

class HaloPlanner {
 public:
  // `region`: each rank has the elements of its box of it; null: of its part.
  HaloPlanner(const HaloRequest& request, const GhostRegion* region)
      : request_(request), mesh_(request.source->mesh()), region_(region) {}

  std::shared_ptr<const HaloPlan> make() {
    auto plan = std::make_shared<HaloPlan>();
    plan->source = request_.source;
    for (const HaloDim& d : request_.dims) plan->dims.push_back(d.dim);
    const std::vector<int64_t> cutting = cutting_mesh_dims(*request_.source, plan->dims);
    plan->group = &mesh_.group(cutting);
    if (!price(cutting, *plan)) return nullptr;
    if (plan->bytes > 0) plan->text = text_of(first_group(cutting));
    for (const int64_t rank : mesh_.local_ranks()) add_rank(rank, *plan);
    add_messages_of_owned(*plan);
    return plan;
  }

 private:
  RankSegments segments_of(int64_t rank) const {
    const LocalLayout held = request_.source->layout_of_rank(rank), result = request_.result->layout_of_rank(rank);
    RankSegments segments;
    for (const HaloDim& d : request_.dims) {
      const IndexRanges& own = result.dims[d.dim];
      const GhostRegion::Dim* wider = region_ != nullptr ? region_->along(d.dim) : nullptr;
      segments.held.push_back(
          segments_held(d.map, wider == nullptr ? held.dims[d.dim]
                                                : elements_in(wider->known[place_of(*request_.source, d.dim, rank)],
                                                              request_.source->sizes()[d.dim])));
      segments.wanted.push_back(segments_wanted(d.map, d.reach ? d.reach(own) : own));
    }
    return segments;
  }

  const RankSegments& cached_segments(int64_t rank) {
    auto& slot = segments_[rank];
    if (!slot) slot = std::make_unique<RankSegments>(segments_of(rank));
    return *slot;
  }

  // The sizes that a rank's tensors have along dims outside the request.
  Shape other_sizes(int64_t rank) const { return request_.source->layout_of_rank(rank).sizes(); }

  // Elements along one dim, by a rank's position along the mesh dims that cut it.
  struct Counts {
    int64_t held = 0, shown = 0, kept = 0, sent = 0;
  };

  // For all coordinates along the mesh dims that cut the k-th dim of the request; the other coordinates are 0, where a
  // rank holds most of the other dims.
  std::vector<Counts> counts_along(size_t k, int64_t& pieces) const {
    const auto cutting = cutting_mesh_dims(*request_.source, {request_.dims[k].dim});
    std::vector<Segments> held, wanted;
    std::vector<Counts> counts;
    const auto ranks = cutting.empty() ? std::vector<int64_t>{mesh_.ranks()[0]} : first_group(cutting);
    for (const int64_t rank : ranks) {
      RankSegments segments = segments_of(rank);
      held.push_back(std::move(segments.held[k]));
      wanted.push_back(std::move(segments.wanted[k]));
      Counts& c = counts.emplace_back();
      c.held = request_.source->layout_of_rank(rank).sizes()[request_.dims[k].dim];
      for (const Segment& w : wanted.back()) c.shown += w.size;
      c.kept = num_shared(held.back(), wanted.back());
      pieces = std::max(pieces, static_cast<int64_t>(std::max(held.back().size(), wanted.back().size())));
    }
    for (size_t i = 0; i < held.size(); ++i) {
      for (const Segments& w : wanted) counts[i].sent += num_shared(held[i], w);
    }
    return counts;
  }

  const std::vector<int64_t>& first_group(const std::vector<int64_t>& cutting) const {
    const RankGroups& group = mesh_.group(cutting);
    return group.members[group.group_of[mesh_.ranks()[0]]];
  }

  // HaloPlan::text.
  std::string text_of(const std::vector<int64_t>& group) {
    std::string text = absl::StrCat("halos of ", to_string(request_.source->placements()));
    for (size_t k = 0; k < request_.dims.size(); ++k) {
      const HaloDim& d = request_.dims[k];
      absl::StrAppend(&text, k == 0 ? ":" : ";", " of dim ", d.dim);
      for (const int64_t rank : {group.front(), group.back()}) {
        absl::StrAppend(&text, rank == group.front() ? " rank " : ", rank ", rank,
                        rank == group.front() ? " needs " : " ", elements_text(d.map, cached_segments(rank).wanted[k]));
      }
    }
    return text;
  }

  // Every mesh dim cuts one dim, so the elements that a rank holds, lacks and sends are a product over dims.
  bool price(const std::vector<int64_t>& cutting, HaloPlan& plan) const {
    int64_t item = static_cast<int64_t>(c10::elementSize(request_.source->dtype())), pieces = 1;
    const Shape sizes = other_sizes(mesh_.ranks()[0]);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (std::find(plan.dims.begin(), plan.dims.end(), static_cast<int64_t>(d)) == plan.dims.end()) item *= sizes[d];
    }
    std::vector<std::vector<Counts>> counts;
    for (size_t k = 0; k < plan.dims.size(); ++k) {
      int64_t along = 1;
      counts.push_back(counts_along(k, along));
      pieces *= along;
      if (pieces > kMaxPieces) return false;
    }
    int64_t held = 0, total = 0, ranks = 0;
    std::vector<size_t> at(counts.size(), 0);
    for (;;) {
      Counts all{item, item, item, item};
      for (size_t k = 0; k < counts.size(); ++k) {
        const Counts& c = counts[k][at[k]];
        all = {all.held * c.held, all.shown * c.shown, all.kept * c.kept, all.sent * c.sent};
      }
      plan.bytes = std::max(plan.bytes, all.shown - all.kept);
      plan.bytes_back = std::max(plan.bytes_back, all.sent - all.kept);
      held = std::max(held, all.held + all.shown);
      total += all.shown - all.kept;
      ++ranks;
      size_t k = counts.size();
      while (k > 0 && ++at[k - 1] == counts[k - 1].size()) at[--k] = 0;
      if (k == 0) break;
    }
    const auto cost = cost_model(mesh_.world());
    const uint64_t between_nodes = mesh_.dims_between_nodes(cost->ranks_per_node);
    bool crosses_nodes = false;
    for (const int64_t m : cutting) crosses_nodes |= (between_nodes >> m & 1) != 0;
    plan.peak_bytes = held + (cost->uses_staging_buffers ? plan.bytes + plan.bytes_back : 0);
    if (plan.bytes > 0)
      plan.seconds = cost->collective(Collective::kAllToAll, GroupExtent::of_links(ranks, crosses_nodes),
                                      std::max(plan.bytes, (total + ranks - 1) / ranks));
    return true;
  }

  void add_rank(int64_t rank, HaloPlan& plan) {
    const RankSegments& segments = cached_segments(rank);
    const LocalLayout result = request_.result->layout_of_rank(rank);
    HaloPlan::Rank& r = plan.ranks.emplace_back();
    r.wanted = other_sizes(rank);
    r.filled = true;
    for (size_t k = 0; k < request_.dims.size(); ++k) {
      const HaloDim& d = request_.dims[k];
      const IndexRanges& own = result.dims[d.dim];
      r.wanted[d.dim] = total_size(d.reach ? d.reach(own) : own);
      int64_t shown = 0;
      for (const Segment& w : segments.wanted[k]) shown += w.size;
      r.filled = r.filled && shown == r.wanted[d.dim];
    }
    r.held = segments.held;
  }

  void add_messages_of_owned(HaloPlan& plan) {
    std::vector<int64_t> owned = mesh_.local_ranks();
    std::sort(owned.begin(), owned.end());
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const int64_t rank : owned) {
      for (const int64_t member : plan.group->members[plan.group->group_of[rank]]) {
        if (region_ != nullptr && rank != member) continue;
        pairs.emplace_back(rank, member);
        if (!std::binary_search(owned.begin(), owned.end(), member)) pairs.emplace_back(member, rank);
      }
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [sender, receiver] : pairs) {
      add_messages(request_, sender, receiver, cached_segments(sender), cached_segments(receiver),
                   other_sizes(receiver), plan.messages);
    }
    std::stable_sort(plan.messages.begin(), plan.messages.end(), [](const Message& a, const Message& b) {
      return std::tie(a.sender, a.receiver, a.input) < std::tie(b.sender, b.receiver, b.input);
    });
  }

  const HaloRequest& request_;
  const DeviceMesh& mesh_;
  const GhostRegion* region_;
  absl::flat_hash_map<int64_t, std::unique_ptr<RankSegments>> segments_;
};

}  // namespace

int64_t place_of(const Spec& spec, int64_t dim, int64_t rank) {
  const auto coordinate = spec.mesh().coordinate(rank);
  int64_t place = 0;
  for (const int64_t m : cutting_mesh_dims(spec, {dim})) place = place * spec.mesh().size(m) + coordinate[m];
  return place;
}

std::optional<std::vector<IndexRange>> runs_along(const Spec& spec, int64_t dim) {
  const std::vector<int64_t> mesh_dims = cutting_mesh_dims(spec, {dim});
  Shape coordinate(spec.mesh().ndim(), 0);
  int64_t places = 1;
  for (const int64_t m : mesh_dims) places *= spec.mesh().size(m);
  std::vector<IndexRange> result;
  for (int64_t place = 0; place < places; ++place) {
    int64_t rest = place;
    for (size_t k = mesh_dims.size(); k-- > 0;) {
      coordinate[mesh_dims[k]] = rest % spec.mesh().size(mesh_dims[k]);
      rest /= spec.mesh().size(mesh_dims[k]);
    }
    const LocalLayout part = local_layout(spec.sizes(), spec.mesh().shape(), spec.placements(), coordinate);
    if (part.dims[dim].size() != 1) return std::nullopt;
    result.push_back(part.dims[dim][0]);
  }
  return result;
}

std::shared_ptr<const HaloPlan> make_halo_plan(const HaloRequest& request) {
  return HaloPlanner(request, nullptr).make();
}

std::shared_ptr<const HaloPlan> make_plan_within(const HaloRequest& request, const GhostRegion& region) {
  auto plan = HaloPlanner(request, &region).make();
  return plan && plan->is_local() ? plan : nullptr;
}

}  // namespace dtensor::internal
