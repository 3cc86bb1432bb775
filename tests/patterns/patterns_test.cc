// The models of benchmarks/patterns communicate no more than they did: budgets.cc has the numbers.
#include <algorithm>

#include "benchmarks/patterns/cases.h"
#include "dtensor/dtensor.h"
#include "tests/patterns/budgets.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using benchmarks::PatternCase;
using benchmarks::Phase;

const PatternBudget* budget_of(const std::string& name, const std::string& mesh, const std::string& phase) {
  for (const PatternBudget& b : pattern_budgets()) {
    if (b.name == name && b.mesh == mesh && b.phase == phase) return &b;
  }
  return nullptr;
}

void check(const PatternCase& c) {
  const DeviceMesh mesh = benchmarks::mesh_of(c);
  for (const Phase& phase : c.make(mesh, /*scale=*/1).phases) {
    INFO(phase.name << ": by hand " << phase.by_hand.calls << " calls, " << phase.by_hand.bytes << " bytes");
    const PatternBudget* allowed = budget_of(c.name, mesh.to_string(), phase.name);
    REQUIRE(allowed != nullptr);
    const CommBudget budget({.max_calls = allowed->calls, .max_bytes = allowed->bytes});
    try {
      phase.run();
    } catch (const c10::Error& error) {
      FAIL(error.what_without_backtrace());
    }
  }
}

TEST_CASE("models communicate no more than they did", "[patterns]") {
  for (const PatternCase& c : benchmarks::pattern_cases()) {
    DYNAMIC_SECTION(c.name << " on " << benchmarks::mesh_of(c).to_string()) { check(c); }
  }
}

TEST_CASE("every line of the budgets is about a pattern", "[patterns]") {
  const auto& cases = benchmarks::pattern_cases();
  for (const PatternBudget& b : pattern_budgets()) {
    INFO(b.name << ", " << b.phase);
    CHECK(std::any_of(cases.begin(), cases.end(), [&](const PatternCase& c) {
      return c.name == b.name && benchmarks::mesh_of(c).to_string() == b.mesh;
    }));
  }
}

}  // namespace
}  // namespace dtensor
