#include "tools/flight/live_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group.h"
#include "processes/job/host_process.h"
#include "tools/flight/report.h"

namespace dtensor::tools {
using namespace internal;

namespace {

constexpr int64_t kSecond_ns = 1000000000;

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

std::string bytes_text(int64_t bytes) { return bytes < 0 ? "-" : absl::StrCat(bytes >> 20, " MiB"); }

// State of a process's main thread.
std::string state_text(const std::string& state) {
  if (state == "R") return "running";
  if (state == "S") return "sleeping";
  if (state == "D") return "in the kernel";
  if (state == "T") return "stopped";
  if (state == "t") return "in a debugger";
  return state.empty() || state == "Z" || state == "X" ? "gone" : state;
}

// Why a rank may not answer.
std::string silence(const LiveRank& rank) {
  if (!rank.unreadable.empty()) return absl::StrCat("answered something that cannot be read: ", rank.unreadable);
  const std::string fault = process_fault(rank.pid, "", /*only_final=*/false);
  return absl::StrCat(
      "does not answer: ",
      fault.empty() ? absl::StrCat("its process ", rank.pid, " is ", state_text(rank.state), ", but too busy") : fault);
}

std::string doing(const LiveRank& rank) {
  if (!rank.answer) return silence(rank);
  const LiveAnswer& answer = *rank.answer;
  if (!answer.waits_in.empty()) {
    return absl::StrCat("waits for ", seconds_text(static_cast<double>(answer.waited.count()) / 1000), " in ",
                        answer.waits_in);
  }
  const auto& calls = answer.dump.calls;
  const auto latest = std::max_element(
      calls.begin(), calls.end(), [](const FlightCall& a, const FlightCall& b) { return a.created_ns < b.created_ns; });
  if (latest == calls.end()) {  // nothing is recorded (DTENSOR_FLIGHT_RECORDER=0), or there was none
    return answer.last.empty()
               ? "in no collective, and has made none"
               : absl::StrCat("in no collective; its last ones were ", absl::StrJoin(answer.last, "; "));
  }
  const std::string call =
      absl::StrCat("call ", latest->sequence, ": ", latest->what, latest->module.empty() ? "" : ", ", latest->module);
  if (latest->completed_ns == 0) return absl::StrCat("begins ", call);
  return absl::StrCat("in no collective for ",
                      seconds_text(static_cast<double>(answer.dump.time_ns - latest->completed_ns) / 1e9),
                      "; its last was ", call);
}

using Row = std::array<std::string, 6>;  // rank, process, state, memory, GPU memory, what it does

void print(std::ostream& out, const std::vector<std::pair<bool, Row>>& rows, bool gpu) {
  std::array<size_t, 6> widest{};
  for (const auto& [odd, row] : rows) {
    for (size_t i = 0; i < row.size(); ++i) widest[i] = std::max(widest[i], row[i].size());
  }
  for (const auto& [odd, row] : rows) {
    out << (odd ? "> " : "  ");
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      if (i == 4 && !gpu) continue;
      const std::string space(widest[i] - row[i].size(), ' ');
      out << (i == 2 ? row[i] + space : space + row[i]) << "  ";  // words to the left, numbers to the right
    }
    out << row.back() << "\n";
  }
}

}  // namespace

LiveReport describe_live_job(const LiveJob& job, const std::map<int64_t, int64_t>& gpu_bytes, int64_t last) {
  std::vector<FlightDump> dumps;
  std::vector<int64_t> elsewhere;  // ranks that this host does not have
  std::set<int64_t> here, odd;
  std::string failure;
  bool gpu = false;
  for (const LiveRank& rank : job.ranks) {
    here.insert(rank.address.rank);
    gpu |= gpu_bytes.count(rank.pid) > 0;
    if (!rank.answer) {
      odd.insert(rank.address.rank);
      continue;
    }
    if (!rank.answer->failure.empty()) failure = rank.answer->failure;
    dumps.push_back(rank.answer->dump);
  }
  for (int64_t r = 0; r < job.size; ++r) {
    if (here.count(r) == 0) elsewhere.push_back(r);
  }
  FlightReport calls;
  if (!dumps.empty()) {
    calls = compare_flights(dumps, {.last = last, .late_after_ns = kSecond_ns, .no_dump = "did not answer here"});
  }
  for (const int64_t rank : calls.odd) {
    if (here.count(rank) > 0) odd.insert(rank);
  }
  std::vector<std::pair<bool, Row>> rows = {{false, {"rank", "process", "state", "memory", "GPU memory", "doing"}}};
  for (const LiveRank& rank : job.ranks) {
    const auto on_gpu = gpu_bytes.find(rank.pid);
    rows.push_back(
        {odd.count(rank.address.rank) > 0,
         {absl::StrCat(rank.address.rank), absl::StrCat(rank.pid), state_text(rank.state),
          bytes_text(rank.resident_bytes), on_gpu == gpu_bytes.end() ? "-" : bytes_text(on_gpu->second), doing(rank)}});
  }
  std::ostringstream out;
  out << "a job of " << job.size << (job.size == 1 ? " rank" : " ranks") << "\n";
  print(out, rows, gpu);
  if (!elsewhere.empty()) {
    out << "not on this host, or gone: " << (elsewhere.size() == 1 ? "rank " : "ranks ") << ranks_text(elsewhere)
        << "\n";
  }
  if (!failure.empty()) out << "\nThe job has failed: " << failure << "\n";
  if (!dumps.empty()) out << "\n" << calls.text;
  for (const LiveRank& rank : job.ranks) {
    if (!rank.answer) out << "Rank " << rank.address.rank << " " << silence(rank) << ".\n";
  }
  return {out.str(), odd.empty() && failure.empty() && !calls.diverged};
}

}  // namespace dtensor::tools
