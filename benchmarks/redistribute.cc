// Measures redistribution: bytes compared with the minimum, the time of planning, the time of moving. Fails if a figure
// in the documentation does not hold.
//
//   ./bazelw run //benchmarks:redistribute               # all tables, some minutes
//   ./bazelw run //benchmarks:redistribute -- --quick    # only what needs no clock

#include <ATen/Parallel.h>

#include "absl/flags/flag.h"
#include "benchmarks/redistribute_tables.h"
#include "tools/flags.h"

ABSL_FLAG(bool, quick, false, "only the tables that need no clock, on small meshes");

namespace dtensor::benchmarks {

namespace {

int run() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  at::set_num_threads(1);
  Gates gates;
  bytes_table(quick, gates);
  if (!quick) {
    plan_time_table(gates);
    wall_table(gates);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("redistribute", "What redistribution costs, in bytes and time.", argc, argv,
                                     dtensor::benchmarks::run);
}
