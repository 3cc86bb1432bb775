// A communicator that goes wrong on purpose: for tests of what a job does when one of its ranks fails.
//
//   Fault fault{Fault::Kind::kDtype, /*call=*/4, {}, [] { std::fprintf(stderr, "the fault fires\n"); }};
//   const World world = faulty_world(World::from_env(), rank == 1 ? fault : Fault{});
//
// All collectives of the world go through to those of the other one, but for one, which is not what the program asked
// for. The program then goes on as if all were well: what is wrong, the other ranks must find out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "mesh/world.h"

namespace dtensor::testing {

struct Fault {
  enum class Kind {
    kNone,
    kShape,       // twice as many rows, in the report, too
    kDtype,       // of the same width: i32 instead of f32
    kCollective,  // an all_gather instead of an all_reduce, an all_reduce instead of anything else
    kMissing,     // no call at all: the rank takes its own part for the result, and zeros for what others would send
    kSlow,        // the call comes after `delay`
    kThrow,       // "the disk is full", from the call
    kTerminate,   // the same in a thread of its own: std::terminate
    kKill,        // SIGKILL
    kStop,        // SIGSTOP
    kExit,        // the process ends with 0
  };
  Kind kind = Kind::kNone;
  int64_t call = 1;  // which collective of the communicator, from 1
  std::chrono::milliseconds delay{0};
  std::function<void()> on_fire = {};  // called before the fault: the proof that it came to that
};

// "shape", "dtype", "collective", "missing", "slow", "throw", "terminate", "kill", "stop", "exit", "none"; nullopt:
// another word.
std::optional<Fault::Kind> fault_kind(std::string_view word);

// The ranks of `world`, of which this process owns one, and its communicator with a fault. Every call is carried once,
// and reported once, as the program made it. Keeps `world` until it ends itself.
World faulty_world(const World& world, Fault fault);

}  // namespace dtensor::testing
