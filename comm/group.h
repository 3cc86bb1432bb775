// The ranks that take part in a collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

namespace internal {

// The last answer to a question about a number. Thread-safe; a copy begins without one.
class LastAnswer {
 public:
  LastAnswer() = default;
  LastAnswer(const LastAnswer&) {}
  LastAnswer& operator=(const LastAnswer&) { return *this; }

  std::optional<int64_t> find(int64_t number) const {
    const uint64_t both = both_.load(std::memory_order_relaxed);
    if (both == 0 || static_cast<int64_t>(both >> 32) != number) return std::nullopt;
    return static_cast<int64_t>(both & 0xffffffff);
  }
  // REQUIRES: both are positive and below 2^32; others are not remembered.
  void set(int64_t number, int64_t answer) const {
    if ((number | answer) >> 32 != 0) return;
    both_.store(static_cast<uint64_t>(number) << 32 | static_cast<uint64_t>(answer), std::memory_order_relaxed);
  }

 private:
  mutable std::atomic<uint64_t> both_{0};
};

}  // namespace internal

// The groups of ranks along one or several dims of a mesh: disjoint, of equal size, ordered by coordinate (row-major
// over the dims). Every rank of the mesh is in exactly one.
struct RankGroups {
  std::string name;                           // mesh dim names, "tp" or "dp,tp"
  std::vector<std::vector<int64_t>> members;  // world ranks
  std::vector<int64_t> group_of;              // world rank -> index into members, -1 outside the mesh
  std::vector<int64_t> position_of;           // world rank -> position in its group, -1 outside the mesh
  int64_t size = 1;
  internal::LastAnswer on_node;  // group_extent() by ranks per node
};

namespace internal {

// "0-3", "0,2,4-6": how messages name some ranks.
std::string ranks_text(const std::vector<int64_t>& ranks);

}  // namespace internal

}  // namespace dtensor
