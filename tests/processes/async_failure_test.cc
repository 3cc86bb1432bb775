// An asynchronous all-reduce, and the calls behind it, when a rank leaves in its first half.
#include <ATen/ops/equal.h>
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

std::string error_of_reading(const at::Tensor& t) {
  try {
    to_local(t);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

TEST_CASE("all calls under way name the rank that left, whichever is read first") {
  const DeviceMesh mesh(job_world(), {2}, {"tp"});
  const auto whole = distribute_tensor(at::ones({10000, 16}, at::kDouble), mesh, {Replicate()});
  const auto partial = redistribute(whole, {Partial()});
  const auto sharded = redistribute(whole, {Shard(0)});
  CHECK(at::equal(full_tensor(partial), at::ones({10000, 16}, at::kDouble)));  // all have met
  if (job_world().owned_ranks()[0] == 1) std::quick_exit(0);                   // leaves
  const at::Tensor sum = redistribute(partial, {Replicate()}, {.async_op = true});
  const at::Tensor behind = redistribute(sharded, {Shard(1)}, {.async_op = true});
  for (const at::Tensor& t : {behind, sum, behind}) {
    const std::string error = error_of_reading(t);
    INFO(error);
    CHECK(error.find("rank 1") != std::string::npos);
    CHECK(error.find("all_reduce over tp for redistribute") != std::string::npos);  // not the call behind it
  }
}

}  // namespace
}  // namespace dtensor
