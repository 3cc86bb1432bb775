// Measures what collectives, copies, matrix products and starts of operators cost on this machine, and writes it as a
// cost model for the planner.
//
//   ./bazelw run //tools:calibrate -- --ranks 4 --out cost_model.json
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/tools/calibrate/calibrate --from_env --out cost_model.json
//   DTENSOR_COST_MODEL=cost_model.json my_program

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "tools/calibrate/calibration.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, ranks, 4, "ranks of the world, at least 2");
ABSL_FLAG(bool, from_env, false, "the ranks are the processes that a launcher started, not --ranks of this process");
ABSL_FLAG(std::string, device, "cpu", "device of every rank: cpu, cuda:0, ...");
ABSL_FLAG(int64_t, ranks_per_node, 0, "consecutive ranks that share a node; by default all of them");
ABSL_FLAG(std::string, max_bytes, "16MiB", "the most that a rank receives in one call");
ABSL_FLAG(bool, quick, false, "few sizes and calls: a rough model, in a moment");
ABSL_FLAG(std::string, out, "", "write the cost model to this file");

namespace {

using namespace dtensor;
using namespace dtensor::tools;

// Errors (UsageError): flags that do not fit.
World local_world() {
  const int64_t ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 2 || ranks > 1024) throw UsageError(absl::StrCat("--ranks ", ranks, ": give 2 to 1024"));
  try {
    const World world = World::local(ranks, c10::Device(absl::GetFlag(FLAGS_device)));
    at::ones({1}, world.device(0));
    return world;
  } catch (const c10::Error& e) {
    throw UsageError(absl::StrCat("--device ", absl::GetFlag(FLAGS_device),
                                  ": not a device here; give cpu, or cuda:0 where there is one (",
                                  first_line(e.what_without_backtrace()), ")"));
  }
}

int run() {
  const int64_t per_node = absl::GetFlag(FLAGS_ranks_per_node);
  if (per_node < 0) throw UsageError(absl::StrCat("--ranks_per_node ", per_node, ": give at least 1"));
  const int64_t max_bytes = parse_bytes("max_bytes", absl::GetFlag(FLAGS_max_bytes));
  if (max_bytes < 1 << 16)
    throw UsageError(absl::StrCat("--max_bytes ", absl::GetFlag(FLAGS_max_bytes), ": give at least 64KiB"));
  if (absl::GetFlag(FLAGS_from_env) && absl::GetFlag(FLAGS_device) != "cpu")
    throw UsageError("--device: the ranks of a launcher have theirs; leave it out, or --from_env");
  const World world = absl::GetFlag(FLAGS_from_env) ? World::from_env() : local_world();
  if (world.size() < 2) throw UsageError("--from_env: one process; start at least two, as `launch -n 4` does");
  const bool is_first = world.owned_ranks().front() == 0;
  const std::string out = is_first ? absl::GetFlag(FLAGS_out) : "";
  if (!out.empty()) write_file("out", out, "");  // refuses now rather than after the measuring
  Calibration calibration(world, per_node > 0 ? per_node : world.size(), max_bytes, absl::GetFlag(FLAGS_quick));
  const CostModel model = calibration.run();
  if (!is_first) return 0;
  std::cout << calibration.table();
  if (out.empty()) {
    std::cout << "Not written; --out FILE does.\n";
  } else {
    write_file("out", out, model.to_json());
    std::cout << "Written to " << out << ". Use it with DTENSOR_COST_MODEL=" << out << " or set_cost_model().\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("calibrate", "Measures what collectives, copies and operators cost here, for the planner.", argc,
                     argv, run);
}
