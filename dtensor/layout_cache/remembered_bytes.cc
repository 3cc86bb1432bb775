#include "dtensor/layout_cache/remembered_bytes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace dtensor::internal {
namespace {

// The bytes that an entry counts.
int64_t counted(int64_t bytes) { return std::max<int64_t>(bytes, 512); }

using ByRanks = std::map<std::vector<int64_t>, std::shared_ptr<RememberedBytes>>;  // ranks ascending

struct OfWorld {
  std::atomic<int64_t> limit{kDefaultRememberedBytes};
  std::mutex mutex;
  ByRanks by_ranks, gathered_by_ranks;  // guarded by mutex
};

OfWorld& of_world(const World& world) { return world.attachment<OfWorld>(); }

std::shared_ptr<RememberedBytes> of_ranks(const DeviceMesh& mesh, ByRanks OfWorld::*accounting) {
  std::vector<int64_t> ranks = mesh.ranks();
  if (!std::is_sorted(ranks.begin(), ranks.end())) std::sort(ranks.begin(), ranks.end());
  OfWorld& world = of_world(mesh.world());
  std::lock_guard lock(world.mutex);
  auto& remembered = (world.*accounting)[std::move(ranks)];
  if (!remembered) remembered = std::make_shared<RememberedBytes>();
  return remembered;
}

}  // namespace

uint64_t RememberedBytes::add(int64_t bytes, int64_t limit, std::weak_ptr<LocalStorage> of,
                              std::vector<Entry>& evicted) {
  if (limit < std::numeric_limits<int64_t>::max()) bytes = counted(bytes);
  if (bytes > limit) return 0;
  std::lock_guard lock(mutex_);
  evicted = evict_locked(limit - bytes);
  const uint64_t id = ++last_id_;
  by_id_[id] = entries_.insert(entries_.end(), Entry{id, bytes, std::move(of)});
  bytes_ += bytes;
  return id;
}

void RememberedBytes::use(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it != by_id_.end()) entries_.splice(entries_.end(), entries_, it->second);
}

void RememberedBytes::remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  bytes_ -= it->second->bytes;
  entries_.erase(it->second);
  by_id_.erase(it);
}

std::vector<RememberedBytes::Entry> RememberedBytes::evict(int64_t limit) {
  std::lock_guard lock(mutex_);
  return evict_locked(limit);
}

std::vector<RememberedBytes::Entry> RememberedBytes::evict_locked(int64_t limit) {
  std::vector<Entry> evicted;
  while (bytes_ > limit) {
    bytes_ -= entries_.front().bytes;
    by_id_.erase(entries_.front().id);
    evicted.push_back(std::move(entries_.front()));
    entries_.pop_front();
  }
  return evicted;
}

std::vector<RememberedBytes::Entry> RememberedBytes::evict_if(const std::function<bool(const Entry&)>& is_evicted) {
  std::lock_guard lock(mutex_);
  std::vector<Entry> evicted;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!is_evicted(*it)) {
      ++it;
      continue;
    }
    bytes_ -= it->bytes;
    by_id_.erase(it->id);
    evicted.push_back(std::move(*it));
    it = entries_.erase(it);
  }
  return evicted;
}

int64_t RememberedBytes::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t RememberedBytes::bytes_of(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? 0 : it->second->bytes;
}

bool RememberedBytes::begins_backward(int graph_task) {
  std::lock_guard lock(mutex_);
  return std::exchange(graph_task_, graph_task) != graph_task;
}

std::shared_ptr<RememberedBytes> remembered_of(const DeviceMesh& mesh) { return of_ranks(mesh, &OfWorld::by_ranks); }
std::shared_ptr<RememberedBytes> gathered_of(const DeviceMesh& mesh) {
  return of_ranks(mesh, &OfWorld::gathered_by_ranks);
}

int64_t gathered_bytes(const World& world) {
  OfWorld& all = of_world(world);
  std::lock_guard lock(all.mutex);
  int64_t most = 0;
  for (const auto& [ranks, gathered] : all.gathered_by_ranks) most = std::max(most, gathered->bytes());
  return most;
}

std::vector<std::shared_ptr<RememberedBytes>> all_remembered(const World& world) {
  OfWorld& all = of_world(world);
  std::lock_guard lock(all.mutex);
  std::vector<std::shared_ptr<RememberedBytes>> result;
  for (const auto& [ranks, remembered] : all.by_ranks) result.push_back(remembered);
  return result;
}

std::atomic<int64_t>& remembered_limit(const World& world) { return of_world(world).limit; }

bool fits_in_cache(const World& world, int64_t bytes) { return counted(bytes) <= remembered_limit(world); }

}  // namespace dtensor::internal
