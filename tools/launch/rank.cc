#include "tools/launch/rank.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace dtensor::launch {
namespace {

constexpr int kNotFound = 127;

std::vector<std::string> environment_of(const Options& options, int k) {
  std::vector<std::string> variables;
  const auto set = [&](const std::string& name, const std::string& value) { variables.push_back(name + "=" + value); };
  set("RANK", std::to_string(k));
  set("WORLD_SIZE", std::to_string(options.ranks));
  set("LOCAL_RANK", std::to_string(k));
  set("LOCAL_WORLD_SIZE", std::to_string(options.ranks));
  set("DTENSOR_STORE", "file://" + options.folder + "/store");
  if (getenv("OMP_NUM_THREADS") == nullptr) {
    cpu_set_t cores;
    const int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    set("OMP_NUM_THREADS", std::to_string(std::max(1, n / options.ranks)));
  }
  const auto own = static_cast<ptrdiff_t>(variables.size());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    // What a torchrun around this program said is not true for these ranks.
    const bool outer = name.rfind("TORCHELASTIC_", 0) == 0 || name == "MASTER_ADDR=" || name == "MASTER_PORT=";
    const bool replaced = std::any_of(variables.begin(), variables.begin() + own,
                                      [&](const std::string& v) { return v.rfind(name, 0) == 0; });
    if (!outer && !replaced) variables.push_back(text);
  }
  return variables;
}

}  // namespace

Rank start_rank(const Options& options, int k, const RankSettings& settings, int exec_errors) {
  Rank rank;
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) die("no pipe for rank " + std::to_string(k));
  const std::vector<std::string> environment = environment_of(options, k);
  std::vector<char*> arguments, variables;
  for (const std::string& a : options.command) arguments.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  const pid_t self = getpid();
  rank.pid = fork();
  if (rank.pid < 0) die("cannot start rank " + std::to_string(k));
  if (rank.pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(1);  // it died before that
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &settings.signals, nullptr);
    setrlimit(RLIMIT_NOFILE, &settings.files);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execvpe(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    if (write(exec_errors, &error, sizeof error) < 0) _exit(1);
    _exit(kNotFound);
  }
  setpgid(rank.pid, rank.pid);  // whichever of the two comes first
  rank.running = true;
  close(out[1]);
  close(err[1]);
  for (int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  const std::string prefix = "[rank " + std::to_string(k) + "] ";
  rank.out = LineStream(out[0], 1, prefix);
  rank.err = LineStream(err[0], 2, prefix);
  return rank;
}

}  // namespace dtensor::launch
