// Times of operators from a table of measured ones.
#include "plan/operator_times.h"

#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

const OperatorTimes kTimes = {{"aten::mul", {{100, 3}, {200, 5}, {400, 25}}},
                              {"aten::mm bfloat16", {{1000, 8}}},
                              {"other", {{10, 2}}},
                              {"view", {{0, 0.5}}}};

// Of an operator that is no product, or of a product in bfloat16; -1 without a row.
double moving(const std::string& op, int64_t bytes) {
  return measured_seconds(kTimes, op, 0, at::kFloat, bytes, /*least=*/1).value_or(-1);
}
double product(const std::string& op, double flops, c10::ScalarType dtype) {
  return measured_seconds(kTimes, op, flops, dtype, 50, /*least=*/1).value_or(-1);
}

TEST_CASE("operator times: between two amounts they are linear", "[operator_times]") {
  CHECK(moving("aten::mul", 100) == 3);
  CHECK(moving("aten::mul", 150) == Approx(4));
  CHECK(moving("aten::mul", 250) == Approx(10));
  CHECK(moving("aten::mul", 400) == 25);
}

TEST_CASE("operator times: beyond the largest amount what a start does not take is in proportion to it",
          "[operator_times]") {
  CHECK(moving("aten::mul", 800) == Approx(1 + 48));
}

TEST_CASE("operator times: below the smallest amount likewise", "[operator_times]") {
  CHECK(moving("aten::mul", 50) == Approx(1 + 1));
  CHECK(moving("aten::mul", 1) == Approx(1.02));
  const OperatorTimes fast = {{"aten::mul", {{100, 0.5}}}};  // faster than a start takes
  CHECK(*measured_seconds(fast, "aten::mul", 0, at::kFloat, 50, 1) == 0.5);
  CHECK(*measured_seconds(fast, "aten::mul", 0, at::kFloat, 500, 1) == 1);
}

TEST_CASE("operator times: a product has the row of its dtype or none", "[operator_times]") {
  CHECK(product("aten::mm", 1000, at::kBFloat16) == 8);
  CHECK(product("aten::mm", 2000, at::kBFloat16) == Approx(1 + 14));
  CHECK(product("aten::mm", 1000, at::kFloat) == -1);
  CHECK(product("aten::bmm", 1000, at::kBFloat16) == -1);
}

TEST_CASE("operator times: views have one row, and operators without a row that of others", "[operator_times]") {
  CHECK(moving("aten::view", 0) == 0.5);
  CHECK(moving("aten::t", 0) == 0.5);
  CHECK(moving("aten::relu", 10) == 2);
  CHECK(moving("aten::relu", 30) == Approx(1 + 3));
  CHECK_FALSE(measured_seconds({}, "aten::relu", 0, at::kFloat, 10, 1));
  CHECK_FALSE(measured_seconds({}, "aten::view", 0, at::kFloat, 0, 1));
}

}  // namespace
}  // namespace dtensor
