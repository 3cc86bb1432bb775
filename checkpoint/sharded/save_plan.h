// Which rank writes which part of a tensor into a checkpoint. Depends on layouts only, so that every process computes
// the same.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "checkpoint/sharded/boxes.h"
#include "plan/layout.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Assigns boxes to ranks, tensor by tensor: a box that several ranks hold is written by the one of them that has least
// to write so far, in pieces if it is large. The boxes of one tensor are disjoint and cover it.
class SavePlanner {
 public:
  explicit SavePlanner(int64_t world_size) : bytes_(world_size) {}

  // REQUIRES: no Partial; a spec of the planner's world.
  std::vector<RankBox> add(const SpecPtr& spec);
  // A tensor that all ranks hold.
  std::vector<RankBox> add_replicated(const TensorMeta& meta);

  // Bytes assigned to each rank so far.
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  struct Held {
    Box box;
    std::vector<int64_t> ranks;  // ascending
  };
  static std::vector<Held> held_boxes(const Spec& spec);
  // `ranks`: the ranks that hold the box; empty: all.
  void assign(const Box& box, const std::vector<int64_t>& ranks, int64_t element_size, std::vector<RankBox>& boxes);
  int64_t least_loaded(const std::vector<int64_t>& ranks) const;

  std::vector<int64_t> bytes_;
  std::map<SpecPtr, std::vector<Held>> held_;  // the layers of a model have the same layouts
};

}  // namespace dtensor::internal
