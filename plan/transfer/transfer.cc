#include "plan/transfer/transfer.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "plan/transfer/part_index.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kMaxPairs = int64_t{1} << 18;

int64_t item_bytes(const TensorMeta& meta) { return static_cast<int64_t>(c10::elementSize(meta.dtype)); }

// `wanted(sender, receiver)`: whether to list that pair's messages. nullopt if there are more than `most`.
template <typename Wanted>
std::optional<std::vector<Message>> messages_between(const TensorMeta& meta, const Layout& before, const Layout& after,
                                                     size_t most, Wanted wanted) {
  std::vector<Message> messages;
  Sources sources(meta, before);
  PartsByRank all_parts(meta, after);
  const std::vector<int64_t> receivers = after.ranks();
  for (size_t position = 0; position < receivers.size(); ++position) {
    const int64_t receiver = receivers[position];
    const auto& parts = all_parts.of(receiver);
    for (size_t o = 0; o < parts.size(); ++o) {
      sources.of(receiver, static_cast<int64_t>(position), parts[o], [&](const PartIndex::Entry& source) {
        if (!wanted(source.rank, receiver)) return true;
        for (Block& block : overlap(*source.part, parts[o])) {
          messages.push_back({source.rank, receiver, source.number, static_cast<int64_t>(o), std::move(block)});
        }
        return messages.size() <= most;
      });
      if (messages.size() > most) return std::nullopt;
    }
  }
  std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver, a.input, a.output) < std::tie(b.sender, b.receiver, b.input, b.output);
  });
  return messages;
}

}  // namespace

std::vector<Message> transfer_messages(const TensorMeta& meta, const Layout& before, const Layout& after) {
  const std::vector<int64_t>& owned = before.world().owned_ranks();
  const absl::flat_hash_set<int64_t> is_owned(owned.begin(), owned.end());
  if (owned.empty()) return {};
  const auto is_ours = [&](int64_t sender, int64_t receiver) {
    return is_owned.contains(sender) || is_owned.contains(receiver);
  };
  return *messages_between(meta, before, after, std::numeric_limits<size_t>::max(), is_ours);
}

std::optional<std::vector<Message>> messages_between_ranks(const TensorMeta& meta, const Layout& before,
                                                           const Layout& after) {
  return messages_between(meta, before, after, kMaxPairs,
                          [](int64_t sender, int64_t receiver) { return sender != receiver; });
}

Traffic traffic_of(const TensorMeta& meta, const Layout& before, const Layout& after) {
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
    for (const LocalLayout& part : old_parts) r.in += part.numel() * item;
    for (const LocalLayout& part : new_parts) {
      r.out += part.numel() * item;
      for (const LocalLayout& old : old_parts) r.kept += overlap_numel(old, part) * item;
    }
    bool same = old_parts.size() == new_parts.size();
    for (size_t i = 0; same && i < old_parts.size(); ++i) {
      same = old_parts[i].dims == new_parts[i].dims ||
             (old_parts[i].empty() && new_parts[i].empty() && old_parts[i].sizes() == new_parts[i].sizes());
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

int64_t packed_bytes(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& t) {
  absl::flat_hash_map<int64_t, int64_t> wanted;  // of each rank, by all, including itself
  Sources sources(meta, before);
  if (sources.num_copies() == 1 && !after.is_boxes()) {  // the number of copies in the target
    int64_t times = 1;
    for (int64_t m = 0; m < after.mesh().ndim(); ++m)
      times *= after.placements()[m].is_sharded() ? 1 : after.mesh().size(m);
    for (const Traffic::Rank& r : t.ranks) wanted[r.rank] = times * r.in;
  } else {
    PartsByRank parts(meta, after);
    const std::vector<int64_t> receivers = after.ranks();
    int64_t pairs = 0;
    for (size_t position = 0; position < receivers.size() && pairs <= kMaxPairs; ++position) {
      for (const LocalLayout& part : parts.of(receivers[position])) {
        sources.of(receivers[position], static_cast<int64_t>(position), part, [&](const PartIndex::Entry& source) {
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

void check_layout(const TensorMeta& meta, const Layout& layout, const char* name, bool is_source) {
  if (!layout.is_boxes()) {
    TORCH_CHECK_VALUE(layout.mesh().defined(), "[redistribute] `", name, "` has neither a mesh nor boxes");
    TORCH_CHECK_VALUE(layout.mesh().num_copies() == 1, "[redistribute] `", name, "` is on ", layout.mesh().to_string(),
                      ", a slice of a larger mesh that stands for ", layout.mesh().num_copies(),
                      " submeshes, each with a tensor of its own; give the mesh of one of them");
    TORCH_CHECK_VALUE(static_cast<int64_t>(layout.placements().size()) == layout.mesh().ndim(), "[redistribute] `",
                      name, "` has ", layout.placements().size(), " placements for ", layout.mesh().to_string(),
                      ": give one per mesh dim");
    return;
  }
  const auto& boxes = layout.boxes();
  const auto describe = [&](size_t i) {
    return c10::str("box ", i, " (rank ", boxes[i].rank, ", offsets ",
                    c10::IntArrayRef(boxes[i].offsets.data(), boxes[i].offsets.size()), ", sizes ",
                    c10::IntArrayRef(boxes[i].sizes.data(), boxes[i].sizes.size()), ")");
  };
  for (size_t i = 0; i < boxes.size(); ++i) {
    TORCH_CHECK_VALUE(boxes[i].rank >= 0 && boxes[i].rank < layout.world().size(), "[redistribute] `", name,
                      "`: ", describe(i), ": ", layout.world().name(), " has ranks 0..", layout.world().size() - 1);
    TORCH_CHECK_VALUE(boxes[i].offsets.size() == meta.sizes.size() && boxes[i].sizes.size() == meta.sizes.size(),
                      "[redistribute] `", name, "`: ", describe(i), " must have ", meta.sizes.size(),
                      " offsets and sizes, as ", to_string(meta), " has dims");
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      TORCH_CHECK_VALUE(boxes[i].offsets[d] >= 0 && boxes[i].sizes[d] >= 0 &&
                            boxes[i].sizes[d] <= meta.sizes[d] - boxes[i].offsets[d],
                        "[redistribute] `", name, "`: ", describe(i), " leaves ", to_string(meta), " on dim ", d);
    }
  }
  if (!is_source) return;
  std::vector<LocalLayout> parts(boxes.size());
  std::vector<PartIndex::Entry> entries;
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      IndexRanges& runs = parts[i].dims.emplace_back();
      if (boxes[i].sizes[d] > 0) runs.push_back({boxes[i].offsets[d], boxes[i].sizes[d]});
    }
    entries.push_back({boxes[i].rank, static_cast<int64_t>(i), &parts[i]});
  }
  const PartIndex index(std::move(entries));
  for (size_t i = 0; i < boxes.size(); ++i) {
    auto first = static_cast<int64_t>(i);  // that overlaps it
    index.meet(parts[i], [&](const PartIndex::Entry& other) {
      first = std::min(first, other.number);
      return true;
    });
    TORCH_CHECK_VALUE(first == static_cast<int64_t>(i), "[redistribute] `", name, "`: ", describe(i), " overlaps ",
                      describe(first), "; of what two ranks hold it is not said whose value counts");
  }
}

void check_covered(const TensorMeta& meta, const Layout& from, const Layout& to) {
  if (!from.is_boxes()) return;
  Sources sources(meta, from);
  PartsByRank parts(meta, to);
  for (int64_t rank : to.ranks()) {
    for (const LocalLayout& part : parts.of(rank)) {
      int64_t found = 0;
      sources.of(rank, 0, part, [&](const PartIndex::Entry& source) {
        found += overlap_numel(*source.part, part);
        return true;
      });
      TORCH_CHECK_VALUE(found == part.numel(), "[redistribute] rank ", rank, " needs ", part.numel(), " elements of ",
                        to_string(meta), " as `to` says, but the boxes of `from` hold ", found, " of them");
    }
  }
}

}  // namespace dtensor::internal
