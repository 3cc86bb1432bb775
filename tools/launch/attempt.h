// One attempt to run a job: all ranks, from their start until every one has ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/options.h"
#include "tools/launch/output.h"
#include "tools/launch/rank.h"

namespace dtensor::launch {

using Clock = std::chrono::steady_clock;
using Time = std::optional<Clock::time_point>;

constexpr int kTimedOut = 124;

inline Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// State shared by all attempts.
struct Shared {
  const Options& options;
  const pid_t parent;  // when it is gone everything is stopped
  const int signals;   // a signalfd of signals for the ranks, and of SIGCHLD
  const RankSettings settings;
  Time deadline;           // of all attempts together
  bool timed_out = false;  // ranks were running then
  Output out{1}, err{2};
  int end_asked = 0;    // by the user: the last SIGINT, SIGTERM, SIGHUP or SIGQUIT; 0: not yet
  int interrupts = 0;   // SIGINT, SIGTERM and SIGHUP so far
  bool unread = false;  // the ranks' output has no reader

  void say(const std::string& text) { err.add("launch: " + text + "\n"); }
};

struct Outcome {
  std::string report;  // "rank 2 exited with code 3; ranks 0, 1 were stopped"; "" where all is well
  int code = 0;
  bool can_start_again = true;  // another attempt may end otherwise
};

// Runs all ranks. What they started is gone when this returns, and what they wrote has been added to the outputs.
Outcome run_attempt(Shared& shared, int number);

// Waits until the outputs are written, the job's deadline has passed, or the user wants the end; not for long if that
// was so before, or the parent is gone. 0, or the exit code of a job to which nothing worse happened: kTimedOut, or 128
// + the user's signal.
int flush_outputs(Shared& shared);

}  // namespace dtensor::launch
