#include "dtensor/tensor/on_demand.h"

#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/testing/catch_torch.h"

namespace dtensor::internal {
namespace {

std::atomic<int> alive = 0;

struct Counted {
  constexpr Counted() {
    if (!std::is_constant_evaluated()) ++alive;
  }
  Counted(const Counted&) = delete;
  ~Counted() { --alive; }
  int value = 7;
};

}  // namespace

TEST_CASE("OnDemand: reads as a new object until it is made", "[dtensor][on_demand]") {
  {
    OnDemand<Counted> member;
    const OnDemand<Counted>& read = member;
    CHECK(read.if_made() == nullptr);
    CHECK(read->value == 7);
    CHECK((*read).value == 7);
    CHECK(read.if_made() == nullptr);
    CHECK(alive == 0);
    member.make().value = 8;
    CHECK(read.if_made() == &member.make());
    CHECK(read->value == 8);
    CHECK(OnDemand<Counted>()->value == 7);
    CHECK(alive == 1);
  }
  CHECK(alive == 0);
}

TEST_CASE("OnDemand: threads that make it at once get the same one", "[dtensor][on_demand]") {
  for (int round = 0; round < 200; ++round) {
    OnDemand<Counted> member;
    std::atomic<int> ready = 0;
    std::vector<Counted*> seen(4);
    std::vector<std::thread> threads;
    for (Counted*& one : seen) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        one = &member.make();
      });
    }
    for (std::thread& t : threads) t.join();
    for (const Counted* one : seen) REQUIRE(one == seen[0]);
    REQUIRE(member.if_made() == seen[0]);
    REQUIRE(alive == 1);
  }
  CHECK(alive == 0);
}

}  // namespace dtensor::internal
