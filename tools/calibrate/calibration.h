// Measures collectives, copies, matrix products, starts of operators and whole operators in a world, and fits a cost
// model to the times.
//
// It knows the ranks through Communicator alone, but for starts and operators, which take the library's way to a rank.
// Times are of whole calls: where all groups of a mesh dim are in this process, of all of them together, as in a step
// of a redistribution. With a rank in each of several processes, all of them run it, and the slowest counts; on CPUs
// they compute between collectives, as in a step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/device_mesh.h"
#include "plan/cost_model.h"
#include "tools/calibrate/collective_call.h"

namespace dtensor::tools {

// The measured time of one collective in some groups.
struct Trial {
  Collective collective = Collective::kBarrier;
  Groups groups;
  int64_t bytes = 0;  // received per rank
  double seconds = 0;
};

class Calibration {
 public:
  // `ranks_per_node`: consecutive ranks that share a node. `max_bytes`: the most that a rank receives in one call, at
  // least 64 KiB. `quick`: few sizes and calls.
  Calibration(World world, int64_t ranks_per_node, int64_t max_bytes, bool quick)
      : world_(std::move(world)), ranks_per_node_(ranks_per_node), max_bytes_(max_bytes), quick_(quick) {}

  // Measures everything, and reports progress on stderr. REQUIRES: the world has at least 2 ranks.
  CostModel run();
  // A line per collective and level, with how well the model fits; empty before run().
  const std::string& table() const { return table_; }

 private:
  std::vector<Groups> all_groups() const;
  std::vector<int64_t> byte_counts() const;
  std::vector<double> largest(const std::vector<double>& values) const;
  void say(const std::string& text) const;
  double time(const std::function<void()>& call, int64_t calls = 1) const;
  double product_rate(int64_t n, c10::ScalarType dtype) const;
  Trial measure(Collective c, const Groups& groups, int64_t bytes) const;
  void fit_level(const std::vector<Trial>& trials, bool crosses_nodes, CostModel& model);
  void measure_copies(CostModel& model);
  void measure_products(CostModel& model);
  void measure_starts(CostModel& model);
  void measure_steps(CostModel& model);

  const World world_;
  const int64_t ranks_per_node_, max_bytes_;
  const bool quick_;
  std::string table_;
};

}  // namespace dtensor::tools
