// What one step of a small Llama communicates and holds under each kind of parallelism, beside the formulas.
#include "examples/models/parallelism.h"

#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

TEST_CASE("a step of a Llama communicates and holds what the formulas say") {
  const auto rows = examples::parallelism_rows();
  CHECK(rows.size() == 7);
  for (const examples::ParallelismRow& row : rows) {
    INFO(row.name << " on " << row.mesh);
    CHECK(row.measured.collectives == row.formula.collectives);
    CHECK(row.measured.bytes == row.formula.bytes);
    CHECK(row.measured.state_bytes == row.formula.state_bytes);
    CHECK(row.peak_bytes > row.measured.state_bytes);
    CHECK(static_cast<double>(row.peak_formula) == Approx(row.peak_bytes).epsilon(0.01));
  }
}

}  // namespace
}  // namespace dtensor
