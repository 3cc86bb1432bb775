// The ranks that share a sharded tensor, and their exchange of texts.
//
//   ProcessGroup all = world;                        // every rank of a world
//   ProcessGroup some(world, {1, 2, 3});             // placements say ranks of the world: "rank:3/cpu"
//   some.group_rank(3);                              // 2, its position
//
// A value over a mesh of one dim. Two groups of the same ranks are the same one if they have the same name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace dtensor::sharded {

class ProcessGroup {
 public:
  ProcessGroup() = default;          // none; defined() is false
  ProcessGroup(const World& world);  // NOLINT: a world is the group of all its ranks
  // Errors (c10::Error): no rank, a rank twice or outside the world.
  ProcessGroup(const World& world, std::vector<int64_t> ranks, std::string name = "group");
  // A mesh of one dim. Error (ValueError): another number of dims, or a slice of a larger mesh.
  ProcessGroup(const DeviceMesh& mesh);  // NOLINT

  bool defined() const { return mesh_.defined(); }
  const World& world() const { return mesh_.world(); }
  const DeviceMesh& mesh() const { return mesh_; }
  const std::vector<int64_t>& ranks() const { return mesh_.ranks(); }  // of the world
  int64_t size() const { return mesh_.size(); }
  bool contains(int64_t rank) const { return mesh_.contains(rank); }
  int64_t group_rank(int64_t rank) const;  // position of a rank of the world; -1 outside
  // The group's ranks that this process owns, in the group's order; and all that it owns.
  const std::vector<int64_t>& owned_ranks() const { return mesh_.local_ranks(); }
  const std::vector<int64_t>& ranks_of_process() const { return world().owned_ranks(); }
  std::string to_string() const;

  friend bool operator==(const ProcessGroup& a, const ProcessGroup& b) { return a.mesh_ == b.mesh_; }
  friend bool operator!=(const ProcessGroup& a, const ProcessGroup& b) { return !(a == b); }

 private:
  DeviceMesh mesh_;
};

// Collective over the group. Calls text_of(rank) for every owned rank of it; returns the texts of all ranks, in the
// order of group.ranks(). If it throws on some ranks, all ranks throw one error with all their texts and the first
// one's class: "[op] rank 2: ..."; so no rank waits for one that has failed. Processes outside the group get empty
// texts and do not wait; in worlds without data, texts of ranks without a process are empty.
std::vector<std::string> exchange_texts(const ProcessGroup& group, std::string_view op,
                                        const std::function<std::string(int64_t rank)>& text_of);
// The same without texts: all ranks continue, or all throw.
void check_on_all_ranks(const ProcessGroup& group, std::string_view op, const std::function<void(int64_t rank)>& check);

}  // namespace dtensor::sharded
