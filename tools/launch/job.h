// The part of tools/launch that starts ranks and watches them. No library here: it must work where nothing else does.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "tools/launch/options.h"

namespace dtensor::launch {

// Runs the job in this process, whose children are the ranks, in as many attempts as it needs and may have, and returns
// the exit code of the last. When `parent` is no longer this process's parent, everything is stopped. `signals`:
// blocked, and forwarded to the ranks, which begin with `rank_mask`.
int run_job(const Options& options, pid_t parent, const sigset_t& signals, const sigset_t& rank_mask);

// Kills and awaits this process's children, and their children where this process is a subreaper.
void stop_children();
// With the files in it.
void remove_folder(const std::string& folder);
// "launch: WHAT: what errno says", and exit code 1.
[[noreturn]] void die(const std::string& what);

}  // namespace dtensor::launch
