// The table of operators in docs/operators.md: which file has the rule or the handler of each. From the registry.
//
//   ./bazelw run //tools:operator_table              # prints it
//   ./bazelw run //tools:operator_table -- --write   # puts it into the page

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "propagation/rule_registry.h"
#include "tools/flags.h"
#include "tools/tables/page_table.h"

namespace {

using namespace dtensor;
using namespace dtensor::tools;

// Where an operator's rule and handler stand; overloads that have their own, apart.
struct Row {
  std::set<std::string> rules, handlers;
  std::vector<std::string> overloads;
};

std::map<std::string, Row> rows() {
  std::map<std::string, Row> all;
  for (const RuleRegistry::Entry& entry : RuleRegistry::instance().entries()) {
    const size_t dot = entry.op.find('.');
    Row& row = all[entry.op.substr(0, dot)];
    (entry.kind == RuleRegistry::Entry::Kind::kRule ? row.rules : row.handlers).insert(entry.file);
    if (dot == std::string::npos) continue;
    const std::string overload = entry.op.substr(dot + 1);
    if (row.overloads.empty() || row.overloads.back() != overload) row.overloads.push_back(overload);
  }
  return all;
}

std::string links(const std::set<std::string>& files) {
  const auto link = [](std::string* text, const std::string& file) {
    absl::StrAppend(text, "[", file, "](../", file, ")");
  };
  return absl::StrJoin(files, ", ", link);
}

std::string table() {
  std::string text = "| operator | overloads of their own | rule | handler |\n| --- | --- | --- | --- |\n";
  for (const auto& [op, row] : rows()) {
    absl::StrAppend(&text, "| `", op, "` | ", absl::StrJoin(row.overloads, ", "), " | ", links(row.rules), " | ",
                    links(row.handlers), " |\n");
  }
  return text;
}

int run() { return make_page_table({"docs/operators.md", "table of operators", "//tools:operator_table"}, table()); }

}  // namespace

int main(int argc, char** argv) {
  return run_program("operator_table", "Prints which file has the rule or the handler of each operator.", argc, argv,
                     run);
}
