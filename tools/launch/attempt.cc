#include "tools/launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <initializer_list>

#include "tools/launch/clean_up.h"

namespace dtensor::launch {
namespace {

constexpr int kNotExecutable = 126, kNotFound = 127;
constexpr auto kTermToKill = std::chrono::seconds(2);
// How long a reader has for the remaining output after the deadline, or after a request to end.
constexpr auto kLastWords = std::chrono::seconds(1);

std::string seconds_text(double s) {
  char text[32];
  snprintf(text, sizeof text, "%g s", s);
  return text;
}

// For poll(): until the first of these times.
int wait_ms(std::initializer_list<Time> times) {
  int wait = -1;
  for (const Time& t : times) {
    if (!t) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*t - Clock::now()).count();
    const int ms = static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000));
    wait = wait < 0 ? ms : std::min(wait, ms);
  }
  return wait;
}

class Attempt {
 public:
  Attempt(Shared& shared, int number)
      : shared_(shared), options_(shared.options), number_(number), ranks_(options_.ranks) {}

  Outcome run() {
    const Outcome not_started = start();
    if (not_started.code != 0) signal_all(SIGKILL);
    while (!running().empty()) step();
    stop_children();
    for (Rank& rank : ranks_) {
      for (LineStream* s : {&rank.out, &rank.err}) s->drain(/*last=*/true);
    }
    if (not_started.code != 0) return not_started;
    outcome_.can_start_again = !shared_.timed_out && shared_.end_asked == 0 && !shared_.unread;
    return outcome_;
  }

 private:
  std::vector<int> running() const;
  std::string running_text() const;  // "rank 2 was", "ranks 0, 3 were"
  Outcome start();
  void step();
  void look_at_the_clock();
  void time_out();
  void on_signal();
  void reap();
  void write_to(Output& output);
  void fail(const std::string& report, int code);
  void signal_all(int signal);

  Shared& shared_;
  const Options& options_;
  const int number_;
  std::vector<Rank> ranks_;
  Time term_, kill_;  // when the other ranks are asked to end, and killed
  Outcome outcome_;   // of the first failure
};

std::vector<int> Attempt::running() const {
  std::vector<int> ranks;
  for (int k = 0; k < options_.ranks; ++k) {
    if (ranks_[k].running) ranks.push_back(k);
  }
  return ranks;
}

std::string Attempt::running_text() const {
  const std::vector<int> ranks = running();
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text + (ranks.size() == 1 ? " was" : " were");
}

// Reports the error if there can be no rank, or the program cannot be run.
Outcome Attempt::start() {
  int exec_pipe[2];  // carries errno of a failed exec; successful ones close it
  if (pipe2(exec_pipe, O_CLOEXEC) != 0) return {std::string("pipe: ") + strerror(errno), 1, false};
  std::string problem;
  for (int k = 0; k < options_.ranks && problem.empty(); ++k) {
    ranks_[k] = start_rank({options_, number_, k}, shared_.settings, exec_pipe[1], shared_.out, shared_.err, problem);
  }
  close(exec_pipe[1]);
  if (!problem.empty()) {
    close(exec_pipe[0]);
    return {problem, 1, false};
  }
  int error = 0;
  const bool failed = read(exec_pipe[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error);
  close(exec_pipe[0]);
  if (!failed) return {};
  return {"cannot run " + options_.command[0] + ": " + strerror(error), error == ENOENT ? kNotFound : kNotExecutable,
          false};
}

// Waits for the next event, and handles it. If the output is not read, the ranks have to wait.
void Attempt::step() {
  std::vector<pollfd> fds = {{shared_.signals, POLLIN, 0}};
  std::vector<LineStream*> streams;
  std::vector<Output*> outputs;
  for (Rank& rank : ranks_) {
    for (LineStream* s : {&rank.out, &rank.err}) {
      if (s->fd() < 0 || s->output().full()) continue;
      fds.push_back({s->fd(), POLLIN, 0});
      streams.push_back(s);
    }
  }
  for (Output* o : {&shared_.out, &shared_.err}) {
    if (o->empty()) continue;
    fds.push_back({o->fd(), POLLOUT, 0});
    outputs.push_back(o);
  }
  if (poll(fds.data(), fds.size(), wait_ms({shared_.timed_out ? Time() : shared_.deadline, term_, kill_})) < 0 &&
      errno != EINTR)
    die("poll");
  for (size_t i = 0; i < streams.size(); ++i) {
    if (fds[i + 1].revents != 0) streams[i]->drain(/*last=*/false);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (fds[1 + streams.size() + i].revents != 0) write_to(*outputs[i]);
  }
  if (fds[0].revents != 0) on_signal();
  look_at_the_clock();
}

void Attempt::look_at_the_clock() {
  if (running().empty()) return;  // the attempt has its result; the next one, if any, finds that the time is over
  const auto now = Clock::now();
  if (shared_.deadline && now >= *shared_.deadline && !shared_.timed_out) time_out();
  if (term_ && now >= *term_) {
    term_.reset();
    if (!shared_.timed_out) outcome_.report += "; " + running_text() + " stopped";
    signal_all(SIGTERM);
    kill_ = now + kTermToKill;
  }
  if (kill_ && now >= *kill_) {
    kill_.reset();
    signal_all(SIGKILL);
  }
}

// Also after a failure, while the others have their grace.
void Attempt::time_out() {
  shared_.timed_out = true;
  const std::string report = running_text() + " still running after " + seconds_text(options_.timeout);
  if (outcome_.report.empty()) {
    outcome_.report = report;
  } else {
    outcome_.report += "; " + report;
  }
  outcome_.code = kTimedOut;
  if (!kill_) term_ = Clock::now();
}

void Attempt::on_signal() {
  signalfd_siginfo info;
  bool child = false;
  while (read(shared_.signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      child = true;
      continue;
    }
    // Ranks may save their state on the first signal; a second one ends them.
    const bool ends = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
    shared_.interrupts += ends ? 1 : 0;
    if (ends || signal == SIGQUIT) shared_.end_asked = signal;
    signal_all(getppid() != shared_.parent || (ends && shared_.interrupts > 1) ? SIGKILL : signal);
  }
  if (child) reap();
}

void Attempt::reap() {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    for (int k = 0; k < options_.ranks; ++k) {
      Rank& rank = ranks_[k];
      if (rank.pid != info.si_pid || !rank.running) continue;
      // Kills the processes it started, too. Before waiting for it: until then its number is not reused.
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

void Attempt::write_to(Output& output) {
  if (output.write_some()) return;
  shared_.unread = true;
  fail(std::string("cannot write the ranks' output: ") + strerror(errno), 128 + SIGPIPE);
  if (!kill_) term_ = Clock::now();
}

// Keeps the first failure, and lets the others go on for a little.
void Attempt::fail(const std::string& report, int code) {
  if (!outcome_.report.empty()) return;
  outcome_.report = report;
  outcome_.code = code;
  term_ = Clock::now() + seconds(options_.grace);
}

void Attempt::signal_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.running) kill(-rank.pid, signal);
  }
}

}  // namespace

Outcome run_attempt(Shared& shared, int number) { return Attempt(shared, number).run(); }

int flush_outputs(Shared& shared) {
  const auto soon = Clock::now() + kLastWords;
  Time until;
  if (shared.deadline) until = std::max(*shared.deadline, soon);
  if (shared.end_asked != 0 || getppid() != shared.parent) until = soon;
  while (!shared.out.empty() || !shared.err.empty()) {
    if (until && Clock::now() >= *until) return shared.end_asked != 0 ? 128 + shared.end_asked : kTimedOut;
    std::vector<pollfd> fds = {{shared.signals, POLLIN, 0}};
    for (Output* o : {&shared.out, &shared.err}) fds.push_back({o->empty() ? -1 : o->fd(), POLLOUT, 0});
    if (poll(fds.data(), fds.size(), wait_ms({until})) < 0 && errno != EINTR) return 1;
    for (Output* o : {&shared.out, &shared.err}) o->write_some();
    signalfd_siginfo info;
    while (read(shared.signals, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) return 128 + signal;
    }
  }
  return 0;
}

}  // namespace dtensor::launch
