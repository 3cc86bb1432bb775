// What reading an exchange that goes on by itself says when a rank has left before its part.
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

TEST_CASE("every read after a failure throws its reason") {
  const DeviceMesh mesh(job_world(), {2}, {"tp"});
  const auto x = distribute_tensor(at::ones({12, 10}), mesh, {Shard(0)});
  redistribute(x, {Shard(1)});                                // all have met
  if (job_world().owned_ranks()[0] == 1) std::quick_exit(0);  // leaves
  const at::Tensor y = redistribute(x, {Shard(1)}, {.async_op = true});
  for (int i = 0; i < 2; ++i) {
    std::string error;
    try {
      to_local(y);
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    }
    INFO(error);
    CHECK(error.find("rank 1") != std::string::npos);
    CHECK(error.find("all_to_all over tp for redistribute") != std::string::npos);
  }
}

}  // namespace
}  // namespace dtensor
