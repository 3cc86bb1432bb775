#include "tools/launch/options.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>

namespace dtensor::launch {
namespace {

constexpr int kUsage = 2;
constexpr char kHelp[] =
    "usage: launch -n RANKS [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
    "  -n RANKS           how many processes\n"
    "  --timeout SECONDS  stop everything then, all attempts together, and exit with 124; by default never\n"
    "  --grace SECONDS    how long the others may go on when one has failed; 3 by default\n"
    "  --max-restarts N   restart all ranks when one has failed, N times at most; 0 by default\n"
    "  --log-dir DIR      also write what rank K says to DIR/attempt_0/K/stdout.log and stderr.log\n"
    "The exit code is that of the first rank to fail in the last attempt, 128 + N if signal N killed it, or 0.\n";

[[noreturn]] void usage_error(const std::string& text) {
  fprintf(stderr, "launch: %s; --help tells more\n", text.c_str());
  exit(kUsage);
}

template <typename T>
bool parse_number(const std::string& text, T& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

int count(const std::string& flag, const std::string& value, const std::string& what, int low, int high) {
  int number = 0;
  if (!parse_number(value, number) || number < low || number > high) {
    usage_error(flag + " " + value + ": expected a number of " + what + " from " + std::to_string(low) + " to " +
                std::to_string(high));
  }
  return number;
}

double seconds(const std::string& flag, const std::string& value, double low) {
  double number = 0;
  if (!parse_number(value, number) || !std::isfinite(number) || number > 1e7 || number < low) {
    usage_error(flag + " " + value + ": expected seconds, such as 30 or 2.5");
  }
  return number;
}

// `bazel run` starts this in another folder than the user's.
std::string absolute(const std::string& path) {
  if (path[0] == '/') return path;
  const char* home = getenv("BUILD_WORKING_DIRECTORY");
  char here[4096] = "";
  if (home == nullptr) home = getcwd(here, sizeof here) != nullptr ? here : "";
  return std::string(home) + "/" + path;
}

void set(Options& options, const std::string& flag, const std::string& value) {
  if (flag == "-n") {
    options.ranks = count(flag, value, "ranks", 1, 1024);
  } else if (flag == "--max-restarts") {
    options.max_restarts = count(flag, value, "restarts", 0, 1000000);
  } else if (flag == "--timeout") {
    options.timeout = seconds(flag, value, 0.001);
  } else if (flag == "--grace") {
    options.grace = seconds(flag, value, 0);
  } else {
    if (value.empty()) usage_error(flag + " is empty: expected a folder");
    options.log_folder = absolute(value);
  }
}

}  // namespace

Options parse_options(int argc, char** argv) {
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
    const char* known[] = {"-n", "--grace", "--timeout", "--max-restarts", "--log-dir"};
    if (std::find(std::begin(known), std::end(known), flag) == std::end(known)) usage_error("unknown option " + flag);
    if (equals == std::string::npos) {
      if (++i >= argc) usage_error(flag + " needs a value");
      value = argv[i];
    }
    set(options, flag, value);
  }
  if (options.ranks == 0) usage_error("-n RANKS is missing");
  options.command.assign(argv + std::min(i, argc), argv + argc);
  if (options.command.empty()) usage_error("no program to run");
  return options;
}

}  // namespace dtensor::launch
