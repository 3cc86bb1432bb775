// The rank of this process, the number of ranks, and the rendezvous, from the variables that launchers set.
//
// Explicit options come first, then torchrun, Open MPI, MPICH (and Intel MPI), Slurm; without any of them it is a
// single process. Pure: reads variables through a function, opens nothing. docs/worlds.md has the table of variables.
//
//   if (find_launcher() == Launcher::kNone) std::cout << "not started by a launcher\n";
//   LaunchOptions options;
//   options.device = "cpu";
//   std::cout << "rank " << find_job_place(options).rank << "\n";  // does not wait; World::from_env(options) does
#pragma once

#include <chrono>
#include <string>

#include "processes/launch/job_place.h"

namespace dtensor {

// The launcher that started this process: the first with any of its variables set. Does not fail.
Launcher find_launcher(const LaunchOptions& options = {}, const Variables& variables = process_environment());
// Errors (c10::Error): a variable is missing or bad. The text names it, its value, and the launcher that was detected.
JobPlace find_job_place(const LaunchOptions& options, const Variables& variables = process_environment());
// The deadline alone: `options`' own, else DTENSOR_TIMEOUT, else 10 minutes. Errors: as above.
std::chrono::milliseconds find_timeout(const LaunchOptions& options,
                                       const Variables& variables = process_environment());

}  // namespace dtensor
