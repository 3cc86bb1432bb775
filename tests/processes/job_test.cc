// What one process of a job does for itself, without others.
#include "processes/job.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "dtensor/scopes.h"
#include "mesh/device_mesh.h"
#include "mesh/scope.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
namespace {

// A backend's thread lets go of its last work some time after that is done. If the work knew the scope, that thread
// might be the last to hold the world: it would end the world, and with it the backend, which waits for its threads; or
// the process ends first, and leaves the store behind.
TEST_CASE("job: what a backend starts does not hold the scope it was started in") {
  Job job(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(5));
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const MeshScope scope(mesh);
  const auto outside = c10::ThreadLocalDebugInfo::current();
  bool started = false;
  const auto start = [&](bool fails) {
    return [&, fails]() -> c10::intrusive_ptr<c10d::Work> {
      started = true;
      CHECK_FALSE(current_scope().mesh.defined());
      CHECK(c10::ThreadLocalDebugInfo::current() == nullptr);
      if (fails) throw std::runtime_error("no route");
      return {};
    };
  };
  job.run({"0", 1, "a call"}, {0}, start(false));
  CHECK(started);
  CHECK(current_scope().mesh == mesh);
  CHECK(c10::ThreadLocalDebugInfo::current() == outside);
  CHECK_THROWS_WITH(job.run({"0", 2, "a call"}, {0}, start(true)), Contains("rank 0 failed: a call: no route"));
  CHECK(current_scope().mesh == mesh);
}

}  // namespace
}  // namespace dtensor
