#include "ops/stencil/slice_history.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/step_decider.h"
#include "ops/halo/cut_runs.h"
#include "plan/cost_policy.h"
#include "plan/redistribute_plan.h"

namespace dtensor {
namespace {

constexpr size_t kMostTensors = 4;   // that a kind remembers
constexpr size_t kMostWindows = 32;  // of a tensor; further reads are fetched one by one
constexpr size_t kMostKinds = 16;    // of a layout
constexpr size_t kMostLayouts = 256;
constexpr int64_t kMostGuessedBytes = int64_t{4} << 20;  // that are prefetched for the first window of its kind

using Windows = std::vector<SliceWindowPtr>;
// Per dim of SliceWindow::cut, the indices that ranks need, at least their own parts.
using Known = std::vector<std::vector<Run>>;

// There may be several equal windows, since those in the cache may be evicted.
bool is_same(const SliceWindow& a, const SliceWindow& b) {
  return a.root == b.root && a.view == b.view && a.map.start == b.map.start && a.map.step == b.map.step;
}

bool is_among(const Windows& windows, const SliceWindow& window) {
  return std::any_of(windows.begin(), windows.end(), [&](const SliceWindowPtr& w) { return is_same(*w, window); });
}

void add(Windows& windows, const SliceWindowPtr& window) {
  if (!is_among(windows, *window)) windows.push_back(window);
}

// The reads of a tensor between two writes.
struct AccessRecord {
  std::weak_ptr<const LocalStorage> storage;  // only compared, never locked: whether it is alive may differ by rank
  int64_t offset = 0;
  uint64_t writes = 0;
  Windows read;
  bool has_boxes = false;

  bool is_in(const std::shared_ptr<LocalStorage>& other) const {
    return !storage.owner_before(other) && !other.owner_before(storage);
  }
  bool is_of(const at::Tensor& t) const {
    const auto& own = meta_without_sync(t).storage;
    return is_in(own) && offset == t.storage_offset() && writes == own->writes.load(std::memory_order_relaxed);
  }
};

AccessRecord life_of(const at::Tensor& t) {
  const auto& storage = meta_without_sync(t).storage;
  return {storage, t.storage_offset(), storage->writes.load(std::memory_order_relaxed), {}};
}

// Tensors of one layout of which the same window was read first.
struct AccessPattern {
  SliceWindowPtr first;
  std::deque<AccessRecord> lives;
  Known known;  // the last prefetched indices, and their boxes
  std::shared_ptr<const ExpectedBoxes> boxes;

  // Whether `t` was read before its last write. Then its ghost region can be updated in the exchange of the next write.
  bool was_read_before(const at::Tensor& t) const {
    return std::any_of(lives.begin(), lives.end(), [&](const AccessRecord& life) {
      return life.is_in(meta_without_sync(t).storage) && !life.is_of(t);
    });
  }
};

std::vector<Run> hulls_of(std::vector<Run> runs, const std::vector<Run>& reached) {
  for (size_t i = 0; i < runs.size(); ++i) runs[i] = hull_of(runs[i], reached[i]);
  return runs;
}

Known reached_by(const Windows& windows, const Known& own) {
  Known known = own;
  for (const SliceWindowPtr& w : windows) {
    for (size_t k = 0; k < known.size(); ++k) known[k] = hulls_of(std::move(known[k]), w->reached[k]);
  }
  return known;
}

// The indices that all windows of that size reach.
Known reached_by_size(const SliceWindow& window, const Known& own) {
  Known known = own;
  for (size_t k = 0; k < known.size(); ++k) {
    const int64_t d = window.cut[k], left_out = window.root->sizes()[d] - window.view->sizes()[d];
    auto all = window.reached[k];
    for (Run& run : all) run = {run.begin - window.map.start[d], run.size + left_out};
    known[k] = hulls_of(std::move(known[k]), all);
  }
  return known;
}

// Nullopt: some ranks have no part, or several.
std::optional<Known> own_parts(const SliceWindow& window) {
  Known own;
  for (const int64_t dim : window.cut) {
    auto runs = runs_along(*window.root, dim);
    if (!runs) return std::nullopt;
    own.push_back(*std::move(runs));
  }
  return own;
}

std::shared_ptr<const ExpectedBoxes> make_boxes(const SliceWindow& window, const Known& own, const Known& known) {
  auto boxes = std::make_shared<ExpectedBoxes>();
  HaloRequest request{window.root, window.root, {}};
  for (size_t k = 0; k < window.cut.size(); ++k) {
    if (known[k] == own[k]) continue;
    const int64_t dim = window.cut[k], n = window.root->sizes()[dim];
    boxes->dims.push_back(dim);
    boxes->known.push_back(known[k]);
    const auto reach = [own = own[k], box = known[k]](const Runs& part) {
      return Runs{box[std::find(own.begin(), own.end(), part[0]) - own.begin()]};
    };
    request.dims.push_back({dim, sliced(n, 0, n, 1), reach});
  }
  if (!boxes->dims.empty()) boxes->plan = make_halo_plan(request);
  return boxes;
}

class SliceHistory {
 public:
  std::shared_ptr<const ExpectedBoxes> expected(const at::Tensor& root, const SliceWindowPtr& window) {
    std::lock_guard lock(mutex_);
    auto& kinds = kinds_of(*window);
    const auto [kind, life] = find(kinds, root, window);
    if (life != nullptr && life->has_boxes) return nullptr;
    if (kind == nullptr) return guessed(*window);
    Windows all;
    double seconds = 0;
    for (const AccessRecord& l : kind->lives) {
      for (const SliceWindowPtr& w : l.read) {
        add(all, w);
        seconds += w->plan->seconds;
      }
    }
    if ((all.size() < 2 && !kind->was_read_before(root)) || !is_among(all, *window)) return nullptr;
    const auto own = own_parts(*window);
    if (!own) return nullptr;
    if (Known known = reached_by(all, *own); !kind->boxes || kind->known != known) {
      kind->boxes = make_boxes(*window, *own, known);
      kind->known = std::move(known);
    }
    return pays(*kind->boxes, seconds / static_cast<double>(kind->lives.size())) ? kind->boxes : nullptr;
  }

  void note(const at::Tensor& root, const SliceWindowPtr& window, bool with_others) {
    std::lock_guard lock(mutex_);
    auto& kinds = kinds_of(*window);
    auto [kind, life] = find(kinds, root, window);
    if (kind == nullptr) {
      if (kinds.size() >= kMostKinds) kinds.pop_front();
      kind = &kinds.emplace_back(AccessPattern{window, {}, {}, nullptr});
    }
    if (life == nullptr) {
      if (kind->lives.size() >= kMostTensors) kind->lives.pop_front();
      life = &kind->lives.emplace_back(life_of(root));
    }
    life->has_boxes = life->has_boxes || with_others;
    if (life->read.size() < kMostWindows) add(life->read, window);
  }

  // Specs hold meshes, which hold the world.
  void release() {
    std::lock_guard lock(mutex_);
    layouts_.clear();
  }

 private:
  using AccessPatterns = std::deque<AccessPattern>;

  static bool pays(const ExpectedBoxes& boxes, double seconds) {
    return boxes.plan && boxes.plan->seconds <= kPrefetch * seconds &&
           boxes.plan->peak_bytes <= current_dispatch_scope().limits.max_bytes;
  }

  // For the first window of its kind: code that shifts one way usually shifts the other way next.
  static std::shared_ptr<const ExpectedBoxes> guessed(const SliceWindow& window) {
    const auto own = own_parts(window);
    const bool steps = std::any_of(window.map.step.begin(), window.map.step.end(), [](int64_t s) { return s > 1; });
    if (!own || steps) return nullptr;
    const auto boxes = make_boxes(window, *own, reached_by_size(window, *own));
    return pays(*boxes, window.plan->seconds) && boxes->plan->peak_bytes <= kMostGuessedBytes ? boxes : nullptr;
  }

  AccessPatterns& kinds_of(const SliceWindow& window) {
    const uint64_t id = window.root->id();
    if (layouts_.size() >= kMostLayouts && !layouts_.contains(id)) layouts_.clear();
    return layouts_[id];
  }

  // The kind of a tensor that was read before, and that tensor; else the kind it would belong to, if known.
  static std::pair<AccessPattern*, AccessRecord*> find(AccessPatterns& kinds, const at::Tensor& root,
                                                       const SliceWindowPtr& window) {
    AccessPattern* found = nullptr;
    for (AccessPattern& kind : kinds) {
      for (AccessRecord& life : kind.lives) {
        if (life.is_of(root)) return {&kind, &life};
      }
      if (is_same(*kind.first, *window)) found = &kind;
    }
    return {found, nullptr};
  }

  std::mutex mutex_;
  std::map<uint64_t, AccessPatterns> layouts_;  // by the ids of specs, which their windows keep alive
};

SliceHistory& history_of(const at::Tensor& t) { return spec_of(t)->mesh().world().attachment<SliceHistory>(); }

}  // namespace

std::shared_ptr<const ExpectedBoxes> expected_boxes(const at::Tensor& root, const SliceWindowPtr& window) {
  return history_of(root).expected(root, window);
}

void note_read(const at::Tensor& root, const SliceWindowPtr& window, bool with_others) {
  // A recorded step runs repeatedly, and must cost the same each time.
  const StepDecider* decider = current_dispatch_scope().step_decider;
  if (decider == nullptr || decider->recording() == 0) history_of(root).note(root, window, with_others);
}

}  // namespace dtensor
