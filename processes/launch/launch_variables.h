// Reads what one launcher set, with errors that name the variable, its value and the launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "processes/launch/job_place.h"

namespace dtensor::internal {

// process_environment() has it in addition to the variables: "PID START" of the nearest process above this one that is
// not a rank itself. MPICH sets nothing else that is the same for all ranks and unique to the job.
inline constexpr char kLauncherProcess[] = "launcher process";

// Prefix of the texts of errors.
inline constexpr char kFromEnv[] = "World::from_env: ";

class LaunchVariables {
 public:
  // Refers to `variables`.
  LaunchVariables(const Variables& variables, Launcher launcher) : variables_(variables), launcher_(launcher) {}

  std::optional<std::string> text(const char* name) const;  // nullopt where it is missing or empty
  std::string text_or(const char* name, std::string otherwise) const {
    return text(name).value_or(std::move(otherwise));
  }
  // The number in the first of `names`, separated by '|', that is set.
  // Error: it is not one of `what`, from `low` to `high`.
  std::optional<int64_t> number(const std::string& names, int64_t low, int64_t high, const std::string& what) const;

  // "RANK is not set (launcher: ...). ADVICE"
  [[noreturn]] void missing(const std::string& name, const std::string& advice) const;
  // "RANK is 'x' (launcher: ...); expected EXPECTED"
  [[noreturn]] void bad(const std::string& name, const std::string& value, const std::string& expected) const;

 private:
  const Variables& variables_;
  Launcher launcher_;
};

}  // namespace dtensor::internal
