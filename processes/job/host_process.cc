#include "processes/job/host_process.h"

#include <unistd.h>

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor::internal {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string id;  // two containers may share a name
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return absl::StrCat(name, " ", id);
}

std::string pid_namespace() {
  char text[64] = {};
  return ::readlink("/proc/self/ns/pid", text, sizeof text - 1) > 0 ? text : "";
}

namespace {

// The fields of /proc/PID/stat behind the name, which may have anything in it: the state, the parent, ...
std::vector<std::string> stat_fields(int64_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(stat, text) || text.rfind(')') == std::string::npos) return {};
  return absl::StrSplit(text.substr(text.rfind(')') + 1), ' ', absl::SkipEmpty());
}

}  // namespace

std::string process_start(int64_t pid) {
  const auto fields = stat_fields(pid);
  return fields.size() > 19 ? fields[19] : "";
}

std::string process_state(int64_t pid) {
  const auto fields = stat_fields(pid);
  return fields.empty() ? "" : fields[0];
}

int64_t parent_process(int64_t pid) {
  const auto fields = stat_fields(pid);
  int64_t parent = 0;
  return fields.size() > 1 && absl::SimpleAtoi(fields[1], &parent) ? parent : 0;
}

std::string process_fault(int64_t pid, const std::string& start, bool only_final) {
  const std::string state = process_state(pid);
  const bool another = !start.empty() && process_start(pid) != start;
  if (state.empty() || state == "Z" || state == "X" || another) {
    return absl::StrCat("its process ", pid, " is gone: it was killed, crashed or ended without notice");
  }
  if (!only_final && state == "T") return absl::StrCat("its process ", pid, " is stopped (SIGSTOP, or a debugger)");
  return "";
}

}  // namespace dtensor::internal
