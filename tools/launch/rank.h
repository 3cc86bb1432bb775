// One rank as tools/launch sees it: a process, and what it writes.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>

#include "tools/launch/options.h"
#include "tools/launch/output.h"

namespace dtensor::launch {

// One output of a rank: forwarded line by line with a prefix, without mixing lines of several ranks, and copied to a
// log.
class LineStream {
 public:
  LineStream() = default;
  // `log`: a descriptor, which is closed with `from`; -1 for none.
  LineStream(int from, Output& to, std::string prefix, int log, std::string log_path)
      : from_(from), to_(&to), prefix_(std::move(prefix)), log_(log), log_path_(std::move(log_path)) {}
  int fd() const { return from_; }  // -1: it has ended
  Output& output() const { return *to_; }
  // Passes on what is there without waiting. `last`: nothing will follow.
  void drain(bool last);

 private:
  void emit(size_t end);
  void log(const char* data, size_t size);
  void close_log();
  int from_ = -1;
  Output* to_ = nullptr;
  std::string prefix_, pending_;  // pending: the beginning of a line
  int log_ = -1;
  std::string log_path_;
};

struct Rank {
  pid_t pid = -1;  // also of its process group
  bool running = false;
  LineStream out, err;
};

// The settings of a rank's process at its start.
struct RankSettings {
  sigset_t signals;  // that are blocked
  rlimit files;
};
// Which one is to be started.
struct RankPlace {
  const Options& options;
  int attempt, rank;
};
// If its program cannot be run, errno is written to `exec_errors`. If there can be no rank, or no log, `problem` says
// why, and the job is to end.
Rank start_rank(const RankPlace& place, const RankSettings& settings, int exec_errors, Output& out, Output& err,
                std::string& problem);

// Where a rank's logs are, as torchrun has them: "DIR/attempt_0/3".
std::string log_folder(const RankPlace& place);

}  // namespace dtensor::launch
