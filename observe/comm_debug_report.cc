// The counts of CommDebugMode, as text and as JSON.
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <utility>

#include "comm/module_text.h"
#include "observe/comm_debug_mode.h"

namespace dtensor {
namespace {

constexpr double kUneven = 1.1;  // of an even share of work; the last parts of dims may be short

std::string grouped(int64_t n) {  // 12,345
  std::string digits = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), 1, ',');
  return digits;
}

// "reused: 2 inputs, 384 bytes not received", and a line for each row. Nothing if nothing was reused.
void write_reused(std::ostream& os, const std::vector<ReuseRow>& rows) {
  if (rows.empty()) return;
  int64_t count = 0, bytes = 0;
  for (const ReuseRow& r : rows) count += r.count, bytes += r.bytes;
  os << "reused: " << grouped(count) << (count == 1 ? " input" : " inputs");
  if (bytes > 0) os << ", " << grouped(bytes) << " bytes not received";
  os << '\n';
  for (const ReuseRow& r : rows) {
    os << (&r == &rows.back() ? "└─ " : "├─ ") << r.op << ' ' << r.argument;
    if (!r.module_path.empty()) os << ' ' << internal::in_module(r.module_path);
    os << (r.backward ? ", backward: " : ": ") << r.saved << " x" << r.count;
    if (r.bytes > 0) os << ", " << grouped(r.bytes) << " bytes";
    os << '\n';
  }
}

nlohmann::ordered_json json_of(const std::vector<ReuseRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const ReuseRow& r : rows) {
    list.push_back({{"phase", r.backward ? "backward" : "forward"},
                    {"module", r.module_path},
                    {"op", r.op},
                    {"argument", r.argument},
                    {"saved", r.saved},
                    {"count", r.count},
                    {"bytes", r.bytes}});
  }
  return list;
}

}  // namespace

std::string CommDebugMode::to_json() const {
  nlohmann::ordered_json j;
  const auto rows = this->rows();
  int64_t total = 0, bytes = 0;
  double seconds = 0;
  auto counts = nlohmann::ordered_json::object();
  auto list = nlohmann::ordered_json::array();
  for (const CommRow& r : rows) {
    const std::string name(dtensor::to_string(r.collective));
    total += r.count;
    bytes += r.bytes;
    seconds += r.seconds;
    counts[name] = counts.value(name, int64_t{0}) + r.count;
    list.push_back({{"phase", r.backward ? "backward" : "forward"},
                    {"module", r.module_path},
                    {"op", r.op},
                    {"argument", r.argument},
                    {"collective", name},
                    {"mesh_dims", r.mesh_dims},
                    {"implicit", r.implicit},
                    {"count", r.count},
                    {"bytes", r.bytes},
                    {"seconds", r.seconds}});
  }
  auto events = nlohmann::ordered_json::array();
  for (const CommEvent& e : this->events()) {
    events.push_back({{"collective", dtensor::to_string(e.collective)},
                      {"op", e.cause.op},
                      {"argument", e.cause.argument},
                      {"module", e.cause.module_path},
                      {"implicit", e.cause.implicit},
                      {"phase", e.backward ? "backward" : "forward"},
                      {"mesh_dims", e.mesh_dims},
                      {"group_size", e.group_size},
                      {"bytes", e.bytes},
                      {"dtype", c10::toString(e.dtype)},
                      {"seconds", e.seconds}});
  }
  j["total"] = total;
  j["bytes"] = bytes;
  j["seconds"] = seconds;
  j["flops"] = flops();
  j["work_share"] = work_share();
  j["counts"] = std::move(counts);
  j["rows"] = std::move(list);
  j["reused"] = json_of(reused_rows());
  j["events"] = std::move(events);
  return j.dump(2);
}

std::string CommDebugMode::to_string() const {
  std::ostringstream os;
  os << *this;
  return os.str();
}

std::ostream& operator<<(std::ostream& os, const CommDebugMode& mode) {
  const std::vector<CommRow> rows = mode.rows();
  int64_t total = 0, bytes = 0;
  std::array<int64_t, kNumCollectives> by_kind{};
  for (const CommRow& r : rows) {
    total += r.count;
    bytes += r.bytes;
    by_kind[static_cast<size_t>(r.collective)] += r.count;
  }
  os << (total == 1 ? "1 collective" : grouped(total) + " collectives") << ", " << grouped(bytes) << " bytes";
  const char* separator = ": ";
  for (int k = 0; k < kNumCollectives; ++k) {
    if (by_kind[k] == 0) continue;
    os << std::exchange(separator, ", ") << to_string(static_cast<Collective>(k)) << ' ' << by_kind[k];
  }
  os << '\n';
  // Rows are sorted by phase, module, operator: a level's node ends where the next row differs in it.
  const auto same_phase = [](const CommRow& a, const CommRow& b) { return a.backward == b.backward; };
  const auto same_module = [&](const CommRow& a, const CommRow& b) {
    return same_phase(a, b) && a.module_path == b.module_path;
  };
  const auto last_of = [&](size_t i, const auto& inside, const auto& same) {  // no later sibling inside the parent
    for (size_t k = i; k < rows.size() && inside(rows[i], rows[k]); ++k) {
      if (!same(rows[i], rows[k])) return false;
    }
    return true;
  };
  const auto everything = [](const CommRow&, const CommRow&) { return true; };
  const auto sum = [&](size_t i, const auto& same) {
    int64_t n = 0;
    for (size_t k = i; k < rows.size() && same(rows[i], rows[k]); ++k) n += rows[k].count;
    return n;
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const CommRow& r = rows[i];
    const bool last_phase = last_of(i, everything, same_phase);
    const bool last_module = last_of(i, same_phase, same_module);
    if (i == 0 || !same_phase(rows[i - 1], r)) {
      os << (last_phase ? "└─ " : "├─ ") << (r.backward ? "backward" : "forward") << ": " << sum(i, same_phase) << '\n';
    }
    const char* bar = last_phase ? "   " : "│  ";
    if (i == 0 || !same_module(rows[i - 1], r)) {
      os << bar << (last_module ? "└─ " : "├─ ") << (r.module_path.empty() ? "(no module)" : r.module_path) << ": "
         << sum(i, same_module) << '\n';
    }
    const bool last_row = i + 1 == rows.size() || !same_module(r, rows[i + 1]);
    os << bar << (last_module ? "   " : "│  ") << (last_row ? "└─ " : "├─ ") << (r.op.empty() ? "(unnamed)" : r.op);
    if (!r.argument.empty()) os << ' ' << r.argument;
    os << ": " << to_string(r.collective) << '(' << r.mesh_dims << ") x" << r.count << ", " << grouped(r.bytes)
       << " bytes" << (r.implicit ? "" : ", explicit") << '\n';
  }
  write_reused(os, mode.reused_rows());
  if (const double share = mode.work_share(); share > kUneven) {
    char line[96];
    std::snprintf(line, sizeof(line), "a rank does %.2f times its share of the matrix products: %.3g FLOP\n", share,
                  mode.flops());
    os << line;
  }
  return os;
}

}  // namespace dtensor
