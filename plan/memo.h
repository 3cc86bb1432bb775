// A bounded cache of computed values. It has two generations: when the young one is full, it replaces the old one; a
// used entry becomes young again. Thread-safe.
//
//   struct Decisions : Memo<std::vector<int64_t>, std::shared_ptr<const Decided>, 1024> {};
//   auto& memo = world.attachment<Decisions>();
//   if (auto known = memo.find(key)) return *known;  // the key has the id of `spec`
//   memo.insert(key, decided, {spec});
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "plan/spec.h"

namespace dtensor::internal {

// `kGeneration`: entries per generation. Lookup accepts any type that `Hash` and `Equal` accept and a Key can be made
// from.
template <typename Key, typename Value, size_t kGeneration,
          typename Hash = typename absl::flat_hash_map<Key, int>::hasher,
          typename Equal = typename absl::flat_hash_map<Key, int>::key_equal>
class Memo {
 public:
  template <typename K>
  std::optional<Value> find(const K& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto it = young_.find(key); it != young_.end()) return it->second.value;
    auto it = old_.find(key);
    if (it == old_.end()) return std::nullopt;
    Entry entry = std::move(it->second);
    old_.erase(it);
    std::optional<Value> value = entry.value;
    put(Key(key), std::move(entry));
    return value;
  }
  // `specs`: the specs that the key contains by id. They are kept alive: a new spec would get another id, and the entry
  // would never be found again.
  void insert(Key key, Value value, std::vector<SpecPtr> specs) {
    std::lock_guard<std::mutex> lock(mutex_);
    put(std::move(key), {std::move(value), std::move(specs)});
  }
  // For values that may never be looked up: the entry starts old.
  void insert_old(Key key, Value value, std::vector<SpecPtr> specs) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (old_.size() >= 2 * kGeneration) old_.clear();
    old_.insert_or_assign(std::move(key), Entry{std::move(value), std::move(specs)});
  }
  // World::release_caches(): specs hold meshes, which hold the world.
  void release() {
    Map young, old;  // destroyed outside the lock
    std::lock_guard<std::mutex> lock(mutex_);
    young.swap(young_);
    old.swap(old_);
  }

 private:
  struct Entry {
    Value value;
    std::vector<SpecPtr> specs;
  };
  using Map = absl::flat_hash_map<Key, Entry, Hash, Equal>;

  void put(Key key, Entry entry) {
    if (young_.size() >= kGeneration) old_ = std::exchange(young_, Map());
    young_.insert_or_assign(std::move(key), std::move(entry));
  }

  std::mutex mutex_;
  Map young_, old_;
};

}  // namespace dtensor::internal
