// The order and the bytes of what a rank remembers of tensors, by the rule in remembered_layouts.h. For the folders
// above.
//
// An entry keeps its place and its bytes when its tensor is freed: ranks may free a tensor at different times, and must
// forget the others in the same order all the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "mesh/device_mesh.h"

namespace dtensor {

struct LocalStorage;  // representation.h

constexpr int64_t kDefaultRememberedBytes = int64_t{64} << 20;

// Of the meshes with one set of ranks. Thread-safe.
class RememberedBytes {
 public:
  struct Entry {
    uint64_t id = 0;
    int64_t bytes = 0;
    std::weak_ptr<LocalStorage> of;  // where the tensor's memory remembers it, by that id
  };

  // A new entry, the most recently used; `evicted`: those that have to go for it. Returns its id; 0: it is larger than
  // the limit, and nothing goes. An entry counts for 512 bytes at least, which its bookkeeping takes.
  uint64_t add(int64_t bytes, int64_t limit, std::weak_ptr<LocalStorage> of, std::vector<Entry>& evicted);
  void use(uint64_t id);
  void remove(uint64_t id);  // it was forgotten, as its tensor was written to
  // The least recently used, until no more than `limit` bytes are left.
  std::vector<Entry> evict(int64_t limit);
  int64_t bytes() const;

  // Is this the first call for that backward? Numbers are those of autograd's graph tasks.
  bool begins_backward(int graph_task);

 private:
  std::vector<Entry> evict_locked(int64_t limit);

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the least recently used first
  absl::flat_hash_map<uint64_t, std::list<Entry>::iterator> by_id_;
  int64_t bytes_ = 0;
  uint64_t last_id_ = 0;
  int graph_task_ = -1;
};

// That of the ranks of `mesh`.
std::shared_ptr<RememberedBytes> remembered_of(const DeviceMesh& mesh);
// Those of all sets of ranks so far.
std::vector<std::shared_ptr<RememberedBytes>> all_remembered(const World& world);
// In bytes, per rank and set of ranks.
std::atomic<int64_t>& remembered_limit(const World& world);

}  // namespace dtensor
