// Eviction order and size accounting of a rank's cached layouts, by the rule in remembered_layouts.h.
//
// An entry keeps its position and its bytes when its tensor is freed: ranks may free a tensor at different times, but
// must evict the others in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

struct LocalStorage;  // tensor/local_storage.h

constexpr int64_t kDefaultRememberedBytes = int64_t{64} << 20;

// One per set of ranks that meshes have. Thread-safe.
class RememberedBytes {
 public:
  struct Entry {
    uint64_t id = 0;
    int64_t bytes = 0;
    std::weak_ptr<LocalStorage> of;  // the memory whose cache has the entry, by that id
  };

  // Adds an entry, the most recently used, which with a limit counts at least 512 bytes; `evicted`: those that must be
  // evicted for it. Returns its id; 0 if it does not fit (fits_in_cache()), and nothing is evicted.
  uint64_t add(int64_t bytes, int64_t limit, std::weak_ptr<LocalStorage> of, std::vector<Entry>& evicted);
  void use(uint64_t id);
  void remove(uint64_t id);  // call when it was dropped, since its tensor was written to
  // Evicts the least recently used entries until at most `limit` bytes are left.
  std::vector<Entry> evict(int64_t limit);
  // Evicts the entries for which `is_evicted` holds.
  std::vector<Entry> evict_if(const std::function<bool(const Entry&)>& is_evicted);
  int64_t bytes() const;
  int64_t bytes_of(uint64_t id) const;  // 0: it was evicted or removed

  // Whether this is the first call for that backward, numbered by autograd's graph task.
  bool begins_backward(int graph_task);

 private:
  std::vector<Entry> evict_locked(int64_t limit);

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // least recently used first
  absl::flat_hash_map<uint64_t, std::list<Entry>::iterator> by_id_;
  int64_t bytes_ = 0;
  uint64_t last_id_ = 0;
  int graph_task_ = -1;
};

// The accounting for the ranks of `mesh`.
std::shared_ptr<RememberedBytes> remembered_of(const DeviceMesh& mesh);
// That of the gathered parameters of fully_shard() on those ranks: without a limit, and not in remembered_bytes().
std::shared_ptr<RememberedBytes> gathered_of(const DeviceMesh& mesh);
// Of the gathered parameters on all sets of ranks so far, per rank; of a set that has most.
int64_t gathered_bytes(const World& world);
// All of remembered_of() so far, one per set of ranks.
std::vector<std::shared_ptr<RememberedBytes>> all_remembered(const World& world);
// In bytes, per rank and set of ranks.
std::atomic<int64_t>& remembered_limit(const World& world);
// Whether an entry of `bytes` is within the limit. An entry counts at least 512 bytes, for its bookkeeping.
bool fits_in_cache(const World& world, int64_t bytes);

}  // namespace dtensor::internal
