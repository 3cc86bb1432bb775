#include "processes/launch/launch_variables.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor {
using namespace internal;

namespace {

std::string detected(Launcher launcher) {
  if (launcher == Launcher::kNone) return "";
  return absl::StrCat(" (launcher: ", to_string(launcher),
                      launcher == Launcher::kTorchrun ? ", or another that sets RANK and WORLD_SIZE)" : ")");
}

// The nearest process above this one that is not a rank: wrappers of a rank have PMI_RANK, too.
std::optional<std::string> launcher_process() {
  int64_t pid = ::getppid();
  for (int depth = 0; depth < 32 && pid > 1; ++depth) {
    std::ifstream environment(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
    std::stringstream variables;
    variables << environment.rdbuf();
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    std::string line;
    if (!std::getline(stat, line) || line.rfind(')') == std::string::npos) return std::nullopt;
    // After the name, which may hold anything: state, parent, ..., and as the 20th the time of its start.
    const std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
    if (fields.size() < 20 || !environment) return std::nullopt;
    if (!absl::StrContains(absl::StrCat(std::string(1, '\0'), variables.str()), absl::string_view("\0PMI_RANK=", 10))) {
      return absl::StrCat(pid, " ", fields[19]);
    }
    if (!absl::SimpleAtoi(fields[1], &pid)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Variables process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    if (std::strcmp(name, kLauncherProcess) == 0) return launcher_process();
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

namespace internal {

std::optional<std::string> LaunchVariables::text(const char* name) const {
  TORCH_CHECK(variables_,
              "World::from_env: `variables` is an empty function; process_environment() reads those of this process");
  auto value = variables_(name);
  return value && value->empty() ? std::nullopt : value;
}

std::optional<int64_t> LaunchVariables::number(const std::string& names, int64_t low, int64_t high,
                                               const std::string& what) const {
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, '|', absl::SkipEmpty()))) {
    const auto value = text(name.c_str());
    if (!value) continue;
    int64_t number = 0;
    const bool digits = std::all_of(value->begin(), value->end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || !absl::SimpleAtoi(*value, &number) || number < low || number > high) {
      bad(name, *value, absl::StrCat(what, ", from ", low, " to ", high));
    }
    return number;
  }
  return std::nullopt;
}

void LaunchVariables::missing(const std::string& name, const std::string& advice) const {
  TORCH_CHECK(false, "World::from_env: ", name, " is not set", detected(launcher_), ". ", advice);
}

void LaunchVariables::bad(const std::string& name, const std::string& value, const std::string& expected) const {
  TORCH_CHECK(false, "World::from_env: ", name, " is '", value, "'", detected(launcher_), "; expected ", expected);
}

}  // namespace internal

}  // namespace dtensor
