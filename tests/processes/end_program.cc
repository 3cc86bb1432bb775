// A rank that ends in the middle of a job: end_program HOW PENDING HOLDER FOLDER. Of three ranks the one that END_RANK
// says (1) ends, by HOW:
//   return           from main, with status 7
//   exit             exit(7); quick_exit: std::quick_exit(7)
//   throw            an exception leaves main
// while PENDING is under way:
//   nothing
//   async            a redistribution that the others come to when it is too late
//   late             one that they come to a second later
//   checkpoint       an asynchronous checkpoint in FOLDER
//   slow_checkpoint  one that is still being written
//   thread           a collective in another thread
// and HOLDER has the world: main (a variable there), static (made by a function's static variable), early (a global
// variable, older than all that the library makes), leaked (never destroyed).
// The others say what becomes of their next collective. end_test.sh looks at that. If HOLDER is none, every rank ends
// its world first, and then its process by HOW, with status 0; if it is tensor, a global tensor keeps the world.
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"

namespace dtensor {
namespace {

// What is under way, and the world that it needs.
struct Held {
  World world;
  at::Tensor result;
  std::optional<PendingCheckpoint> checkpoint;
};
Held early;

int64_t end_rank() {
  const char* rank = std::getenv("END_RANK");
  return rank == nullptr ? 1 : std::atoll(rank);
}

void ends_at_exit() { std::fprintf(stderr, "exit handlers run\n"); }

at::Tensor partial(const DeviceMesh& mesh) { return from_local({at::ones({4096, 16})}, mesh, {Partial()}); }

void sum(const DeviceMesh& mesh, const RedistributeOptions& options = {}) {
  to_local(redistribute(partial(mesh), {Replicate()}, options));
}

void begin(Held& held, const std::string& pending, const DeviceMesh& mesh, const std::string& folder) {
  if (pending == "async" || pending == "late") {
    held.result = redistribute(partial(mesh), {Replicate()}, {.async_op = true});
  } else if (pending == "checkpoint" || pending == "slow_checkpoint") {
    const auto x = distribute_tensor(at::ones({1 << 10, 1 << 10}), mesh, {Shard(0)});
    SaveCheckpointOptions options;
    if (pending == "slow_checkpoint") {
      options.progress = [](const CheckpointProgress&) { std::this_thread::sleep_for(std::chrono::milliseconds(700)); };
    }
    held.checkpoint.emplace(save_checkpoint_async(folder, {.tensors = {{"x", x}}}, options));
  } else if (pending == "thread") {
    std::thread([mesh] { sum(mesh); }).detach();  // what it throws when the process ends must do no harm
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
}

int others(Held& held, const std::string& pending, const DeviceMesh& mesh) {
  if (pending == "late") {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    sum(mesh);
    std::printf("has its part\n");
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(pending == "async" || pending == "thread" ? 10 : 0));
  }
  if (held.checkpoint) held.checkpoint->wait();
  sum(mesh);
  sum(mesh);
  std::printf("fine\n");
  return 0;
}

int run(Held& held, const std::string& how, const std::string& pending, const std::string& folder) {
  held.world = World::from_env();
  const DeviceMesh mesh(held.world, {held.world.size()}, {"tp"});
  const bool ends = held.world.owned_ranks()[0] == end_rank();
  sum(mesh);
  if (ends || pending.find("checkpoint") != std::string::npos) begin(held, pending, mesh, folder);
  if (!ends) return others(held, pending, mesh);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::fprintf(stderr, "ends: %s, %s, at %lld\n", how.c_str(), pending.c_str(),
               static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(now).count()));
  if (how == "exit") std::exit(7);
  if (how == "quick_exit") std::quick_exit(7);
  return 7;
}

Held& static_held() {
  static Held held;
  return held;
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  using namespace dtensor;
  const auto word = [&](int i) { return std::string(argc > i ? argv[i] : ""); };
  const std::string how = word(1), holder = word(3);
  std::atexit(ends_at_exit);
  std::at_quick_exit(ends_at_exit);
  if (holder == "none" || holder == "tensor") {
    {
      const DeviceMesh mesh(World::from_env(), {3}, {"tp"});
      sum(mesh);
      if (holder == "tensor") early.result = partial(mesh);
    }
    if (how == "quick_exit") std::quick_exit(0);
    return 0;
  }
  Held local;
  Held& held = holder == "static" ? static_held() : holder == "early" ? early : holder == "leaked" ? *new Held : local;
  const auto call = [&] { return run(held, how, word(2), word(4)); };
  int code = 1;
  const bool ends = how == "throw" && std::getenv("RANK") == std::to_string(end_rank());
  try {
    code = call();
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what_without_backtrace());
  }
  if (ends) throw std::runtime_error("the disk is full");
  return code;
}
