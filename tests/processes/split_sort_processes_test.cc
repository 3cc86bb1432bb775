// Sorting along a split dim between processes: each knows its own part alone.
#include "tests/processes/job_world.h"
#include "tests/testing/split_sort_cases.h"

namespace dtensor::testing {
namespace {

TEST_CASE("a vector sorted between processes equals one device", "[processes][split_sort]") {
  check_split_sorts(DeviceMesh(job_world(), {job_world().size()}, {"x"}), {Shard(0)});
}

}  // namespace
}  // namespace dtensor::testing
