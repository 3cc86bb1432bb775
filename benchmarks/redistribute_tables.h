// The tables of benchmarks/redistribute. Each prints itself and what it asserts.
#pragma once

#include <string>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::benchmarks {

// Figures that must hold: prints a line for each and remembers whether any failed.
class Gates {
 public:
  void at_most(const std::string& what, double value, double limit);
  void at_least(const std::string& what, double value, double limit);
  int failed() const { return failed_; }

 private:
  void report(bool good, const std::string& what, double value, const char* relation, double limit);
  int failed_ = 0;
};

// All lists of `mesh_ndim` out of R, S(0), S(1), S(2) and P.
std::vector<Placements> all_layouts(int64_t mesh_ndim);
std::string pair_text(const Placements& from, const Placements& to);

void bytes_table(bool quick, Gates& gates);  // against bounds and PyTorch's greedy plans; no clock
void plan_time_table(Gates& gates);
void wall_table(Gates& gates);  // redistribute() against copies by hand

}  // namespace dtensor::benchmarks
