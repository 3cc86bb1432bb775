// Rank 0 ends at once; the others make a new group half a second later, for which they need the store.
// early_end_test.sh runs it.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "processes/launch/launch_env.h"

int main() {
  using namespace dtensor;
  using namespace dtensor::internal;
  try {
    LaunchOptions options;
    options.device = "cpu";
    const World world = World::from_env(options);
    if (world.owned_ranks()[0] == 0) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::vector<int64_t> others(world.size() - 1);
    std::iota(others.begin(), others.end(), 1);
    const DeviceMesh mesh(world, {world.size() - 1}, {"tp"}, others);
    const CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), {}, {}};
    const auto sum = world.communicator().all_reduce(call, {at::full({1}, 1.0)}, ReduceOp::kSum);
    std::printf("sum %g\n", sum[0].item<double>());
    return 0;
  } catch (const c10::Error& e) {
    std::printf("error: %s\n", e.what_without_backtrace());
    return 1;
  }
}
