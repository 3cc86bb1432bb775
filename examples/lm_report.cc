#include "examples/lm_report.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace examples {
namespace {

struct Kind {
  int64_t calls = 0;
  int64_t bytes = 0;
};

}  // namespace

std::string chart(const std::vector<double>& plain, const std::vector<double>& mesh) {
  const int width = 64, height = 12;
  double low = plain[0], high = plain[0];
  for (const auto* curve : {&plain, &mesh}) {
    for (double x : *curve) low = std::min(low, x), high = std::max(high, x);
  }
  std::vector<std::string> rows(height, std::string(width, ' '));
  const auto draw = [&](const std::vector<double>& curve, char mark) {
    for (int x = 0; x < width; ++x) {
      const double value = curve[static_cast<size_t>(x * (curve.size() - 1) / (width - 1))];
      const int y = high > low ? static_cast<int>((high - value) / (high - low) * (height - 1) + 0.5) : 0;
      char& cell = rows[y][x];
      cell = cell == ' ' ? mark : '*';
    }
  };
  draw(plain, 'o');
  draw(mesh, 'x');
  std::string text;
  for (int y = 0; y < height; ++y) {
    absl::StrAppendFormat(&text, "%8.4f |%s\n", high - (high - low) * y / (height - 1), rows[y]);
  }
  absl::StrAppend(&text, "         +", std::string(width, '-'), "\n          step 1");
  absl::StrAppendFormat(&text, "%*s\n", width - 6, absl::StrCat("step ", plain.size()));
  return text;
}

std::string communication_table(const std::vector<dtensor::CommEvent>& events) {
  std::map<std::string, Kind> kinds;
  std::map<std::string, std::map<std::string, Kind>> causes;
  for (const auto& e : events) {
    const std::string kind(dtensor::to_string(e.collective));
    // One line for all parameters' gradients, one per argument of everything else.
    const bool gradient = e.cause.op == "gradient";
    const std::string cause =
        absl::StrCat(gradient ? "gradients of parameters" : e.cause.op, gradient || e.cause.argument.empty() ? "" : " ",
                     gradient ? "" : e.cause.argument, e.backward ? " (backward)" : "");
    for (Kind* k : {&kinds[kind], &causes[kind][cause]}) {
      ++k->calls;
      k->bytes += e.bytes;
    }
  }
  std::string text;
  for (const auto& [kind, total] : kinds) {
    absl::StrAppendFormat(&text, "  %-58s %4d calls %10d B\n", kind, total.calls, total.bytes);
    for (const auto& [cause, k] : causes[kind]) {
      absl::StrAppendFormat(&text, "    %-56s %4d       %10d B\n", cause, k.calls, k.bytes);
    }
  }
  return text.empty() ? "  none\n" : text;
}

}  // namespace examples
