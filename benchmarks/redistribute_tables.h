// The tables of benchmarks/redistribute. Each prints itself and what it asserts.
#pragma once

#include <string>

#include "benchmarks/gates.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::benchmarks {

// All lists of `mesh_ndim` out of R, S(0), S(1), S(2) and P.
std::vector<Placements> all_layouts(int64_t mesh_ndim);
std::string pair_text(const Placements& from, const Placements& to);

void bytes_table(bool quick, Gates& gates);  // against bounds and PyTorch's greedy plans; no clock
void plan_time_table(Gates& gates);
void wall_table(Gates& gates);  // redistribute() against loops by hand

}  // namespace dtensor::benchmarks
