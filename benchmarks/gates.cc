#include "benchmarks/gates.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, json, "", "file for the rows of the table of //benchmarks:all, one JSON object per line");

namespace dtensor::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

// What is not a number becomes null. One number that is compared with nothing is no ratio.
Json row_of(Comparison c, double ratio, const std::string& gate, const std::string& verdict) {
  if (c.peer.empty()) c.ours = std::exchange(ratio, NAN);
  return {{"workload", c.workload}, {"peer", c.peer}, {"unit", c.unit}, {"theirs", c.theirs}, {"ours", c.ours},
          {"limit", c.limit},       {"ratio", ratio}, {"gate", gate},   {"verdict", verdict}};
}

// "0.64 us plain LibTorch, 1.59 us ours, " of what is known.
std::string figures(const Comparison& c) {
  std::string text;
  const auto add = [&](double value, const std::string& name) {
    if (!std::isnan(value)) absl::StrAppendFormat(&text, "%.4g %s %s, ", value, c.unit, name);
  };
  add(c.theirs, c.peer);
  add(c.ours, "ours");
  add(c.limit, "limit");
  return text;
}

}  // namespace

Comparison compared(std::string workload, std::string peer, const PairedTimes& times) {
  return {std::move(workload), std::move(peer), "us", times.theirs, times.ours};
}

Gates::Gates() {
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return;
  rows_.open(tools::user_path(path));
  if (!rows_)
    throw tools::UsageError(absl::StrCat("--json ", path, ": cannot be written; give a file in a folder that exists"));
}

void Gates::at_most(const std::string& workload, double value, double limit) {
  at_most(Comparison{.workload = workload}, value, limit);
}
void Gates::at_least(const std::string& workload, double value, double limit) {
  at_least(Comparison{.workload = workload}, value, limit);
}
void Gates::at_most(const Comparison& c, double ratio, double gate) { report(c, ratio, "at most", gate); }
void Gates::at_least(const Comparison& c, double ratio, double gate) { report(c, ratio, "at least", gate); }
void Gates::note(const Comparison& c, double ratio) { report(c, ratio, "", NAN); }

void Gates::skip(const std::string& workload, const std::string& why) {
  std::printf("[skip] %s: %s\n", workload.c_str(), why.c_str());
  if (rows_.is_open()) rows_ << row_of({.workload = workload}, NAN, "", "skipped: " + why) << std::endl;
}

void Gates::report(const Comparison& c, double ratio, const char* relation, double gate) {
  const bool gated = !std::isnan(gate);
  // A ratio that is not a number misses its gate.
  const bool good = !gated || (std::string(relation) == "at most" ? ratio <= gate : ratio >= gate);
  failed_ += good ? 0 : 1;
  const std::string gate_text = gated ? absl::StrFormat("%s %.4g", relation, gate) : "";
  std::printf("%s %s: %s%.4g%s%s\n",
              !gated ? "[    ]"
              : good ? "[ok]  "
                     : "[FAIL]",
              c.workload.c_str(), figures(c).c_str(), ratio, gated ? ", " : "", gate_text.c_str());
  std::fflush(stdout);
  // A line at a time, so that a benchmark that crashes leaves the rows before.
  if (rows_.is_open()) rows_ << row_of(c, ratio, gate_text, !gated ? "no gate" : good ? "ok" : "missed") << std::endl;
}

int Gates::close() const {
  std::printf("\n%s\n", failed_ == 0 ? "All figures hold." : "Some figures do not hold: see [FAIL] above.");
  return failed_ == 0 ? 0 : 3;
}

}  // namespace dtensor::benchmarks
