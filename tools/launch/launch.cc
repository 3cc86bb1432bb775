// Runs several processes of a program, as the ranks of one job on this host, and leaves no processes or files behind.
//
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/train_lm --mesh dp=2,tp=2
//
// Every rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and the others at DTENSOR_STORE, a
// file in a private folder: no port is opened. Lines of output begin with "[rank k] ". When a rank fails, the others
// have a short time to report their errors, then they are stopped; the exit code is that of the first to fail.
//
// Two processes, so that either can tidy up should the other be killed: this file's waits, the job's (job.h) works.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "tools/launch/clean_up.h"
#include "tools/launch/job.h"
#include "tools/launch/options.h"
#include "tools/launch/output.h"

namespace {

using namespace dtensor::launch;

// Waits for the job's process, and forwards signals to it.
int keep(pid_t job, const sigset_t& signals) {
  for (;;) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGCHLD) {
      kill(job, signal);
      continue;
    }
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != job) continue;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      Output err(2);
      err.add("launch: killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) +
              ")\n");
      err.write_some();
      return 128 + WTERMSIG(status);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse_options(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  for (int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&mask, s);
  sigprocmask(SIG_BLOCK, &mask, &old_mask);

  const char* base = getenv("TMPDIR");
  options.folder = std::string(base != nullptr && base[0] == '/' ? base : "/tmp") + "/dtensor-launch-XXXXXX";
  if (mkdtemp(options.folder.data()) == nullptr) die("cannot make a folder " + options.folder);
  // Orphaned descendants become children of this process, which can then find and stop them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t parent = getpid(), job = fork();
  if (job < 0) {
    const int error = errno;
    remove_folder(options.folder);
    errno = error;
    die("fork");
  }
  if (job == 0) {
    setsid();  // a terminal's signals come here once, from the parent
    prctl(PR_SET_PDEATHSIG, SIGHUP);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    // exit() would flush what the parent has buffered.
    _exit(run_job(options, parent, mask, old_mask));
  }
  const int code = keep(job, mask);
  stop_children();
  remove_folder(options.folder);
  return code;
}
