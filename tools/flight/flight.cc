// Finds where the ranks of a job part: merges the dumps of their flight recorders (docs/failure.md), prints the last
// collectives of every group, and the first call that is not the same on all ranks, or that some have not reached. Or
// asks the ranks of a job that runs.
//
//   ./bazelw run //tools:flight -- /tmp/flight_0 /tmp/flight_1 ...
//   ./bazelw run //tools:flight -- --attach PID
//
// Exit code: 0 if the ranks agree, 1 if they do not, 2 for input that cannot be used, with one line per problem.

#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/flight/gpu_memory.h"
#include "tools/flight/live_report.h"
#include "tools/flight/report.h"

namespace {

using namespace dtensor::tools;

constexpr std::chrono::seconds kPatience{3};  // with ranks that are asked
constexpr char kUsage[] =
    "flight: where the ranks of a job part.\n"
    "  flight [--last N] DUMP...       the dumps of the ranks' flight recorders\n"
    "  flight [--last N] --attach PID  what the ranks of a running job do now; PID: the process of its launcher, or of\n"
    "                                  any rank\n"
    "N: how many calls of each group to show (10)\n";

struct Arguments {
  int64_t last = 10;
  std::string attach;
  std::vector<FlightDump> dumps;
  bool help = false;
  int problems = 0;
};

void report(Arguments& arguments, const std::string& problem) {
  std::cerr << "flight: " << problem << "\n";
  ++arguments.problems;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t equals = arg.find('=');
    const std::string flag = absl::StartsWith(arg, "--") ? arg.substr(0, equals) : "";
    const auto value = [&]() -> std::string {
      return equals != std::string::npos ? arg.substr(equals + 1) : i + 1 < argc ? argv[++i] : "";
    };
    if (arg == "--help") {
      arguments.help = true;
    } else if (flag == "--last") {
      const std::string text = value();
      if (!absl::SimpleAtoi(text, &arguments.last) || arguments.last < 1)
        report(arguments, absl::StrCat("--last ", text, ": give a number of calls, at least 1"));
    } else if (flag == "--attach") {
      arguments.attach = value();
      if (arguments.attach.empty()) report(arguments, "--attach: give the process of a launcher or of a rank");
    } else if (!flag.empty()) {
      report(arguments, absl::StrCat("unknown flag ", arg, "; there are --last N and --attach PID"));
    } else {
      ++files;
      try {
        arguments.dumps.push_back(read_flight_dump(arg));
      } catch (const UsageError& e) {
        report(arguments, e.what());
      }
    }
  }
  if (arguments.help || arguments.problems > 0) return arguments;
  if (files > 0 && !arguments.attach.empty()) report(arguments, "give dumps or --attach, not both");
  if (files == 0 && arguments.attach.empty()) {
    report(arguments, "give the dumps of the ranks, such as /tmp/flight_*, or --attach PID for a job that runs");
  }
  return arguments;
}

bool show_live_jobs(const Arguments& arguments) {
  bool healthy = true;
  const auto jobs = attach(arguments.attach, kPatience);
  const auto gpu_bytes = gpu_memory_by_process();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LiveReport result = describe_live_job(jobs[i], gpu_bytes, arguments.last);
    std::cout << (i > 0 ? "\n" : "") << result.text;
    healthy &= result.healthy;
  }
  return healthy;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments = parse(argc, argv);
  if (arguments.help) {
    std::cout << kUsage;
    return 0;
  }
  if (arguments.problems > 0) return 2;
  try {
    if (!arguments.attach.empty()) return show_live_jobs(arguments) ? 0 : 1;
    const FlightReport result = compare_flights(arguments.dumps, {.last = arguments.last});
    std::cout << result.text;
    return result.diverged ? 1 : 0;
  } catch (const UsageError& e) {
    report(arguments, e.what());
    return 2;
  }
}
