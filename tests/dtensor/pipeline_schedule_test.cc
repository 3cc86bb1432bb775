// Schedules of pipelines: complete, without deadlock, and as long as the papers say.
#include "dtensor/pipeline_schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using ScheduleKind = PipelineAction::Kind;

TEST_CASE("GPipe and 1F1B wait (p - 1) / (m + p - 1) of the time, whatever forward and backward take") {
  for (const int64_t p : {1, 2, 4, 7}) {
    for (const int64_t m : {1, 2, 4, 9, 32}) {
      for (const PipelineTimes& times : {PipelineTimes{1, 2, 0}, PipelineTimes{3, 1, 0}}) {
        INFO(p << " ranks, " << m << " micro-batches");
        const double expected = static_cast<double>(p - 1) / static_cast<double>(m + p - 1);
        CHECK(gpipe_schedule(p, m).simulate(times).bubble == Approx(expected).margin(1e-9));
        CHECK(one_f_one_b_schedule(p, m).simulate(times).bubble == Approx(expected).margin(1e-9));
      }
    }
  }
}

TEST_CASE("the interleaved schedule waits (p - 1) / (v m + p - 1) of the time with v stages on a rank") {
  for (const int64_t p : {1, 2, 4}) {
    for (const int64_t v : {1, 2, 3}) {
      for (const int64_t rounds : {1, 2, 5}) {
        INFO(p << " ranks, " << v << " stages each, " << rounds * p << " micro-batches");
        const double expected = static_cast<double>(p - 1) / static_cast<double>(v * rounds * p + p - 1);
        CHECK(interleaved_schedule(p, v, rounds * p).simulate().bubble == Approx(expected).margin(1e-9));
      }
    }
  }
}

TEST_CASE("ZB-H1 waits (p - 1) (F + I - W), a third of 1F1B if all parts take equally long") {
  const std::vector<PipelineTimes> all_times = {
      {.forward = 1, .backward = 2, .backward_input = 1, .backward_weight = 1},
      {.forward = 1, .backward = 2.5, .backward_input = 1.5, .backward_weight = 1},
      {.forward = 2, .backward = 3, .backward_input = 2, .backward_weight = 1}};
  for (const PipelineTimes& t : all_times) {
    for (const auto& [p, m] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 2}, {2, 5}, {4, 4}, {4, 8}, {8, 20}}) {
      INFO(p << " ranks, " << m << " micro-batches, times " << t.forward << ", " << t.backward_input << ", "
             << t.backward_weight);
      const double work = static_cast<double>(m) * (t.forward + t.backward_input + t.backward_weight);
      const double waiting = static_cast<double>(p - 1) * (t.forward + t.backward_input - t.backward_weight);
      CHECK(zero_bubble_schedule(p, m).simulate(t).seconds == Approx(work + waiting));
      CHECK(zero_bubble_schedule(p, m).simulate(t).bubble == Approx(waiting / (work + waiting)).margin(1e-9));
      CHECK(one_f_one_b_schedule(p, m).simulate(t).seconds ==
            Approx(work + static_cast<double>(p - 1) * (t.forward + t.backward)));
    }
  }
}

TEST_CASE("every rank of ZB-H1 holds as many micro-batches as the first rank of 1F1B") {
  for (const int64_t m : {1, 2, 4, 16}) {
    for (int64_t r = 0; r < 4; ++r) CHECK(zero_bubble_schedule(4, m).peak_in_flight(r) == std::min<int64_t>(m, 4));
  }
}

TEST_CASE("the picture of ZB-H1 with two ranks and three micro-batches has the parts of each backward") {
  CHECK(zero_bubble_schedule(2, 3).to_string() ==
        "ZB-H1: 2 ranks, 2 stages, 3 micro-batches, bubble 10.0 %\n"
        "rank 0: F0 F1 .  I0 W0 F2 I1 W1 I2 W2\n"
        "rank 1: .  F0 I0 F1 I1 W0 F2 I2 W1 W2\n");
  const std::string svg = zero_bubble_schedule(2, 3).simulate().to_svg();
  CHECK(svg.find("<title>backward to the parameters of micro-batch 2 in stage 1</title>") != std::string::npos);
}

TEST_CASE("a schedule may split the backward of some stages only, each once") {
  PipelineSchedule schedule = gpipe_schedule(2, 1);
  schedule.actions[1] = zero_bubble_schedule(2, 1).actions[1];
  CHECK(schedule.simulate().seconds == 1 + 1 + 1 + 2);
  schedule.actions[1].pop_back();
  CHECK_THROWS_WITH(schedule.simulate(),
                    Catch::Contains("lacks the backward to the parameters of micro-batch 0 in stage 1"));
  schedule = zero_bubble_schedule(2, 1);
  schedule.actions[1].push_back({ScheduleKind::kBackward, 1, 0});
  CHECK_THROWS_WITH(schedule.simulate(), Catch::Contains("twice: as a whole and split"));
  schedule = zero_bubble_schedule(2, 1);
  std::swap(schedule.actions[1][1], schedule.actions[1][2]);
  CHECK_THROWS_WITH(schedule.simulate(), Catch::Contains("rank 0 would wait forever"));
}

TEST_CASE("1F1B keeps at most p - r micro-batches in flight on rank r, GPipe keeps all") {
  const auto one_f_one_b = one_f_one_b_schedule(4, 16), gpipe = gpipe_schedule(4, 16);
  for (int64_t r = 0; r < 4; ++r) {
    CHECK(one_f_one_b.peak_in_flight(r) == 4 - r);
    CHECK(gpipe.peak_in_flight(r) == 16);
  }
}

TEST_CASE("with transfers that take 1, GPipe of two ranks and one micro-batch takes 2 more") {
  const auto schedule = gpipe_schedule(2, 1);
  CHECK(schedule.simulate({.forward = 1, .backward = 2}).seconds == 6);
  CHECK(schedule.simulate({.forward = 1, .backward = 2, .transfer = 1}).seconds == 8);
}

TEST_CASE("the order of a schedule has each action once, after what it needs") {
  for (const PipelineSchedule& schedule :
       {gpipe_schedule(3, 4), one_f_one_b_schedule(3, 4), interleaved_schedule(2, 3, 4)}) {
    INFO(schedule.name);
    const std::vector<PipelineAction> order = schedule.order();
    CHECK(static_cast<int64_t>(order.size()) == 2 * schedule.num_stages * schedule.num_micro_batches);
    const auto position = [&](const PipelineAction& a) {
      return std::find(order.begin(), order.end(), a) - order.begin();
    };
    for (const PipelineAction& a : order) {
      if (a.kind == ScheduleKind::kForward && a.stage > 0)
        CHECK(position({ScheduleKind::kForward, a.stage - 1, a.micro_batch}) < position(a));
      if (a.kind == ScheduleKind::kBackward && a.stage + 1 < schedule.num_stages)
        CHECK(position({ScheduleKind::kBackward, a.stage + 1, a.micro_batch}) < position(a));
      if (a.kind == ScheduleKind::kBackward)
        CHECK(position({ScheduleKind::kForward, a.stage, a.micro_batch}) < position(a));
    }
  }
}

TEST_CASE("the picture of 1F1B with two ranks and two micro-batches has a row for each rank") {
  CHECK(one_f_one_b_schedule(2, 2).to_string() ==
        "1F1B: 2 ranks, 2 stages, 2 micro-batches, bubble 33.3 %\n"
        "rank 0: F0 F1 .  .  B0 B0 .  B1 B1\n"
        "rank 1: .  F0 B0 B0 F1 B1 B1 .  .\n");
}

TEST_CASE("the SVG of a timeline has a rectangle for each action") {
  const std::string svg = one_f_one_b_schedule(2, 3).simulate().to_svg();
  size_t rectangles = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) ++rectangles;
  CHECK(rectangles == 12);
  CHECK(svg.find("<title>backward of micro-batch 2 in stage 1</title>") != std::string::npos);
}

TEST_CASE("a schedule whose ranks wait for one another forever is an error that names the action") {
  PipelineSchedule schedule = one_f_one_b_schedule(2, 1);
  std::swap(schedule.actions[1][0], schedule.actions[1][1]);
  CHECK_THROWS_WITH(schedule.simulate(),
                    Catch::Contains("would wait forever for what the backward of micro-batch 0 in stage 0"));
}

TEST_CASE("a schedule with an action missing, twice or on another rank is an error that names the action") {
  PipelineSchedule missing = gpipe_schedule(2, 2);
  missing.actions[0].pop_back();
  CHECK_THROWS_WITH(missing.simulate(), Catch::Contains("lacks the backward of micro-batch 1 in stage 0"));
  PipelineSchedule twice = gpipe_schedule(2, 2);
  twice.actions[1].push_back(twice.actions[1][0]);
  CHECK_THROWS_WITH(twice.simulate(), Catch::Contains("has the forward of micro-batch 0 in stage 1 twice"));
  PipelineSchedule elsewhere = gpipe_schedule(2, 2);
  std::swap(elsewhere.actions[0], elsewhere.actions[1]);
  CHECK_THROWS_WITH(elsewhere.simulate(), Catch::Contains("which is on rank 1"));
}

TEST_CASE("numbers of ranks and micro-batches that do not fit are errors with the number") {
  CHECK_THROWS_WITH(gpipe_schedule(2, 2).simulate({.forward = -1}), Catch::Contains("a time is negative"));
  CHECK_THROWS_WITH(gpipe_schedule(2, 2).peak_in_flight(2), Catch::Contains("there is no rank 2"));
  CHECK(gpipe_schedule(2, 2).simulate({.forward = 0, .backward = 0}).bubble == 0);
  CHECK_THROWS_WITH(zero_bubble_schedule(2, 2).simulate({.backward_weight = -1}),
                    Catch::Contains("backward_weight -1"));
  CHECK_THROWS_WITH(zero_bubble_schedule(2, 0), Catch::Contains("micro_batches is 0"));
  CHECK_THROWS_WITH(gpipe_schedule(0, 2), Catch::Contains("ranks is 0"));
  CHECK_THROWS_WITH(one_f_one_b_schedule(2, -1), Catch::Contains("micro_batches is -1"));
  CHECK_THROWS_WITH(interleaved_schedule(4, 2, 6), Catch::Contains("must be a multiple of ranks, 4"));
}

}  // namespace
}  // namespace dtensor
