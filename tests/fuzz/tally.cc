#include "tests/fuzz/tally.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/fuzz/catalog.h"
#include "tests/fuzz/refusals.h"

namespace dtensor::fuzz {
namespace {

const std::map<std::string, size_t>& places() {
  static const auto* const all = [] {
    auto* map = new std::map<std::string, size_t>;
    for (const Operator& op : catalog()) map->emplace(op.name, map->size());
    map->emplace(kRedistribute, map->size());
    TORCH_CHECK(map->size() <= Tally::kOperators, "more operators than Tally has places");
    return map;
  }();
  return *all;
}

}  // namespace

Tally* Tally::shared() {
  void* memory = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory to share between processes");
  return new (memory) Tally;
}

void Tally::count(const Program& program, const Outcome& outcome) {
  ++programs;
  ++kinds[static_cast<int>(outcome.kind)];
  compared += outcome.compared;
  for (size_t k = 0; k < std::min(outcome.step, program.steps.size()); ++k) {
    ++steps;
    if (const auto found = places().find(program.steps[k].op); found != places().end()) ++operators[found->second];
  }
  if (outcome.kind == Kind::kDocumented) {
    const Refusal* refusal = reason_to_refuse(outcome.op, outcome.message);
    if (refusal != nullptr) ++refusals[refusal - fuzz::refusals().data()];
  }
}

bool Tally::known(const std::string& signature) {
  const auto all = findings();
  if (std::find(all.begin(), all.end(), signature) != all.end()) return true;
  const size_t used = std::strlen(text);
  if (used + signature.size() + 2 < kText) std::strcpy(text + used, (signature + "\n").c_str());
  return false;
}

std::vector<std::string> Tally::findings() const { return absl::StrSplit(text, '\n', absl::SkipEmpty()); }

bool is_open(const std::string& finding, const std::vector<std::string>& open) {
  const auto same = [&](const auto& line) {
    return absl::StripTrailingAsciiWhitespace(line) == absl::StripTrailingAsciiWhitespace(finding);
  };
  return std::any_of(open.begin(), open.end(), same);
}

std::string progress(const Tally& tally, double seconds) {
  const auto kind = [&](Kind k) { return tally.kinds[static_cast<int>(k)]; };
  return absl::StrFormat(
      "%.0f s: %d programs, %d steps, %d tensors compared; documented refusals %d, unstable %d; refused %d, wrong %d, "
      "crashes %d (%d distinct)",
      seconds, tally.programs, tally.steps, tally.compared, kind(Kind::kDocumented), kind(Kind::kUnstable),
      kind(Kind::kRefused), kind(Kind::kWrong), kind(Kind::kCrash), tally.findings().size());
}

std::string summary(const Tally& tally, const std::vector<std::string>& open, bool coverage) {
  std::string text;
  size_t covered = 0;
  for (const Operator& op : catalog()) covered += tally.operators[places().at(op.name)] > 0;
  absl::StrAppendFormat(&text, "%d of %d operators ran\n", covered, catalog().size());
  for (size_t k = 0; k < refusals().size(); ++k) {
    if (tally.refusals[k] > 0)
      absl::StrAppendFormat(&text, "%6d documented refusals: %s\n", tally.refusals[k], refusals()[k].reason);
  }
  for (const std::string& finding : tally.findings()) {
    absl::StrAppend(&text, is_open(finding, open) ? "open finding: " : "finding: ", finding, "\n");
  }
  static const char* const support[] = {"rule", "composite", "none"};
  for (const Operator& op : catalog()) {
    if (!coverage) break;
    absl::StrAppendFormat(&text, "%8d %-9s %s\n", tally.operators[places().at(op.name)],
                          support[static_cast<int>(op.support)], op.name);
  }
  return text;
}

}  // namespace dtensor::fuzz
