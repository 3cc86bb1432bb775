#include "dtensor/views/write_back_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/view_window.h"
#include "mesh/memory_meter.h"
#include "plan/cost_model.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"

namespace dtensor::internal {
namespace {

using ExchangePtr = std::shared_ptr<const StoreExchange>;
using Key = std::vector<int64_t>;

constexpr int64_t kMaxBlocks = 512;              // in one rank's part
constexpr int64_t kMaxPairs = int64_t{1} << 18;  // of ranks whose messages are counted

// ------------------------------------------------------------ parts

int64_t num_boxes(const LocalLayout& part) {
  int64_t boxes = 1;
  for (const IndexRanges& runs : part.dims) boxes = std::min(boxes * static_cast<int64_t>(runs.size()), kMaxBlocks + 1);
  return boxes;
}

IndexRanges united(IndexRanges runs, const IndexRanges& more) {
  runs.append(more.begin(), more.end());
  std::sort(runs.begin(), runs.end(), [](const IndexRange& a, const IndexRange& b) { return a.begin < b.begin; });
  IndexRanges result;
  for (const IndexRange& run : runs) {
    if (result.empty() || result.back().begin + result.back().size < run.begin) {
      result.push_back(run);
      continue;
    }
    IndexRange& last = result.back();
    last.size = std::max(last.begin + last.size, run.begin + run.size) - last.begin;
  }
  return result;
}

// The smallest part that has all of both.
void widen(std::optional<LocalLayout>& part, std::optional<LocalLayout> more) {
  if (!part || !more) {
    if (more) part = std::move(more);
    return;
  }
  for (size_t d = 0; d < part->dims.size(); ++d) {
    part->dims[d] = united(std::move(part->dims[d]), more->dims[d]);
    part->offsets[d] = part->dims[d][0].begin;
  }
}

// The block of `part` that lies in a tensor of size `sizes` at `from`.
LocalLayout block_of(const LocalLayout& part, const Shape& from, const Shape& sizes) {
  LocalLayout block;
  for (size_t d = 0; d < part.dims.size(); ++d) {
    IndexRanges& runs = block.dims.emplace_back();
    int64_t place = 0;
    for (const IndexRange& run : part.dims[d]) {
      const int64_t first = std::max(from[d], place), last = std::min(from[d] + sizes[d], place + run.size);
      if (first < last) runs.push_back({run.begin + first - place, last - first});
      place += run.size;
    }
    block.offsets.push_back(runs[0].begin);
  }
  return block;
}

Window placed_window(const PlacedSpec& t) { return window_of(*t.spec, t.offset); }

// ------------------------------------------------------------ planning

class StorePlanner {
 public:
  StorePlanner(const StoreRequest& request, std::vector<int64_t> dims)
      : request_(request),
        spec_(*request.written.spec),
        mesh_(spec_.mesh()),
        dims_(std::move(dims)),
        group_(mesh_.group(dims_)),
        slots_(mesh_.ranks(), mesh_.world().size()) {}

  // Null if the stored elements are not a product over the view's dims, or consist of too many pieces.
  std::shared_ptr<const StoreExchange> make() {
    if (!find_parts()) return nullptr;
    auto exchange = std::make_shared<StoreExchange>();
    exchange->written = request_.written.spec;
    exchange->offset = request_.written.offset;
    exchange->group = &group_;
    price(*exchange);
    add_messages_of_owned(*exchange);
    return exchange;
  }

 private:
  bool find_parts() {
    const Window view = placed_window(request_.written);
    std::vector<Window> bases;
    std::vector<DimMap> maps;
    for (const PlacedSpec& base : request_.bases) {
      bases.push_back(placed_window(base));
      auto map = map_dims(view, bases.back());
      if (!map) return false;
      maps.push_back(*std::move(map));
    }
    for (const int64_t rank : mesh_.ranks()) {
      held_.push_back(spec_.layout_of_rank(rank));
      std::optional<LocalLayout>& wanted = wanted_.emplace_back();
      for (size_t k = 0; k < bases.size(); ++k) {
        const auto& [spec, offset, around] = request_.bases[k];
        widen(wanted, stored_part(view, bases[k], maps[k], spec->layout_of_rank(rank)));
        if (around) widen(wanted, stored_part(view, bases[k], maps[k], box_of_rank(*around, *spec, rank)));
      }
      if (wanted && num_boxes(*wanted) * num_boxes(held_.back()) > kMaxBlocks) return false;
    }
    return true;
  }

  const std::vector<int64_t>& peers(int64_t rank) const { return group_.members[group_.group_of[rank]]; }

  // Elements of one rank's part that the other one stores.
  int64_t sent(int64_t sender, int64_t receiver) const {
    const auto& wanted = wanted_[slots_[receiver]];
    return wanted && sender != receiver ? overlap_numel(held_[slots_[sender]], *wanted) : 0;
  }

  void price(StoreExchange& exchange) const {
    const auto item = static_cast<int64_t>(c10::elementSize(spec_.dtype()));
    const auto ranks = static_cast<int64_t>(mesh_.ranks().size());
    int64_t total = 0, most_sent = 0;
    for (size_t i = 0; i < wanted_.size(); ++i) {
      if (!wanted_[i]) continue;
      const int64_t lacking = (wanted_[i]->numel() - overlap_numel(held_[i], *wanted_[i])) * item;
      exchange.bytes = std::max(exchange.bytes, lacking);
      total += lacking;
    }
    if (exchange.bytes == 0) return;
    const bool few = ranks * group_.size <= kMaxPairs;
    for (const int64_t rank : few ? mesh_.ranks() : std::vector<int64_t>()) {
      int64_t of_rank = 0;
      for (const int64_t peer : peers(rank)) of_rank += sent(rank, peer) * item;
      most_sent = std::max(most_sent, of_rank);
    }
    if (!few) most_sent = std::max(exchange.bytes, (total + ranks - 1) / ranks);
    const auto cost = cost_model(mesh_.world());
    const uint64_t between_nodes = mesh_.dims_between_nodes(cost->ranks_per_node);
    bool crosses_nodes = false;
    for (const int64_t m : dims_) crosses_nodes |= (between_nodes >> m & 1) != 0;
    exchange.buffer_bytes = exchange.bytes + (cost->uses_staging_buffers ? exchange.bytes + most_sent : 0);
    exchange.seconds = cost->collective(Collective::kAllToAll, GroupExtent::of_links(group_.size, crosses_nodes),
                                        std::max(exchange.bytes, most_sent));
  }

  void add_messages_of_owned(StoreExchange& exchange) const {
    const RankSlots owned(mesh_.local_ranks(), mesh_.world().size());
    exchange.received.resize(mesh_.local_ranks().size());
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const int64_t rank : mesh_.local_ranks()) {
      for (const int64_t peer : peers(rank)) {
        if (peer == rank) continue;
        pairs.emplace_back(rank, peer);
        if (owned[peer] < 0) pairs.emplace_back(peer, rank);
      }
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [sender, receiver] : pairs) {
      const auto& wanted = wanted_[slots_[receiver]];
      if (!wanted) continue;
      for (Block& block : overlap(held_[slots_[sender]], *wanted)) {
        Message& m = exchange.messages.emplace_back(Message{sender, receiver, 0, 0, std::move(block)});
        if (const int64_t slot = owned[receiver]; slot >= 0) {
          m.output = static_cast<int64_t>(exchange.received[slot].size());
          exchange.received[slot].push_back(block_of(*wanted, m.block.to, m.block.sizes));
        }
        m.block.to.assign(m.block.to.size(), 0);
      }
    }
  }

  const StoreRequest& request_;
  const Spec& spec_;
  const DeviceMesh& mesh_;
  const std::vector<int64_t> dims_;
  const RankGroups& group_;
  const RankSlots slots_;
  std::vector<LocalLayout> held_;                   // of the view, by position in mesh.ranks()
  std::vector<std::optional<LocalLayout>> wanted_;  // likewise
};

// Infinity where no route stays within the limits.
double seconds_by_layouts(c10::ArrayRef<SpecPtr> way, const Limits& limits) {
  double seconds = 0;
  for (size_t k = 1; k < way.size(); ++k) {
    seconds += seconds_to_move(way[k - 1], way[k]->placements(), limits);
  }
  return seconds;
}

// Whether ranks keep ghost regions. `m`: along a dim that this mesh dim cuts.
bool any_around(const StoreRequest& request, std::optional<int64_t> m = std::nullopt) {
  const auto along = [&](const GhostRegion::Dim& wider) {
    return !m || std::find(wider.cut_by.begin(), wider.cut_by.end(), *m) != wider.cut_by.end();
  };
  return std::any_of(request.bases.begin(), request.bases.end(), [&](const PlacedSpec& base) {
    return base.around && std::any_of(base.around->dims.begin(), base.around->dims.end(), along);
  });
}

ExchangePtr make_exchange(const StoreRequest& request, const Limits& limits) {
  const Spec& written = *request.written.spec;
  if (written.has_partial()) return nullptr;
  for (const PlacedSpec& base : request.bases) {
    if (base.spec->has_partial() || base.spec->dtype() != written.dtype()) return nullptr;
  }
  std::vector<int64_t> dims;
  const Placements& last = request.by_layouts.back()->placements();
  for (int64_t m = 0; m < written.mesh().ndim(); ++m) {
    const bool kept = written.placements()[m].is_sharded() && any_around(request, m);
    if (written.mesh().size(m) > 1 && (kept || written.placements()[m] != last[m])) dims.push_back(m);
  }
  if (dims.empty()) {
    if (!any_around(request)) return nullptr;
    auto nothing = std::make_shared<StoreExchange>();  // every rank has all of the view
    nothing->written = request.written.spec;
    return nothing;
  }
  auto exchange = StorePlanner(request, std::move(dims)).make();
  if (!exchange || written.max_local_bytes() > limits.max_bytes - exchange->buffer_bytes) return nullptr;
  return exchange->seconds <= seconds_by_layouts(request.by_layouts, limits) ? exchange : nullptr;
}

// ------------------------------------------------------------ remembering

// By the tensors' specs and offsets, and limits. Null: there is none.
struct StoreMemo : Memo<Key, ExchangePtr, 512> {};

}  // namespace

std::shared_ptr<const StoreExchange> cached_store_exchange(const StoreRequest& request, const Limits& limits) {
  if (request.by_layouts.front() == request.by_layouts.back() && !any_around(request)) return nullptr;  // nothing moves
  Key key{limits.max_bytes, static_cast<int64_t>(request.by_layouts.back()->id())};
  const auto append = [&](const PlacedSpec& t) {
    key.push_back(static_cast<int64_t>(t.spec->id()));
    key.push_back(t.offset);
    if (!t.around) return;
    for (const auto& [dim, cut_by, known] : t.around->dims) {
      key.push_back(-1 - dim);  // distinct from ids, offsets and sizes
      for (const IndexRange& run : known) key.insert(key.end(), {run.begin, run.size});
    }
  };
  append(request.written);
  for (const PlacedSpec& base : request.bases) append(base);
  StoreMemo& memo = request.written.spec->mesh().world().attachment<StoreMemo>();
  if (auto known = memo.find(key)) return *known;
  ExchangePtr exchange = make_exchange(request, limits);
  std::vector<SpecPtr> specs = {request.by_layouts.back(), request.written.spec};
  for (const PlacedSpec& base : request.bases) specs.push_back(base.spec);
  memo.insert(std::move(key), exchange, std::move(specs));
  return exchange;
}

// ------------------------------------------------------------ running

HeldPieces whole_parts(const Spec& spec, RankTensors locals) {
  HeldPieces pieces(locals.size());
  for (size_t i = 0; i < locals.size(); ++i)
    pieces[i].push_back({spec.local_layout(static_cast<int64_t>(i)), std::move(locals[i])});
  return pieces;
}

RankTensors as_locals(HeldPieces pieces) {
  RankTensors locals;
  for (auto& of_rank : pieces) locals.push_back(std::move(of_rank[0].values));
  return locals;
}

void fetch_stored(const StoreExchange& exchange, const CommCause& cause, HeldPieces& pieces) {
  if (exchange.bytes == 0) return;
  LocalGuard guard;
  const Spec& spec = *exchange.written;
  const World& world = spec.mesh().world();
  RankPieces inputs(pieces.size()), outputs(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    inputs[i].push_back(pieces[i][0].values);
    for (const LocalLayout& part : exchange.received[i]) {
      const Shape sizes = part.sizes();
      outputs[i].push_back(at::empty({sizes.data(), sizes.size()}, inputs[i][0].options()));
      pieces[i].push_back({part, outputs[i].back()});
    }
  }
  CommCall call;
  call.group = exchange.group;
  call.ranks = spec.mesh().local_ranks();
  call.event.cause = cause;
  call.event.bytes = exchange.bytes;
  call.event.dtype = spec.dtype();
  if (world.has_data() || has_listeners()) {
    call.event.layout_change = std::make_shared<const LayoutChange>(
        spec.dtype(), spec.sizes(), LayoutChange::Side{spec.placements(), spec.mesh().to_string()},
        LayoutChange::Side{std::nullopt, absl::StrCat("what ranks store of it, at element ", exchange.offset,
                                                      " with strides [", absl::StrJoin(spec.strides(), ", "), "]")});
  }
  world.communicator().exchange(call, Collective::kAllToAll, exchange.messages, inputs, outputs);
  world.memory().touch(exchange.buffer_bytes);
}

}  // namespace dtensor::internal
