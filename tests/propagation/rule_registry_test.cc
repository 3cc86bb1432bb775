#include "propagation/rule_registry.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "propagation/factor_rule.h"
#include "tests/testing/catch2.h"

using namespace dtensor;

namespace {

using Entry = RuleRegistry::Entry;

std::string file_of(const std::string& op, Entry::Kind kind) {
  for (const Entry& entry : RuleRegistry::instance().entries()) {
    if (entry.op == op && entry.kind == kind) return entry.file;
  }
  return "not there";
}

OpRule any_rule() {
  return factor_op([](const OpCall& call) { return pointwise(call); });
}

}  // namespace

TEST_CASE("The registry lists the library's rules and handlers with their files, in order") {
  const std::vector<Entry> entries = RuleRegistry::instance().entries();
  CHECK(std::is_sorted(entries.begin(), entries.end(),
                       [](const Entry& a, const Entry& b) { return std::tie(a.op, a.kind) < std::tie(b.op, b.kind); }));
  CHECK(file_of("aten::embedding", Entry::Kind::kRule) == "ops/embedding/embedding.cc");
  CHECK(file_of("aten::resize_", Entry::Kind::kHandler) == "ops/views/resize.cc");
  for (const Entry& entry : entries) {
    INFO(entry.op);
    CHECK((entry.file.empty() || entry.file.rfind("ops/", 0) == 0));  // other tests may have added some
  }
}

TEST_CASE("A rule added or replaced by the program has no file") {
  RuleRegistry& registry = RuleRegistry::instance();
  const uint64_t before = registry.generation();
  registry.add("mylib::rule_registry_test", any_rule());
  CHECK(file_of("mylib::rule_registry_test", Entry::Kind::kRule).empty());
  CHECK(registry.generation() == before + 1);

  const auto mv = registry.find(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mv", ""));
  CHECK(file_of("aten::mv", Entry::Kind::kRule) == "ops/matrix/matmul.cc");
  registry.add("aten::mv", *mv);
  CHECK(file_of("aten::mv", Entry::Kind::kRule).empty());
}

TEST_CASE("Two families of one name are an error") {
  const auto nothing = [](RuleRegistry&) {};
  CHECK_THROWS_AS(RuleFamily("matmul", nothing), c10::Error);
}
