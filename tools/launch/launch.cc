// Runs a program several times beside each other, as the ranks of one job on this host, and leaves nothing behind.
//
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/train_lm --mesh dp=2,tp=2
//
// Every rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and the others at DTENSOR_STORE, a
// file in a private folder: no port is opened. Lines of output begin with "[rank k] ". When a rank fails, the others
// have a little time to say why they cannot go on, then they are stopped; the exit code is that of the first to fail.
//
// Two processes, so that either can tidy up should the other be killed: this file's waits, the job's (launch_job.h)
// works.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tools/launch/job.h"

namespace {

using namespace dtensor::launch;

constexpr int kUsage = 2;
constexpr char kHelp[] =
    "usage: launch -n RANKS [--timeout SECONDS] [--grace SECONDS] [--] PROGRAM [ARGUMENTS]\n"
    "  -n RANKS           how many processes\n"
    "  --timeout SECONDS  stop everything then and exit with 124; by default never\n"
    "  --grace SECONDS    how long the others may go on when one has failed; 3 by default\n"
    "The exit code is that of the first rank to fail, 128 + N if signal N killed it, or 0.\n";

[[noreturn]] void usage_error(const std::string& text) {
  fprintf(stderr, "launch: %s; --help tells more\n", text.c_str());
  exit(kUsage);
}

template <typename T>
bool parse_number(const std::string& text, T& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

Options parse(int argc, char** argv) {
  Options options;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    std::string flag = argv[i], value;
    if (flag == "--") {
      ++i;
      break;
    }
    if (flag == "--help" || flag == "-h") {
      fputs(kHelp, stdout);
      exit(0);
    }
    const size_t equals = flag.find('=');
    if (equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    }
    if (flag != "-n" && flag != "--grace" && flag != "--timeout") usage_error("unknown option " + flag);
    if (equals == std::string::npos) {
      if (++i >= argc) usage_error(flag + " needs a value");
      value = argv[i];
    }
    if (flag == "-n") {
      if (!parse_number(value, options.ranks) || options.ranks < 1 || options.ranks > 1024) {
        usage_error("-n " + value + ": expected a number of ranks from 1 to 1024");
      }
    } else {
      double& seconds = flag == "--grace" ? options.grace : options.timeout;
      if (!parse_number(value, seconds) || !std::isfinite(seconds) || seconds > 1e7 ||
          seconds < (flag == "--grace" ? 0 : 0.001)) {
        usage_error(flag + " " + value + ": expected seconds, such as 30 or 2.5");
      }
    }
  }
  if (options.ranks == 0) usage_error("-n RANKS is missing");
  options.command.assign(argv + std::min(i, argc), argv + argc);
  if (options.command.empty()) usage_error("no program to run");
  return options;
}

// Waits for the job's process, and tells it what this one is told.
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
      fprintf(stderr, "launch: killed by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
      return 128 + WTERMSIG(status);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  sigset_t mask, old_mask;
  sigemptyset(&mask);
  for (int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&mask, s);
  sigprocmask(SIG_BLOCK, &mask, &old_mask);

  const char* base = getenv("TMPDIR");
  options.folder = std::string(base != nullptr && base[0] == '/' ? base : "/tmp") + "/dtensor-launch-XXXXXX";
  if (mkdtemp(options.folder.data()) == nullptr) die("cannot make a folder " + options.folder);
  // What outlives its parent becomes a child of this process, which can then find it and stop it.
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
