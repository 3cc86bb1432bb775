#include "tools/launch/job.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>

#include "tools/launch/rank.h"

namespace dtensor::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Time = std::optional<Clock::time_point>;

constexpr int kTimedOut = 124, kNotExecutable = 126, kNotFound = 127;
constexpr auto kTermToKill = std::chrono::seconds(2);

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

std::string seconds_text(double s) {
  char text[32];
  snprintf(text, sizeof text, "%g s", s);
  return text;
}

class Job {
 public:
  Job(const Options& options, pid_t parent, const sigset_t& signals, const sigset_t& rank_mask)
      : options_(options), parent_(parent), rank_mask_(rank_mask), ranks_(options.ranks) {
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) die("signalfd");
  }

  int run() {
    const int not_started = start();
    if (not_started != 0) signal_all(SIGKILL);
    if (options_.timeout > 0) deadline_ = Clock::now() + seconds(options_.timeout);
    while (!running().empty()) step();
    stop_children();
    for (Rank& rank : ranks_) {
      for (LineStream* s : {&rank.out, &rank.err}) s->drain(/*last=*/true);
    }
    remove_folder(options_.folder);
    if (not_started != 0) return not_started;
    if (!report_.empty()) fprintf(stderr, "launch: %s\n", report_.c_str());
    return code_;
  }

 private:
  std::vector<int> running() const;
  std::string running_text() const;  // "rank 2 was", "ranks 0, 3 were"
  int start();
  void step();
  void look_at_the_clock();
  void on_signal();
  void reap();
  void pass_on(LineStream& stream);
  void fail(const std::string& report, int code);
  void signal_all(int signal);

  const Options& options_;
  const pid_t parent_;
  const sigset_t rank_mask_;
  std::vector<Rank> ranks_;
  int signals_ = -1;
  int interrupts_ = 0;
  Time deadline_, term_, kill_;  // when the job is too late, and when the rest is told to end, and made to
  std::string report_;           // of the first failure
  int code_ = 0;
};

std::vector<int> Job::running() const {
  std::vector<int> ranks;
  for (int k = 0; k < options_.ranks; ++k) {
    if (ranks_[k].running) ranks.push_back(k);
  }
  return ranks;
}

std::string Job::running_text() const {
  const std::vector<int> ranks = running();
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text + (ranks.size() == 1 ? " was" : " were");
}

// Exit code if the program cannot be run, else 0.
int Job::start() {
  const std::string& program = options_.command[0];
  // `bazel run` starts this in another folder than the user's.
  if (const char* home = getenv("BUILD_WORKING_DIRECTORY"); home != nullptr && program[0] != '/' &&
                                                            program.find('/') != std::string::npos &&
                                                            access(program.c_str(), X_OK) != 0) {
    if (chdir(home) != 0) die(std::string("cannot go to ") + home);
  }
  // Two pipes a rank may be more than usual.
  RankSettings settings = {rank_mask_, {}};
  getrlimit(RLIMIT_NOFILE, &settings.files);
  const rlimit most = {settings.files.rlim_max, settings.files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
  int exec_pipe[2];  // carries errno of a failed exec; successful ones close it
  if (pipe2(exec_pipe, O_CLOEXEC) != 0) die("pipe");
  for (int k = 0; k < options_.ranks; ++k) ranks_[k] = start_rank(options_, k, settings, exec_pipe[1]);
  close(exec_pipe[1]);
  int error = 0;
  const bool failed = read(exec_pipe[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error);
  close(exec_pipe[0]);
  if (!failed) return 0;
  fprintf(stderr, "launch: cannot run %s: %s\n", program.c_str(), strerror(error));
  return error == ENOENT ? kNotFound : kNotExecutable;
}

// Waits for the next thing to happen, and deals with it.
void Job::step() {
  std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
  std::vector<LineStream*> streams;
  for (Rank& rank : ranks_) {
    for (LineStream* s : {&rank.out, &rank.err}) {
      if (s->fd() < 0) continue;
      fds.push_back({s->fd(), POLLIN, 0});
      streams.push_back(s);
    }
  }
  int wait_ms = -1;
  for (const Time& t : {deadline_, term_, kill_}) {
    if (!t) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*t - Clock::now()).count();
    const int ms = static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000));
    wait_ms = wait_ms < 0 ? ms : std::min(wait_ms, ms);
  }
  if (poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) die("poll");
  for (size_t i = 0; i < streams.size(); ++i) {
    if (fds[i + 1].revents != 0) pass_on(*streams[i]);
  }
  if (fds[0].revents != 0) on_signal();
  look_at_the_clock();
}

void Job::look_at_the_clock() {
  const auto now = Clock::now();
  if (deadline_ && now >= *deadline_) {
    deadline_.reset();
    fail(running_text() + " still running after " + seconds_text(options_.timeout), kTimedOut);
    if (!kill_) term_ = now;
  }
  if (term_ && now >= *term_) {
    term_.reset();
    if (code_ != kTimedOut) report_ += "; " + running_text() + " stopped";
    signal_all(SIGTERM);
    kill_ = now + kTermToKill;
  }
  if (kill_ && now >= *kill_) {
    kill_.reset();
    signal_all(SIGKILL);
  }
}

void Job::on_signal() {
  signalfd_siginfo info;
  bool child = false;
  while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      child = true;
      continue;
    }
    // Ranks may save their state on the first; whoever asks again means it.
    const bool ends = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
    interrupts_ += ends ? 1 : 0;
    signal_all(getppid() != parent_ || (ends && interrupts_ > 1) ? SIGKILL : signal);
  }
  if (child) reap();
}

void Job::reap() {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    for (int k = 0; k < options_.ranks; ++k) {
      Rank& rank = ranks_[k];
      if (rank.pid != info.si_pid || !rank.running) continue;
      // What it started goes with it. Before it is waited for: until then its number is its own.
      kill(-rank.pid, SIGKILL);
      rank.running = false;
      const std::string who = "rank " + std::to_string(k);
      if (info.si_code != CLD_EXITED) {
        fail(who + " was killed by signal " + std::to_string(info.si_status) + " (" + strsignal(info.si_status) + ")",
             128 + info.si_status);
      } else if (info.si_status != 0) {
        fail(who + " exited with code " + std::to_string(info.si_status), info.si_status);
      }
    }
    waitpid(info.si_pid, nullptr, 0);
  }
}

void Job::pass_on(LineStream& stream) {
  if (stream.drain(/*last=*/false)) return;
  fail(std::string("cannot write the ranks' output: ") + strerror(errno), 128 + SIGPIPE);
  if (!kill_) term_ = Clock::now();
}

// Keeps the first failure, and lets the others go on for a little.
void Job::fail(const std::string& report, int code) {
  if (!report_.empty()) return;
  report_ = report;
  code_ = code;
  term_ = Clock::now() + seconds(options_.grace);
}

void Job::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.running) kill(-rank.pid, signal);
  }
}

}  // namespace

int run_job(const Options& options, pid_t parent, const sigset_t& signals, const sigset_t& rank_mask) {
  if (getppid() != parent) {  // it died before it could be watched
    remove_folder(options.folder);
    return 1;
  }
  return Job(options, parent, signals, rank_mask).run();
}

void stop_children() {
  for (bool any = true; any;) {
    any = false;
    const std::string file = "/proc/self/task/" + std::to_string(getpid()) + "/children";
    FILE* children = fopen(file.c_str(), "r");
    if (children == nullptr) return;
    for (int pid = 0; fscanf(children, "%d", &pid) == 1;) {
      any = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);  // its own children come here then
    }
    fclose(children);
  }
}

void remove_folder(const std::string& folder) {
  if (DIR* dir = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(dir)) unlink((folder + "/" + entry->d_name).c_str());
    closedir(dir);
  }
  rmdir(folder.c_str());
}

void die(const std::string& what) {
  fprintf(stderr, "launch: %s: %s\n", what.c_str(), strerror(errno));
  _exit(1);
}

}  // namespace dtensor::launch
