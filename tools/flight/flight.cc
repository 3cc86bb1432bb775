// Finds where the ranks of a job part: merges the dumps of their flight recorders (docs/failure.md), prints the last
// collectives of every group, and the first call that is not the same on all ranks, or that some have not reached.
//
//   ./bazelw run //tools:flight -- /tmp/flight_0 /tmp/flight_1 ...
//
// Exit code: 0 if the ranks agree, 1 if they do not, 2 for input that cannot be used, with one line per problem.

#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/flight/report.h"

namespace {

using namespace dtensor::tools;

constexpr char kUsage[] =
    "flight: where the ranks of a job part.\n"
    "  flight [--last N] DUMP...   the dumps of the ranks' flight recorders; N: how many calls of each group to show "
    "(10)\n";

}  // namespace

int main(int argc, char** argv) {
  int64_t last = 10;
  std::vector<FlightDump> dumps;
  int problems = 0, files = 0;
  const auto report = [&](const std::string& problem) {
    std::cerr << "flight: " << problem << "\n";
    ++problems;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help") {
      std::cout << kUsage;
      return 0;
    }
    if (arg == "--last" || absl::StartsWith(arg, "--last=")) {
      const std::string value = arg != "--last" ? arg.substr(7) : i + 1 < argc ? argv[++i] : "";
      if (!absl::SimpleAtoi(value, &last) || last < 1)
        report(absl::StrCat("--last ", value, ": give a number of calls, at least 1"));
    } else if (absl::StartsWith(arg, "--")) {
      report(absl::StrCat("unknown flag ", arg, "; there is --last N"));
    } else {
      ++files;
      try {
        dumps.push_back(read_flight_dump(arg));
      } catch (const UsageError& e) {
        report(e.what());
      }
    }
  }
  if (files == 0 && problems == 0) report("give the dumps of the ranks, such as /tmp/flight_*");
  if (problems > 0) return 2;
  try {
    const FlightReport result = compare_flights(dumps, last);
    std::cout << result.text;
    return result.diverged ? 1 : 0;
  } catch (const UsageError& e) {
    report(e.what());
    return 2;
  }
}
