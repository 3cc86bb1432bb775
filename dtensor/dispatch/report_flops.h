// Reports the FLOP of matrix products to the listeners of the scope.
#pragma once

#include <string>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// `of_rank`: floating-point operations of the rank that does most, `of_one`: of a single device that does all. Nothing
// is reported if there were none. `op`: "aten::mm".
void report_flops(const std::string& op, const std::string& module_path, const DeviceMesh& mesh, double of_rank,
                  double of_one);

}  // namespace dtensor::internal
