#include "tools/flight/gpu_memory.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace dtensor::tools {

std::map<int64_t, int64_t> gpu_memory_by_process() {
  std::map<int64_t, int64_t> bytes;
  FILE* lines = ::popen(
      "timeout 5 nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv,noheader,nounits 2>/dev/null", "r");
  if (lines == nullptr) return bytes;
  char line[256];
  while (std::fgets(line, sizeof line, lines) != nullptr) {
    const std::pair<std::string, std::string> fields = absl::StrSplit(line, absl::MaxSplits(',', 1));
    int64_t pid = 0, mebibytes = 0;  // "[N/A]" if the driver does not report it
    if (absl::SimpleAtoi(fields.first, &pid) && absl::SimpleAtoi(fields.second, &mebibytes)) {
      bytes[pid] += mebibytes << 20;
    }
  }
  ::pclose(lines);
  return bytes;
}

}  // namespace dtensor::tools
