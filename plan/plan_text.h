// Names and numbers in the texts of plans, shared by RedistributePlan::to_string() and explain().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/redistribute_plan.h"

namespace dtensor::internal {

const char* name_of(RedistributeStep::Kind kind);  // "all_to_all"

// "S(0)R", "3 boxes on ranks 0, 2".
std::string layout_text(const Layout& layout);

// The mesh that a step's dims belong to: it changes at a transfer.
class Meshes {
 public:
  explicit Meshes(const RedistributePlan& plan) : plan_(plan) {}

  std::vector<std::string> dim_names(const RedistributeStep& step);
  // Number of ranks that communicate with each other; call before dim_names().
  int64_t group_size(const RedistributeStep& step) const;

 private:
  const DeviceMesh& mesh() const { return (passed_ ? plan_.to : plan_.from).mesh(); }

  const RedistributePlan& plan_;
  bool passed_ = false;
};

// "all_to_all(tp)", "slice".
std::string call_text(const RedistributeStep& step, Meshes& meshes, bool abbreviated);
std::string steps_text(const RedistributePlan& plan, const std::vector<RedistributeStep>& steps, bool abbreviated);
std::string bytes_text(int64_t bytes);     // "36.0 KiB"
std::string seconds_text(double seconds);  // "7.8 us"

}  // namespace dtensor::internal
