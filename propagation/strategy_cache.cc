#include "propagation/strategy_cache.h"

#include <c10/util/Exception.h>

#include <list>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "mesh/world.h"
#include "propagation/decision.h"

namespace dtensor {
namespace {

struct Entry {
  CacheKey key;
  std::shared_ptr<const Decision> decision;
  uint64_t hits = 0;
};

// The index refers to the keys inside the entries, without a second copy.
struct KeyHash {
  size_t operator()(const CacheKey* key) const { return internal::CacheKeyHash()(*key); }
};
struct KeyEqual {
  // Word by word: faster than memcmp() of words that were just written.
  bool operator()(const CacheKey* a, const CacheKey* b) const {
    if (a->size() != b->size()) return false;
    const uint64_t *const end = a->end(), *other = b->begin();
    for (const uint64_t* word = a->begin(); word != end; ++word, ++other) {
      if (*word != *other) return false;
    }
    return true;
  }
};

std::string text_of(const OpCall& call) { return call.to_string() + call.context.scope.to_string(); }

[[noreturn]] void throw_frozen(const OpCall& call) {
  TORCH_CHECK(false, "the strategy cache is frozen, and this call is not in it: ", text_of(call));
}

}  // namespace

struct StrategyCache::State {
  using Entries = std::list<Entry>;  // most recently used first

  mutable std::mutex mutex;
  Entries entries;
  absl::flat_hash_map<const CacheKey*, Entries::iterator, KeyHash, KeyEqual> index;
  size_t capacity = kDefaultCapacity;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  bool frozen = false;

  // Counts a hit.
  const std::shared_ptr<const Decision>& use(Entries::iterator entry) {
    ++hits;
    ++entry->hits;
    if (entry != entries.begin()) entries.splice(entries.begin(), entries, entry);
    return entry->decision;
  }

  // The decision of `key`, if it is direct, which counts as a hit; else null.
  const std::shared_ptr<const Decision>* use_direct(const CacheKey& key) {
    const auto found = index.find(&key);
    return found == index.end() || !found->second->decision->direct ? nullptr : &use(found->second);
  }

  // `evicted` takes the decision that this one replaces and the entries that no longer fit; the caller destroys them
  // outside the lock.
  void insert(const CacheKey& key, std::shared_ptr<const Decision> decision, Entries& evicted) {
    const auto it = index.find(&key);
    if (it != index.end()) {  // another thread was first
      evicted.push_back({{}, std::move(it->second->decision)});
      it->second->decision = std::move(decision);
      return;
    }
    entries.push_front({key, std::move(decision)});
    index.emplace(&entries.front().key, entries.begin());
    evict(evicted);
  }

  // Moves entries beyond the capacity to `evicted`, to be destroyed outside the lock.
  void evict(Entries& evicted) {
    while (entries.size() > capacity) {
      index.erase(&entries.back().key);
      evicted.splice(evicted.begin(), entries, std::prev(entries.end()));
      ++evictions;
    }
  }
};

StrategyCache::StrategyCache() : state_(std::make_unique<State>()) {}
StrategyCache::~StrategyCache() = default;

std::shared_ptr<const Decision> StrategyCache::find(const CacheKey& key) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  auto it = state_->index.find(&key);
  if (it == state_->index.end()) {
    ++state_->misses;
    return nullptr;
  }
  return state_->use(it->second);
}

std::shared_ptr<const Decision> StrategyCache::find_direct(const CacheKey& key) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  const auto* decision = state_->use_direct(key);
  return decision == nullptr ? nullptr : *decision;
}

[[gnu::hot]] DirectResult StrategyCache::find_direct_result(const CacheKey& key) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  const auto* decision = state_->use_direct(key);
  if (decision == nullptr) return {};
  return {(*decision)->outputs[0], (*decision)->shares_memory};
}

void StrategyCache::insert(const CacheKey& key, std::shared_ptr<const Decision> decision) {
  State::Entries evicted;
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->frozen && !state_->index.contains(&key)) throw_frozen(*decision->call);
  state_->insert(key, std::move(decision), evicted);
}

void StrategyCache::insert_derived(const CacheKey& key, std::shared_ptr<const Decision> decision) {
  State::Entries evicted;
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->frozen && state_->entries.size() >= state_->capacity) return;  // what is evicted could not come back
  state_->insert(key, std::move(decision), evicted);
}

void StrategyCache::check_open(const OpCall& call) const {
  if (frozen()) throw_frozen(call);
}

void StrategyCache::freeze(bool frozen) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->frozen = frozen;
}

bool StrategyCache::frozen() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->frozen;
}

void StrategyCache::set_capacity(size_t capacity) {
  State::Entries evicted;
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->capacity = capacity;
  state_->evict(evicted);
}

void StrategyCache::clear() {
  release();
  reset_counts();
}

void StrategyCache::release() {
  State::Entries dropped;
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->index.clear();
  dropped.swap(state_->entries);
}

void StrategyCache::reset_counts() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->hits = state_->misses = state_->evictions = 0;
}

CacheStats StrategyCache::stats() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return {state_->hits, state_->misses, state_->evictions, state_->entries.size(), state_->capacity};
}

std::string StrategyCache::dump() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  std::string text;
  for (const Entry& entry : state_->entries)
    absl::StrAppend(&text, entry.hits, " ", text_of(*entry.decision->call), "\n");
  return text;
}

[[gnu::hot]] StrategyCache& strategy_cache(const World& world) { return world.attachment<StrategyCache>(); }

}  // namespace dtensor
