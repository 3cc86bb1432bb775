#include "tests/fuzz/worker.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/generate.h"
#include "tests/fuzz/print_cpp.h"
#include "tests/fuzz/shrink.h"

namespace dtensor::fuzz {
namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned kLongest = 60;  // seconds that one program may take

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Runs `f` in a child process; returns its status, as in waitpid.
template <typename F>
int in_child(const F& f) {
  std::fflush(stdout);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "cannot fork: ", std::strerror(errno));
  if (child == 0) {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    int code = 0;
    try {
      f();
    } catch (const std::exception&
                 e) {  // an error of the fuzzer itself, or one that its handling of program errors does not cover
      say(absl::StrCat("ends by an error: ", e.what(), "\n"));
      code = 1;
    }
    std::fflush(stdout);
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string name_of_end(int status) {
  if (!WIFSIGNALED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return WTERMSIG(status) == SIGALRM ? absl::StrCat("takes more than ", kLongest, " s") : strsignal(WTERMSIG(status));
}

// Error: the device does not work any more, as after a failed assertion in a kernel.
Outcome run_or_end(const Program& program) {
  Outcome outcome = run(program);
  if (absl::StrContains(outcome.message, "CUDA error")) throw std::runtime_error(outcome.message);
  return outcome;
}

// In a separate process: a crash is an outcome.
Outcome run_apart(const Program& program) {
  const int status = in_child([&] {
    alarm(kLongest);
    run_or_end(program);
  });
  Outcome outcome;
  if (status == 0) return outcome;
  outcome.kind = Kind::kCrash;
  outcome.op = program.steps.empty() ? "" : program.steps.back().op;
  outcome.step = program.steps.size();
  outcome.message = name_of_end(status);
  return outcome;
}

void report(const WorkerOptions& options, Tally& tally, const Program& program, const Outcome& outcome,
            const Runner& runner) {
  if (tally.known(signature(outcome)) || is_open(signature(outcome), options.open)) return;
  Shrunk small = shrink(program, outcome, options.shrink_seconds, runner);
  if (!small.program.steps.empty() && small.outcome.order > 0) small.outcome.op = small.program.steps.back().op;
  const std::string name = signature(small.outcome);
  if (name != signature(outcome) && (tally.known(name) || is_open(name, options.open))) return;
  say(absl::StrCat("\nFINDING ", name, "\n", small.outcome.message, "\n", to_string(small.program),
                   "replay with --seed ", options.seed, " --replay ", tally.index, "\n----8<----\n",
                   print_cpp(small.program, small.outcome), "----8<----\n"));
}

// LibTorch's hints are for people.
struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void prepare() {
  static auto* const none = new NoWarnings;
  c10::WarningUtils::set_warning_handler(none);
  at::set_num_threads(1);
}

class Worker {
 public:
  Worker(const WorkerOptions& options, Tally& tally, Clock::time_point start)
      : options_(options), tally_(tally), start_(start) {}

  void run_all() {
    prepare();
    double said = seconds_since(start_);
    for (; !done(); ++tally_.index) {
      run_one(tally_.index);
      if (seconds_since(start_) - said < 10) continue;
      said = seconds_since(start_);
      say(progress(tally_, said) + "\n");
    }
  }

  bool done() const {
    if (options_.only >= 0) return static_cast<int64_t>(tally_.index) != options_.only;
    if (options_.programs >= 0) return static_cast<int64_t>(tally_.index) >= options_.programs;
    return seconds_since(start_) >= options_.seconds;
  }

  // After a crash, in a process that has run nothing yet.
  void report_crash(int status) {
    ++tally_.kinds[static_cast<int>(Kind::kCrash)];
    prepare();
    const std::string end = name_of_end(status);
    const int generated = in_child([&] {
      alarm(kLongest);
      make(tally_.index);
    });
    if (generated != 0) {
      say(absl::StrCat("program ", tally_.index, ": plain LibTorch crashes (", end, ") in ", tally_.op,
                       "; the catalog should leave it out\n"));
      tally_.known(absl::StrCat(kPlainCrash, tally_.op));
      return;
    }
    const Program program = make(tally_.index);
    Outcome outcome = run_apart(program);
    if (outcome.kind != Kind::kCrash) {
      say(absl::StrCat("program ", tally_.index, " crashed (", end, "), but not when run alone:\n",
                       to_string(program)));
      tally_.known(absl::StrCat("crash in program ", tally_.index, " after those before it"));
      return;
    }
    report(options_, tally_, program, outcome, run_apart);
  }

  // Memory corrupted by LibTorch may crash at any later time, also while the crash is investigated.
  void crashes_again(int status) {
    say(absl::StrCat("program ", tally_.index, " crashes, and so does looking into it (", name_of_end(status),
                     "); the last operator tried is ", tally_.op, "\n"));
    tally_.known(absl::StrCat("crash in program ", tally_.index, ", which cannot be looked into"));
  }

 private:
  Program make(uint64_t index) const {
    GenerateOptions generate_options;
    generate_options.most_steps = options_.most_steps;
    generate_options.trying = [this](const Operator& op) {
      std::strncpy(tally_.op, op.name.c_str(), sizeof(tally_.op) - 1);
    };
    return generate(options_.seed, index, generate_options);
  }

  void run_one(uint64_t index) {
    alarm(kLongest);
    const Program program = make(index);
    if (options_.only >= 0) say(to_string(program));
    const Outcome outcome = run_or_end(program);
    tally_.count(program, outcome);
    alarm(0);
    if (options_.only >= 0) say(absl::StrCat(to_string(outcome.kind), " ", outcome.op, " ", outcome.message, "\n"));
    if (!is_finding(outcome.kind)) return;
    alarm(kLongest +
          static_cast<unsigned>(options_.shrink_seconds));  // a smaller program may hang where this one does not
    report(options_, tally_, program, outcome, run_or_end);
    alarm(0);
  }

  const WorkerOptions& options_;
  Tally& tally_;
  Clock::time_point start_;
};

}  // namespace

void run_programs(const WorkerOptions& options, Tally& tally) {
  set_program_device(options.device);
  Worker worker(options, tally, Clock::now());
  tally.seed = options.seed;
  tally.index = static_cast<uint64_t>(options.only >= 0 ? options.only : options.first);
  while (!worker.done()) {
    const int status = in_child([&] { worker.run_all(); });
    if (status == 0) return;
    const int reported = in_child([&] { worker.report_crash(status); });
    if (reported != 0) worker.crashes_again(reported);
    ++tally.index;
  }
}

}  // namespace dtensor::fuzz
