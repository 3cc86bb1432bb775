// A program's options for its place in a job, and the resulting place.
//
//   LaunchOptions options;  // unset options come from the launcher's variables
//   options.device = "cpu";
//   options.timeout = std::chrono::seconds(30);
//   World world = World::from_env(options);
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace dtensor {

// Options that a program may set; the others come from the environment.
struct LaunchOptions {
  std::optional<int64_t> rank, world_size;
  std::optional<int64_t> local_rank;  // among the processes on this host
  // "file:///path" (one host), "tcp://host:port" (rank 0 listens there, on that address alone).
  std::string store;
  std::string backend;  // "gloo" or "nccl"; "": nccl where CUDA devices are and `device` is not "cpu"
  std::string device;   // "cpu", "cuda", "cuda:1"; "": cuda:local_rank with nccl, else cpu
  // Timeout of every wait. 0: DTENSOR_TIMEOUT (seconds), else 10 minutes.
  std::chrono::milliseconds timeout{0};
};

enum class Launcher { kOptions, kTorchrun, kOpenMpi, kMpich, kSlurm, kNone };
std::string to_string(Launcher launcher);  // "torchrun", "Open MPI", ...

// The answer.
struct JobPlace {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0, world_size = 1;
  int64_t local_rank = -1, local_world_size = -1;  // among the processes on this host; -1: not known
  std::string store;                               // as in LaunchOptions; "": none is needed, as the process is alone
  std::string store_source;                        // its origin, for errors: "MASTER_ADDR and MASTER_PORT"
  bool store_exists = false;                       // the launcher's agent serves it: rank 0 must connect, too
  bool store_derived = false;                      // a file whose folder this library makes, for this user alone
  std::string run_id;         // equal on all ranks, "" if the launcher gives none; part of the store's keys
  int64_t restart_count = 0;  // torchrun's; likewise
  std::string error_file;     // torchrun's; "" without one
  std::chrono::milliseconds timeout{0};
};

// The value of the variable `name`. An empty one counts as missing.
using Variables = std::function<std::optional<std::string>(const char* name)>;
// The variables of this process.
Variables process_environment();

}  // namespace dtensor
