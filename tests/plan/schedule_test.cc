// What is kept with a plan.
#include "plan/transfer/schedule.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "plan/redistribute_planner.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using namespace internal;

RedistributePlan shards_to_shards(int64_t ranks) {
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
  return plan_redistribution(mesh, {{2 * ranks, 2 * ranks}, {2 * ranks, 1}, at::kFloat}, {Shard(0)}, {Shard(1)});
}

}  // namespace

TEST_CASE("schedule: threads that use a new plan at once get the same schedule, spec and change", "[plan][schedule]") {
  for (int round = 0; round < 20; ++round) {
    const RedistributePlan plan = shards_to_shards(64);  // takes long enough for others to wait
    std::vector<std::shared_ptr<const PlanSchedule>> schedules(4);
    std::vector<SpecPtr> results(4);
    std::vector<std::shared_ptr<const LayoutChange>> changes(4);
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        schedules[t] = schedule_of(plan);
        results[t] = result_spec_of(plan);
        changes[t] = layout_change_of(plan);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t t = 0; t < 4; ++t) {
      REQUIRE(schedules[t] == schedules[0]);
      REQUIRE(results[t] == results[0]);
      REQUIRE(changes[t] == changes[0]);
    }
    REQUIRE(schedules[0]->steps.size() == 1);
    REQUIRE(schedules[0]->steps[0].messages.size() == 4096);
    REQUIRE(results[0]->placements() == Placements{Shard(1)});
    const std::weak_ptr<const Spec> kept = results[0];
    results.clear();
    REQUIRE_FALSE(kept.expired());  // the plan has it
  }
}

TEST_CASE("schedule: one with very many messages is made for each run, and not kept", "[plan][schedule]") {
  const RedistributePlan plan = shards_to_shards(160);  // 25600 messages
  const auto first = schedule_of(plan), second = schedule_of(plan);
  CHECK(first != second);
  CHECK(first->steps[0].messages.size() == 25600);
  CHECK(second->steps[0].messages.size() == 25600);
  const std::weak_ptr<const Spec> kept = result_spec_of(plan);
  CHECK_FALSE(kept.expired());
}

}  // namespace dtensor
