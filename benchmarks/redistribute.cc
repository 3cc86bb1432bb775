// Measures redistribution: bytes compared with the minimum, the time of planning, the time of moving. Fails if a figure
// in the documentation does not hold.
//
//   ./bazelw run //benchmarks:redistribute               # all tables, some minutes
//   ./bazelw run //benchmarks:redistribute -- --quick    # only what needs no clock
//
// With --count it only plans and dispatches five redistributions for 256 ranks, whose instructions instructions.py
// counts.

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <string>

#include "absl/flags/flag.h"
#include "benchmarks/measure.h"
#include "benchmarks/redistribute_tables.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(bool, quick, false, "only the tables that need no clock, on small meshes");
ABSL_FLAG(bool, count, false, "only five redistributions, for valgrind to count instructions");

namespace dtensor::benchmarks {

namespace {

struct Inputs {
  at::Tensor replicated, first_addends, second_addends;
};

Inputs inputs(const DeviceMesh& mesh, int64_t size) {
  return {zeros({size, size}, mesh, {Replicate()}), zeros({size, size}, mesh, {Partial()}),
          zeros({size, size}, mesh, {Partial()})};
}

void redistribute_all(const Inputs& t) {
  const at::Tensor rows = redistribute(t.replicated, {Shard(0)});
  const at::Tensor columns = redistribute(rows, {Shard(1)});
  redistribute(columns, {Replicate()});
  redistribute(t.first_addends, {Replicate()});
  redistribute(t.second_addends, {Shard(0)});
}

// Once, for layouts that were never seen before; the code itself has run already, for another size.
int count_five() {
  const DeviceMesh mesh(World::abstract(256), {256}, {"x"});
  redistribute_all(inputs(mesh, 1024));
  const Inputs fresh = inputs(mesh, 4096);
  count_instructions("five redistributions", [&] { redistribute_all(fresh); });
  return 0;
}

int run() {
  if (absl::GetFlag(FLAGS_count)) return count_five();
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
