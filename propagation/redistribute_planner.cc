#include "propagation/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace dtensor {
namespace {

using Kind = RedistributeStep::Kind;
using Coordinates = absl::InlinedVector<int64_t, 8>;  // some positions along one mesh dim

constexpr int64_t kMaxRanksVisited = int64_t{1} << 14;

// Layouts of one tensor on one mesh, and what a step between two of them costs.
class Pricer {
 public:
  Pricer(const DeviceMesh& mesh, const TensorMeta& meta, const CostModel& cost)
      : mesh_shape_(mesh.shape()), meta_(meta), cost_(cost) {}

  int64_t ndim() const { return static_cast<int64_t>(mesh_shape_.size()); }

  // True if mesh dim m leaves ranks different parts of tensor dim d.
  bool cuts(const Placements& p, int64_t m, int64_t d) const { return mesh_shape_[m] > 1 && p[m].is_sharded_on(d); }

  // True if dropping the cuts on mesh dims `dims` of `cut` leaves every rank a superset of what it has: no mesh dim
  // outside `dims` cuts the same tensor dim later.
  bool innermost(const Placements& cut, const MeshDims& dims) const {
    for (int64_t m : dims) {
      for (int64_t later = m + 1; later < ndim(); ++later) {
        if (cuts(cut, later, cut[m].dim()) && !std::count(dims.begin(), dims.end(), later)) return false;
      }
    }
    return true;
  }

  // The largest part any rank holds: that of the first rank.
  int64_t part_bytes(const Placements& p) const {
    const Shape origin(p.size(), 0);
    int64_t bytes = item_bytes();
    for (int64_t n : local_shape(meta_.sizes, mesh_shape_, p, origin)) bytes *= n;
    return bytes;
  }

  int64_t received_bytes(const Placements& before, const Placements& after) const;

  RedistributeStep step(Kind kind, MeshDims dims, Placements before, Placements after) const;

 private:
  int64_t item_bytes() const { return static_cast<int64_t>(c10::elementSize(meta_.dtype)); }
  MeshDims cutters(const Placements& p, int64_t d) const {
    MeshDims dims;
    for (int64_t m = 0; m < ndim(); ++m) {
      if (cuts(p, m, d)) dims.push_back(m);
    }
    return dims;
  }
  void add_breakpoints(const Placements& p, int64_t d, std::vector<Coordinates>& visit) const;

  const std::vector<int64_t>& mesh_shape_;
  const TensorMeta& meta_;
  const CostModel& cost_;
};

// Along each mesh dim that cuts tensor dim d the size of a part is constant between a few coordinates: adds them to
// `visit`.
void Pricer::add_breakpoints(const Placements& p, int64_t d, std::vector<Coordinates>& visit) const {
  Coordinates sizes = {meta_.sizes[d]};  // every size that the mesh dims so far leave
  for (int64_t m : cutters(p, d)) {
    Coordinates next;
    for (int64_t size : sizes) {
      // A StridedShard is a chunk of each of `pieces` pieces of equal size, and one of a shorter last piece.
      const int64_t piece = p[m].is_strided_shard() ? chunk(size, p[m].split_factor(), 0).size : size;
      const int64_t pieces = piece > 0 ? size / piece : 0;
      const int64_t last = size - pieces * piece;
      Coordinates starts = {0};
      for (int64_t n : {piece, last}) {
        const int64_t each = chunk(n, mesh_shape_[m], 0).size;
        if (each == 0) continue;
        starts.push_back(n / each);      // the shorter chunk
        starts.push_back(n / each + 1);  // the first empty one
      }
      for (int64_t i : starts) {
        if (i >= mesh_shape_[m]) continue;
        visit[m].push_back(i);
        next.push_back(pieces * chunk(piece, mesh_shape_[m], i).size + chunk(last, mesh_shape_[m], i).size);
      }
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    sizes = std::move(next);
  }
}

// Every element of a rank's new part that is not in its old one is received exactly once. The largest of all ranks,
// without visiting them all: mesh dims whose cuts do not change are largest at coordinate 0; where a tensor dim is only
// cut further or less far, the numbers change at breakpoints only; elsewhere every coordinate is visited.
int64_t Pricer::received_bytes(const Placements& before, const Placements& after) const {
  std::vector<Coordinates> visit(ndim(), {0});
  for (int64_t d = 0; d < static_cast<int64_t>(meta_.sizes.size()); ++d) {
    const MeshDims old_cutters = cutters(before, d);
    const MeshDims new_cutters = cutters(after, d);
    const size_t common = std::min(old_cutters.size(), new_cutters.size());
    bool nested = true;
    for (size_t i = 0; i < common; ++i) {
      nested &= old_cutters[i] == new_cutters[i] && before[old_cutters[i]] == after[old_cutters[i]];
    }
    if (nested && old_cutters.size() == new_cutters.size()) continue;
    if (nested) {
      add_breakpoints(old_cutters.size() > common ? before : after, d, visit);
      continue;
    }
    for (const MeshDims& dims : {old_cutters, new_cutters}) {
      for (int64_t m : dims) {
        visit[m].clear();
        for (int64_t i = 0; i < mesh_shape_[m]; ++i) visit[m].push_back(i);
      }
    }
  }

  int64_t ranks = 1;
  for (Coordinates& c : visit) {
    std::sort(c.begin(), c.end());
    c.erase(std::unique(c.begin(), c.end()), c.end());
    ranks *= static_cast<int64_t>(c.size());
  }
  if (ranks > kMaxRanksVisited) {
    for (Coordinates& c : visit) {
      const size_t stride = c.size() / 16 + 1;
      Coordinates some;
      for (size_t i = 0; i < c.size(); ++i) {
        if (i % stride == 0 || i + 1 == c.size()) some.push_back(c[i]);
      }
      c = std::move(some);
    }
  }

  int64_t most = 0;
  std::vector<size_t> index(ndim(), 0);
  Shape coordinate(ndim(), 0);
  for (bool done = false; !done;) {
    for (int64_t m = 0; m < ndim(); ++m) coordinate[m] = visit[m][index[m]];
    const LocalLayout target = local_layout(meta_.sizes, mesh_shape_, after, coordinate);
    int64_t numel = 1;
    for (const Runs& runs : target.dims) numel *= total_size(runs);
    if (numel > most) {  // else it cannot receive more
      numel -= overlap_numel(local_layout(meta_.sizes, mesh_shape_, before, coordinate), target);
      most = std::max(most, numel);
    }
    done = true;
    for (int64_t m = ndim(); m-- > 0;) {
      if (++index[m] < visit[m].size()) {
        done = false;
        break;
      }
      index[m] = 0;
    }
  }
  return most * item_bytes();
}

RedistributeStep Pricer::step(Kind kind, MeshDims dims, Placements before, Placements after) const {
  RedistributeStep s;
  s.kind = kind;
  s.before = std::move(before);
  s.after = std::move(after);
  int64_t group = 1;
  for (int64_t m : dims) group *= mesh_shape_[m];
  const int64_t in = part_bytes(s.before);
  const int64_t out = part_bytes(s.after);
  int64_t staging = 0;
  switch (kind) {
    case Kind::kSlice:
      s.seconds = cost_.copy(out);
      break;
    case Kind::kFill:
      s.op = s.after[dims[0]].reduce_op();
      s.seconds = cost_.copy(out);
      break;
    case Kind::kAllReduce:
      s.op = s.before[dims[0]].reduce_op();
      s.bytes = 2 * in * (group - 1) / group;
      break;
    case Kind::kReduceScatter:
      s.op = s.before[dims[0]].reduce_op();
      s.tensor_dim = s.after[dims[0]].dim();
      s.bytes = in * (group - 1) / group;
      s.seconds = cost_.copy(in);
      break;
    case Kind::kAllGather:
      s.tensor_dim = s.before[dims[0]].dim();
      s.bytes = received_bytes(s.before, s.after);
      s.seconds = cost_.copy(out);
      staging = s.bytes;
      break;
    case Kind::kAllToAll:
      s.bytes = received_bytes(s.before, s.after);
      if (s.bytes == 0) {  // every rank has already what it needs
        s.kind = Kind::kSlice;
        s.seconds = cost_.copy(out);
        break;
      }
      s.seconds = cost_.copy(in + out);
      staging = s.bytes;
      break;
  }
  if (!s.is_local()) s.seconds += cost_.collective(s.collective(), group, s.bytes);
  s.dims = std::move(dims);
  s.peak_bytes = in + out + staging;
  return s;
}

class Search {
 public:
  Search(const Pricer& pricer, Placements from, Placements to)
      : pricer_(pricer), from_(std::move(from)), to_(std::move(to)) {}

  std::vector<RedistributeStep> shortest_path() const;

 private:
  // Compared in this order; the path is one number per step, of its kind and mesh dims.
  struct Length {
    int64_t picoseconds = 0;  // whole numbers: sums do not depend on the order
    int64_t collectives = 0;
    std::vector<uint64_t> path;
    friend bool operator<(const Length& a, const Length& b) {
      return std::make_tuple(a.picoseconds, a.collectives, a.path.size(), std::cref(a.path)) <
             std::make_tuple(b.picoseconds, b.collectives, b.path.size(), std::cref(b.path));
    }
  };
  struct Node {
    Placements state;
    Length length;
    bool done = false;
    const Node* previous = nullptr;
    RedistributeStep step;  // from previous to here
  };

  // Two bits per mesh dim: as in `to`, as in `from`, or replicated.
  uint64_t code(const Placements& state) const {
    uint64_t code = 0;
    for (size_t m = 0; m < state.size(); ++m) {
      code = code * 4 + (state[m] == to_[m] ? 0 : state[m] == from_[m] ? 1 : 2);
    }
    return code;
  }

  static Length extend(const Length& length, const RedistributeStep& step) {
    Length longer = length;
    longer.picoseconds += std::llround(step.seconds * 1e12);
    longer.collectives += step.is_local() ? 0 : 1;
    uint64_t dims = 0;
    for (int64_t m : step.dims) dims |= uint64_t{1} << m;
    longer.path.push_back(static_cast<uint64_t>(step.kind) << 32 | dims);
    return longer;
  }

  std::vector<RedistributeStep> edges(const Placements& state) const;
  // One step of `kind` per set of mesh dims out of `dims`, where `becomes` gives the new placement.
  template <typename Becomes>
  void add_subsets(Kind kind, const Placements& state, const MeshDims& dims, Becomes becomes,
                   std::vector<RedistributeStep>& out) const;
  void add_overlay(const Placements& state, std::vector<RedistributeStep>& out) const;

  const Pricer& pricer_;
  const Placements from_;
  const Placements to_;
};

template <typename Becomes>
void Search::add_subsets(Kind kind, const Placements& state, const MeshDims& dims, Becomes becomes,
                         std::vector<RedistributeStep>& out) const {
  const size_t n = dims.size();
  if (n == 0) return;
  const uint64_t all = (uint64_t{1} << n) - 1;
  for (uint64_t set = 1; set <= all; ++set) {
    // On meshes of many dims only single ones and all at once.
    if (n > 4 && set != all && (set & (set - 1)) != 0) continue;
    MeshDims chosen;
    Placements after = state;
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) == 0) continue;
      chosen.push_back(dims[i]);
      after[dims[i]] = becomes(dims[i]);
    }
    const bool nested = kind == Kind::kAllGather   ? pricer_.innermost(state, chosen)
                        : kind == Kind::kAllReduce ? true
                                                   : pricer_.innermost(after, chosen);
    if (nested) out.push_back(pricer_.step(kind, std::move(chosen), state, std::move(after)));
  }
}

// Everything that can go at once without touching what is Partial, directly between the two parts of each rank.
// Concerned are the mesh dims that change, and those that cut a tensor dim after one that changes its cut. Where one of
// them was not cut before, every rank finds all it needs at its own coordinate, so ranks talk along the others only.
void Search::add_overlay(const Placements& state, std::vector<RedistributeStep>& out) const {
  const int64_t ndim = pricer_.ndim();
  Placements after = state;
  MeshDims concerned;
  MeshDims dims;
  for (int64_t m = 0; m < ndim; ++m) {
    if (!state[m].is_partial()) after[m] = to_[m].is_partial() ? Replicate() : to_[m];
    bool is_concerned = after[m] != state[m];
    for (int64_t earlier : concerned) {
      for (const Placement& cut : {state[earlier], after[earlier]}) {
        is_concerned |= state[earlier] != after[earlier] && cut.is_sharded() &&
                        (pricer_.cuts(state, m, cut.dim()) || pricer_.cuts(after, m, cut.dim()));
      }
    }
    if (is_concerned) concerned.push_back(m);
    if (is_concerned && state[m].is_sharded()) dims.push_back(m);
  }
  if (dims.empty()) return;  // a slice
  out.push_back(pricer_.step(Kind::kAllToAll, std::move(dims), state, std::move(after)));
}

std::vector<RedistributeStep> Search::edges(const Placements& state) const {
  std::vector<RedistributeStep> out;
  MeshDims slices, gathers, fills;
  std::map<ReduceOp, MeshDims> reduces, scatters;
  bool only_fills_left = true;
  for (int64_t m = 0; m < pricer_.ndim(); ++m) {
    if (state[m] == to_[m]) continue;
    if (state[m].is_sharded()) gathers.push_back(m);
    only_fills_left &= state[m].is_replicate() && to_[m].is_partial();
    if (state[m].is_replicate() && to_[m].is_sharded()) slices.push_back(m);
    if (state[m].is_replicate() && to_[m].is_partial()) fills.push_back(m);
    if (state[m].is_partial()) {
      reduces[state[m].reduce_op()].push_back(m);
      if (to_[m].is_sharded()) scatters[state[m].reduce_op()].push_back(m);
    }
  }
  const auto replicate = [](int64_t) { return Replicate(); };
  const auto target = [&](int64_t m) { return to_[m]; };
  add_subsets(Kind::kSlice, state, slices, target, out);
  add_subsets(Kind::kAllGather, state, gathers, replicate, out);
  for (const auto& [op, dims] : reduces) add_subsets(Kind::kAllReduce, state, dims, replicate, out);
  for (const auto& [op, dims] : scatters) add_subsets(Kind::kReduceScatter, state, dims, target, out);
  add_overlay(state, out);
  if (only_fills_left && !fills.empty()) {
    const ReduceOp op = to_[fills[0]].reduce_op();
    MeshDims dims;
    Placements after = state;
    for (int64_t m : fills) {
      if (to_[m].reduce_op() != op) continue;
      dims.push_back(m);
      after[m] = to_[m];
    }
    out.push_back(pricer_.step(Kind::kFill, std::move(dims), state, std::move(after)));
  }
  return out;
}

std::vector<RedistributeStep> Search::shortest_path() const {
  std::map<uint64_t, Node> nodes;  // nodes stay where they are
  nodes[code(from_)].state = from_;
  for (;;) {
    Node* nearest = nullptr;
    for (auto& [code, node] : nodes) {
      if (!node.done && (nearest == nullptr || node.length < nearest->length)) nearest = &node;
    }
    TORCH_INTERNAL_ASSERT(nearest != nullptr, "[redistribute] no way from ", to_string(from_), " to ", to_string(to_));
    nearest->done = true;
    if (nearest->state == to_) {
      std::vector<RedistributeStep> steps;
      for (const Node* node = nearest; node->previous != nullptr; node = node->previous) steps.push_back(node->step);
      std::reverse(steps.begin(), steps.end());
      return steps;
    }
    for (RedistributeStep& step : edges(nearest->state)) {
      Length length = extend(nearest->length, step);
      auto [it, is_new] = nodes.try_emplace(code(step.after));
      Node& node = it->second;
      if (!is_new && (node.done || !(length < node.length))) continue;
      node.state = step.after;
      node.length = std::move(length);
      node.previous = nearest;
      node.step = std::move(step);
    }
  }
}

// `from` after the changes that cost nothing.
Placements relabelled(const DeviceMesh& mesh, Placements from, const Placements& to) {
  for (size_t m = 0; m < from.size(); ++m) {
    const bool valid_addends = from[m].is_mask_partial() && to[m] == Partial(from[m].reduce_op());
    if (mesh.shape()[m] == 1 || valid_addends) from[m] = to[m];
  }
  return from;
}

// Plans of one world, by what they depend on. Two generations: when the young one is full it becomes the old one, and
// the old one goes; whatever is used meanwhile is young again.
class PlanMemo {
 public:
  using PlanPtr = std::shared_ptr<const RedistributePlan>;
  using Key = std::pair<uint64_t, Placements>;  // spec id, target

  PlanPtr find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto it = young_.find(key); it != young_.end()) return it->second;
    auto it = old_.find(key);
    if (it == old_.end()) return nullptr;
    PlanPtr plan = it->second;
    put(key, plan);
    return plan;
  }

  void insert(const Key& key, PlanPtr plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    put(key, std::move(plan));
  }

 private:
  static constexpr size_t kGeneration = 2048;
  using Map = absl::flat_hash_map<Key, PlanPtr>;

  void put(const Key& key, PlanPtr plan) {
    if (young_.size() >= kGeneration) old_ = std::exchange(young_, Map());
    young_[key] = std::move(plan);
  }

  std::mutex mutex_;
  Map young_, old_;
};

}  // namespace

RedistributePlan plan_redistribution(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                     const Placements& to, const CostModel& cost) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(from.size()) == mesh.ndim() && from.size() == to.size(),
                    "[redistribute] from ", to_string(from), " to ", to_string(to), " on ", mesh.to_string(),
                    ": give one placement per mesh dim");
  const Pricer pricer(mesh, meta, cost);
  RedistributePlan plan;
  plan.from = from;
  plan.to = to;
  const Placements start = relabelled(mesh, from, to);
  if (start != to && meta.numel() == 0) {
    MeshDims dims;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (start[m] != to[m]) dims.push_back(m);
    }
    plan.steps.push_back(pricer.step(Kind::kSlice, std::move(dims), start, to));
  } else if (start != to) {
    plan.steps = Search(pricer, start, to).shortest_path();
  }
  plan.peak_bytes = plan.steps.empty() ? pricer.part_bytes(to) : 0;
  for (const RedistributeStep& step : plan.steps) {
    plan.bytes += step.bytes;
    plan.seconds += step.seconds;
    plan.peak_bytes = std::max(plan.peak_bytes, step.peak_bytes);
  }
  return plan;
}

std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const Placements& to) {
  auto target = normalize_placements(to, from->ndim());
  TORCH_CHECK_VALUE(target.ok(), "[redistribute] ", to_string(to), " does not fit ", from->to_string(), ": ",
                    std::string(target.status().message()));
  PlanMemo& memo = from->mesh().world().attachment<PlanMemo>();
  const PlanMemo::Key key(from->id(), *std::move(target));
  if (auto plan = memo.find(key)) return plan;
  auto plan = std::make_shared<const RedistributePlan>(
      plan_redistribution(from->mesh(), from->meta(), from->placements(), key.second));
  memo.insert(key, plan);
  return plan;
}

}  // namespace dtensor
