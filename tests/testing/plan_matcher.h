// CHECK_THAT for plans, by their short form:
//
//   EXPECT_PLAN(plan_redistribution(mesh, meta, {Shard(0)}, {Shard(1)}), "a2a(tp)");
//
// A failure shows the plan's explain(): what it does instead, and why not otherwise. Include after the torch headers.
#pragma once

#include <string>
#include <utility>

#include "plan/redistribute_plan.h"
#include "tests/testing/catch_torch.h"

template <>
struct Catch::StringMaker<dtensor::RedistributePlan> {
  static std::string convert(const dtensor::RedistributePlan& plan) { return plan.explain(); }
};

namespace dtensor::testing {

class PlansAs : public Catch::MatcherBase<RedistributePlan> {
 public:
  explicit PlansAs(std::string short_form) : short_form_(std::move(short_form)) {}
  bool match(const RedistributePlan& plan) const override { return plan.short_form() == short_form_; }
  std::string describe() const override { return "should be \"" + short_form_ + "\""; }

 private:
  const std::string short_form_;
};

}  // namespace dtensor::testing

#define EXPECT_PLAN(plan, short_form) CHECK_THAT(plan, ::dtensor::testing::PlansAs(short_form))
