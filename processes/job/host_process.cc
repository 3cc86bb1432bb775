#include "processes/job/host_process.h"

#include <unistd.h>

#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor {

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

}  // namespace dtensor
