// One rank as tools/launch sees it: a process, and what it writes.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>

#include "tools/launch/job.h"

namespace dtensor::launch {

// What a rank writes to one of its outputs, passed on line by line. Lines have a prefix; none is cut by another one's.
class LineStream {
 public:
  LineStream() = default;
  LineStream(int from, int to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {}
  int fd() const { return from_; }  // -1: it has ended
  // Passes on what is there without waiting. `last`: nothing will follow. False if nobody reads what is written.
  bool drain(bool last);

 private:
  bool emit(size_t end);
  int from_ = -1, to_ = -1;
  std::string prefix_, pending_;  // pending: the beginning of a line
};

struct Rank {
  pid_t pid = -1;  // also of its process group
  bool running = false;
  LineStream out, err;
};

// What a rank's process begins with.
struct RankSettings {
  sigset_t signals;  // that are blocked
  rlimit files;
};
// Rank k of the job. If its program cannot be run, errno is written to `exec_errors`. Ends this process if there can be
// no rank.
Rank start_rank(const Options& options, int k, const RankSettings& settings, int exec_errors);

}  // namespace dtensor::launch
