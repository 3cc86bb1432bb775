// Caches decisions: operator + specs + static arguments + CallContext -> Decision. Bounded, counted, inspectable.
//
// The key holds every non-tensor argument, lists element by element, except those whose value the rule declares
// irrelevant (their type counts). Entries hold specs, never tensors. Least recently used entries are evicted first. One
// cache per world, as a World attachment; thread-safe.
//
//   StrategyCache& cache = strategy_cache(world);
//   serve(warm_up_request);
//   cache.freeze();  // from now on a call that is not cached is an error that names the call
//   std::cout << cache.stats().hits << " hits, " << cache.stats().misses << " misses\n" << cache.dump();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/spec.h"
#include "propagation/call_context.h"

namespace dtensor {

struct Decision;
struct OpCall;
class World;

// Of a decision with Decision::direct.
struct DirectResult {
  SpecPtr spec;  // null: there is no such decision
  bool shares_memory = false;
};

struct CacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  size_t size = 0;
  size_t capacity = 0;
};

namespace internal {

// Per two words one product, both halves of it: keys are short, and Abseil's hash takes as long as the rest of a
// look-up.
struct CacheKeyHash {
  size_t operator()(const CacheKey& key) const {
    const uint64_t* const words = key.data();
    const size_t n = key.size();
    uint64_t hash = n ^ 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i + 1 < n; i += 2) hash = folded_product(hash ^ words[i], words[i + 1] ^ 0xd1b54a32d192ed03u);
    return folded_product(hash ^ (n % 2 == 1 ? words[n - 1] : 0), 0x9e3779b97f4a7c15u);
  }

 private:
  static uint64_t folded_product(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

}  // namespace internal

class StrategyCache {
 public:
  static constexpr size_t kDefaultCapacity = 16384;

  StrategyCache();
  ~StrategyCache();
  StrategyCache(const StrategyCache&) = delete;
  StrategyCache& operator=(const StrategyCache&) = delete;

  // Null on a miss. Counts.
  std::shared_ptr<const Decision> find(const CacheKey& key);
  // The same, but only for a decision with Decision::direct: null for others, and misses do not count.
  std::shared_ptr<const Decision> find_direct(const CacheKey& key);
  // The same for its result, whose reference is cheaper to take than that and one to the decision.
  DirectResult find_direct_result(const CacheKey& key);
  // Error (c10::Error) while frozen: the text has the call, so that a serving loop can see which one was new.
  void insert(const CacheKey& key, std::shared_ptr<const Decision> decision);

  // For a decision that followed from others in the cache, so that it planned nothing: also while frozen, but not if
  // another one would be evicted for it then.
  void insert_derived(const CacheKey& key, std::shared_ptr<const Decision> decision);

  // Throws the error of insert(), before anything is run.
  void check_open(const OpCall& call) const;

  // After freeze() a miss is an error. For loops that must not plan any more.
  void freeze(bool frozen = true);
  bool frozen() const;
  void set_capacity(size_t capacity);  // evicts at once if smaller
  void clear();                        // entries and counts
  void release();                      // clears entries only: called when the world is not used any more
  void reset_counts();
  CacheStats stats() const;
  // One line per entry, most recently used first: hits and call.
  std::string dump() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The decisions of a world.
StrategyCache& strategy_cache(const World& world);

}  // namespace dtensor
