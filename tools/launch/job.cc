#include "tools/launch/job.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "tools/launch/attempt.h"
#include "tools/launch/clean_up.h"

namespace dtensor::launch {
namespace {

// `bazel run` starts this in another folder than the user's.
void go_to_the_user(const std::string& program) {
  const char* home = getenv("BUILD_WORKING_DIRECTORY");
  if (home == nullptr || program[0] == '/' || program.find('/') == std::string::npos) return;
  if (access(program.c_str(), X_OK) != 0 && chdir(home) != 0) die(std::string("cannot go to ") + home);
}

// Two pipes and two logs a rank may be more than usual.
rlimit allow_all_files() {
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit most = {files.rlim_max, files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  return files;
}

int run_attempts(Shared& shared) {
  const int restarts = shared.options.max_restarts;
  for (int number = 0;; ++number) {
    const Outcome outcome = run_attempt(shared, number);
    const bool again = outcome.code != 0 && outcome.can_start_again && number < restarts;
    const std::string which = restarts > 0 ? "attempt " + std::to_string(number) + ": " : "";
    if (!outcome.report.empty()) {
      shared.say(which + outcome.report +
                 (again ? "; restart " + std::to_string(number + 1) + " of " + std::to_string(restarts) : ""));
    }
    if (!again) return outcome.code;
  }
}

}  // namespace

int run_job(const Options& options, pid_t parent, const sigset_t& signals, const sigset_t& rank_mask) {
  if (getppid() != parent) {  // it died before it could be watched
    remove_folder(options.folder);
    return 1;
  }
  const int descriptor = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor < 0) die("signalfd");
  go_to_the_user(options.command[0]);
  Shared shared{options, parent, descriptor, {rank_mask, allow_all_files()}, {}};
  if (options.timeout > 0) shared.deadline = Clock::now() + seconds(options.timeout);
  const int code = run_attempts(shared);
  remove_folder(options.folder);
  const int unwritten = flush_outputs(shared);
  return code != 0 ? code : unwritten;
}

}  // namespace dtensor::launch
