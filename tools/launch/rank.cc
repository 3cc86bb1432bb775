#include "tools/launch/rank.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace dtensor::launch {
namespace {

constexpr int kNotFound = 127;

std::vector<std::string> environment_of(const RankPlace& place) {
  const Options& options = place.options;
  std::vector<std::string> variables;
  const auto set = [&](const std::string& name, const std::string& value) { variables.push_back(name + "=" + value); };
  set("RANK", std::to_string(place.rank));
  set("WORLD_SIZE", std::to_string(options.ranks));
  set("LOCAL_RANK", std::to_string(place.rank));
  set("LOCAL_WORLD_SIZE", std::to_string(options.ranks));
  set("DTENSOR_STORE", "file://" + options.folder + "/store_" + std::to_string(place.attempt));
  set("TORCHELASTIC_RESTART_COUNT", std::to_string(place.attempt));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts));
  if (!options.log_folder.empty()) set("TORCHELASTIC_ERROR_FILE", log_folder(place) + "/error.json");
  if (getenv("OMP_NUM_THREADS") == nullptr) {
    cpu_set_t cores;
    const int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    set("OMP_NUM_THREADS", std::to_string(std::max(1, n / options.ranks)));
  }
  const auto own = static_cast<ptrdiff_t>(variables.size());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    // Variables of a torchrun around this program are not valid for these ranks.
    const bool outer = name.rfind("TORCHELASTIC_", 0) == 0 || name == "MASTER_ADDR=" || name == "MASTER_PORT=";
    const bool replaced = std::any_of(variables.begin(), variables.begin() + own,
                                      [&](const std::string& v) { return v.rfind(name, 0) == 0; });
    if (!outer && !replaced) variables.push_back(text);
  }
  return variables;
}

std::string why_not(const std::string& what) { return what + ": " + strerror(errno); }

void make_folders(const std::string& path, std::string& problem) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0777);
  }
  if (mkdir(path.c_str(), 0777) != 0) problem = why_not("cannot make the folder " + path + " for logs");
}

// A new file, so that no other run's is lost. -1: there is to be none.
int open_log(const std::string& path, std::string& problem) {
  if (path.empty() || !problem.empty()) return -1;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) problem = why_not("cannot make the log " + path);
  return fd;
}

}  // namespace

std::string log_folder(const RankPlace& place) {
  return place.options.log_folder + "/attempt_" + std::to_string(place.attempt) + "/" + std::to_string(place.rank);
}

Rank start_rank(const RankPlace& place, const RankSettings& settings, int exec_errors, Output& to_out, Output& to_err,
                std::string& problem) {
  const std::string k = std::to_string(place.rank);
  Rank rank;
  std::string out_log, err_log;
  if (!place.options.log_folder.empty()) {
    make_folders(log_folder(place), problem);
    out_log = log_folder(place) + "/stdout.log";
    err_log = log_folder(place) + "/stderr.log";
  }
  const int to_out_log = open_log(out_log, problem), to_err_log = open_log(err_log, problem);
  int out[2], err[2];
  if (!problem.empty()) return rank;
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    problem = why_not("no pipe for rank " + k);
    return rank;
  }
  const std::vector<std::string> environment = environment_of(place);
  std::vector<char*> arguments, variables;
  for (const std::string& a : place.options.command) arguments.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  const pid_t self = getpid();
  rank.pid = fork();
  if (rank.pid < 0) {
    problem = why_not("cannot start rank " + k);
    return rank;
  }
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
  const std::string attempt = place.options.max_restarts > 0 ? ", attempt " + std::to_string(place.attempt) : "";
  const std::string prefix = "[rank " + k + attempt + "] ";
  rank.out = LineStream(out[0], to_out, prefix, to_out_log, out_log);
  rank.err = LineStream(err[0], to_err, prefix, to_err_log, err_log);
  return rank;
}

}  // namespace dtensor::launch
