// A loop whose calls are all alike, which one rank does not make as the others do: call_history_program HOW [RANK
// [HOLDER]]. RANK (0) does what HOW says in its third step of eight:
//   alike     nothing
//   forgets   it forgets what its tensor was reduced to, so that the next operator reduces it again
//   extra     it takes the step once more, with another tensor
//   fewer     it leaves out the step
//   catches   as extra, and all ranks catch what they get, and end with 0
// or at its end:
//   late      it ends nine seconds after the others
//   killed    its process is killed
// HOLDER: "main" (default) or "leaked", where the world lives until the process exits. call_history_test.sh looks at
// what the ranks say.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "dtensor/from_local.h"
#include "dtensor/remembered_layouts.h"

namespace dtensor {
namespace {

at::Tensor sum_of_ranks(const DeviceMesh& mesh, int64_t step) {
  const auto value = static_cast<double>(mesh.local_ranks()[0] + step);
  return from_local({at::full({2, 3}, value, at::kDouble)}, mesh, {Shard(0)}).sum(0);
}

bool take_step(const DeviceMesh& mesh, int64_t step, bool forgets) {
  const at::Tensor sum = sum_of_ranks(mesh, step);
  at::sin(sum);
  if (forgets) forget_remembered(mesh.world());
  const at::Tensor result = to_local(at::sin(sum) * 2)[0];
  const int64_t n = mesh.size();
  const auto whole = static_cast<double>(2 * (n * (n - 1) / 2 + n * step));
  return at::allclose(result, at::full({3}, whole, at::kDouble).sin() * 2);
}

int run(const std::string& how, int64_t rank, const World& job) {
  const DeviceMesh mesh(job, {job.size()}, {"tp"});
  const bool differs = job.owned_ranks()[0] == rank;
  bool right = true;
  for (int64_t step = 1; step <= 8; ++step) {
    const bool now = differs && step == 3;
    if (now && how == "fewer") continue;
    right &= take_step(mesh, step, now && how == "forgets");
    if (now && (how == "extra" || how == "catches")) take_step(mesh, step, false);
  }
  std::printf("%s\n", right ? "all right" : "wrong values");
  std::fflush(stdout);
  if (differs && how == "late") std::this_thread::sleep_for(std::chrono::seconds(9));
  if (differs && how == "killed") ::raise(SIGKILL);
  return 0;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  using namespace dtensor;
  const std::string how = argc > 1 ? argv[1] : "alike", holder = argc > 3 ? argv[3] : "main";
  try {
    World job = World::from_env();
    if (holder == "leaked") new World(job);
    return run(how, argc > 2 ? std::atoll(argv[2]) : 0, job);
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what_without_backtrace());
    return how == "catches" ? 0 : 1;
  }
}
