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

}  // namespace dtensor::launch
