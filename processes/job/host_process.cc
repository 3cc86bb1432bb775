#include "processes/job/host_process.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace dtensor {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string id;  // two containers may share a name
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return absl::StrCat(name, " ", id);
}

std::string process_state(int64_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(stat, text)) return "";
  const size_t end = text.rfind(')');  // the name may have anything in it
  return end == std::string::npos || end + 2 >= text.size() ? "" : text.substr(end + 2, 1);
}

}  // namespace dtensor
