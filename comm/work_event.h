// One record per operator that multiplies matrices: how much of the work a rank does.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::internal {

// Reported to the listeners of the current thread's scope, when the operator has run.
struct WorkEvent {
  std::string op;  // "aten::mm"
  std::string module_path;
  bool backward = false;
  int64_t ranks = 1;  // of the mesh
  // Floating-point operations, two per product that is added to a sum: of the rank that does most, and of one device
  // that would do all.
  double flops = 0;
  double whole_flops = 0;
};

}  // namespace dtensor::internal
