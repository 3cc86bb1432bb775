// Threads of two ranks that make groups of several meshes, each rank in an order of its own.
#include <ATen/ops/full.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

// Without groups, which other cases make in job_world().
const World& new_world() {
  static const World world = World::from_env();
  return world;
}

// Makes the mesh's group on the calling thread; "" if the result is right.
std::string error_of_first_call(const std::string& dim) {
  try {
    const DeviceMesh mesh(new_world(), {2}, {dim});
    const auto own = static_cast<double>(own_rank() + 1);
    const auto x = from_local({at::full({3}, own)}, mesh, {Partial()});
    const auto sum = to_local(redistribute(x, {Replicate()}))[0];
    return sum[2].item<double>() == 3 ? "" : "a wrong sum";
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Each rank has one thread per dim, of which the later one begins after the ranks have long seen each other elsewhere.
std::vector<std::string> errors_of_two_threads(std::vector<std::string> dims) {
  if (own_rank() == 1) std::swap(dims[0], dims[1]);
  std::vector<std::string> errors(2);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(6));
    errors[1] = error_of_first_call(dims[1]);
  });
  errors[0] = error_of_first_call(dims[0]);
  later.join();
  return errors;
}

TEST_CASE("group meeting: another thread may join the group where a rank is missing", "[processes][group_meeting]") {
  // A thread other than the main one makes groups on both ranks, as ranks tell one another.
  std::string error;
  std::thread([&] { error = error_of_first_call("cp"); }).join();
  CHECK(error.empty());
  CHECK(errors_of_two_threads({"dp", "tp"}) == std::vector<std::string>{"", ""});
}

}  // namespace
}  // namespace dtensor
