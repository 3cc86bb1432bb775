// One record per operator that has run: how much of the work a rank does.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace dtensor::internal {

// Reported to the listeners of the current thread's scope, when the operator has run.
struct WorkEvent {
  std::string op;           // "aten::mm"
  std::string module_path;  // of matrix products
  bool backward = false;
  int64_t ranks = 1;  // of the mesh
  // Floating-point operations of matrix products, two per product that is added to a sum: of the rank that does most,
  // and of one device that would do all. 0 for other operators.
  double flops = 0;
  double whole_flops = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the tensors of matrix products
  int64_t bytes = 0;  // that the rank reads and writes; 0 for views, and where it is not known
  // Of an operator on lists of tensors, which reports each element as a call of the operator on one: which one it is.
  int64_t list_index = 0;
};

// To the listeners of the current thread's scope.
void report(const WorkEvent& event);

}  // namespace dtensor::internal
