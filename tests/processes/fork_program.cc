// A rank that forks: fork_program WHAT HOLDER [STORE]. Of three ranks rank 1 makes a child, while a redistribution is
// under way, which
//   return       returns from main with status 7
//   exit         calls exit(7)
//   throw        ends by an exception
//   use          redistributes, read reads what its parent has begun, join asks for the job's world; each says the error
//   throw_use    lets that error leave main
// HOLDER: "main" has the world in a variable of main, "static" in a static one. The rank goes on when the child has
// ended. fork_test.sh looks at what they say.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"

namespace dtensor {
namespace {

at::Tensor sum(const DeviceMesh& mesh, bool async) {
  const auto partial = from_local({at::ones({4096, 16})}, mesh, {Partial()});
  return redistribute(partial, {Replicate()}, {.async_op = async});
}
bool right(const at::Tensor& sum) { return at::allclose(to_local(sum)[0], at::full({4096, 16}, 3.0)); }

// Of the child: what it is to do while it can use the parent's tensors.
void try_to(const std::string& what, const DeviceMesh& mesh, const at::Tensor& begun) {
  if (what == "use" || what == "throw_use") to_local(sum(mesh, false));
  if (what == "read") to_local(begun);
  if (what == "join") World::from_env();
  if (what == "throw") throw std::runtime_error("the child's own error");
}

std::string status_of(pid_t child) {
  for (int i = 0; i < 1500; ++i) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? "exited " + std::to_string(WEXITSTATUS(status))
                               : "signal " + std::to_string(WTERMSIG(status));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return "hangs";
}

int run(World& world, const std::string& what) {
  world = World::from_env();
  const DeviceMesh mesh(world, {world.size()}, {"tp"});
  if (!right(sum(mesh, false))) return 3;
  at::Tensor begun;
  if (world.owned_ranks()[0] == 1) {
    begun = sum(mesh, true);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        try_to(what, mesh, begun);
      } catch (const c10::Error& e) {
        std::fprintf(stderr, "child says: %s\n", e.what_without_backtrace());
        if (what == "throw_use") throw;
      }
      if (what == "exit") std::exit(7);
      return 7;
    }
    std::printf("child %s\n", status_of(child).c_str());
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    begun = sum(mesh, false);
  }
  if (!right(begun) || !right(sum(mesh, false))) return 3;
  const DeviceMesh again(world, {1, 3}, {"a", "b"});  // needs the store once more
  const auto partial = from_local({at::ones({4096, 16})}, again, {Replicate(), Partial()});
  if (!right(redistribute(partial, {Replicate(), Replicate()}))) return 3;
  if (const char* store = std::getenv("DTENSOR_STORE"); store != nullptr && ::access(store + 7, F_OK) != 0) return 4;
  std::printf("fine\n");
  return 0;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  using namespace dtensor;
  const std::string what = argc > 1 ? argv[1] : "";
  World local;
  static World held;
  return run(argc > 2 && argv[2] == std::string("static") ? held : local, what);
}
