#include "mesh/world.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

std::vector<std::string>* destroyed = nullptr;
World* world_of_outer = nullptr;

struct Inner {
  int value = 7;
  ~Inner() {
    if (destroyed) destroyed->push_back("inner");
  }
};

struct Outer {
  Inner* inner = &world_of_outer->attachment<Inner>();
  ~Outer() {
    if (destroyed) destroyed->push_back("outer");
  }
};

struct Counted {
  static std::atomic<int> made;
  Counted() {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that threads meet here
  }
};
std::atomic<int> Counted::made{0};

TEST_CASE("a local world owns all its ranks", "[mesh][world]") {
  const auto world = World::local(3);
  CHECK(world.defined());
  CHECK(world.kind() == World::Kind::kLocal);
  CHECK(world.size() == 3);
  CHECK(world.owned_ranks() == std::vector<int64_t>{0, 1, 2});
  CHECK(world.has_data());
  CHECK(world.device(2) == c10::Device(c10::DeviceType::CPU));
  CHECK(world.device_type() == c10::DeviceType::CPU);
  CHECK(world.name() == "local(3, cpu)");
}

TEST_CASE("devices are written as tensors report them", "[mesh][world]") {
  CHECK(World::local(2, c10::Device("cpu:0")).device(0) == c10::Device("cpu"));
  const auto gpu = World::local(2, c10::Device("cuda"));
  CHECK(gpu.device(1) == c10::Device("cuda:0"));
  CHECK(gpu.name() == "local(2, cuda:0)");
  const auto gpus = World::local({c10::Device("cuda:0"), c10::Device("cuda:1")});
  CHECK(gpus.device(1) == c10::Device("cuda:1"));
  CHECK(gpus.name() == "local(2, cuda)");
}

TEST_CASE("abstract worlds own no rank and fake worlds one", "[mesh][world]") {
  const auto abstract = World::abstract(4096);
  CHECK(abstract.kind() == World::Kind::kAbstract);
  CHECK(abstract.size() == 4096);
  CHECK(abstract.owned_ranks().empty());
  CHECK_FALSE(abstract.has_data());
  CHECK(abstract.name() == "abstract(4096, cpu)");
  CHECK(World::abstract(300, c10::DeviceType::CUDA).device(299) == c10::Device("cuda:0"));

  const auto fake = World::fake(8, 3);
  CHECK(fake.kind() == World::Kind::kFake);
  CHECK(fake.owned_ranks() == std::vector<int64_t>{3});
  CHECK(fake.name() == "fake(8, rank 3, cpu)");
}

TEST_CASE("worlds: invalid arguments", "[mesh][world]") {
  CHECK_THROWS_WITH(World::local(0), Contains("World::local: n is 0; a world needs at least 1 rank"));
  CHECK_THROWS_WITH(World::local(std::vector<c10::Device>{}), Contains("World::local: devices is empty"));
  CHECK_THROWS_WITH(World::local({c10::Device("cpu"), c10::Device("cuda:1")}),
                    Contains("devices mix cpu and cuda:1; all ranks must use one type"));
  CHECK_THROWS_WITH(World::abstract(-1), Contains("World::abstract: n is -1"));
  CHECK_THROWS_WITH(World::fake(4, 4), Contains("World::fake: rank 4 is outside the world's ranks 0..3"));
  CHECK_THROWS_WITH(World::fake(0, 0), Contains("World::fake: n is 0; a world needs at least 1 rank"));
  CHECK_THROWS_WITH(World::fake(4, -1), Contains("rank -1 is outside the world's ranks 0..3"));
  for (const int64_t n : {int64_t{1} << 25, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    const std::string most = c10::str("n is ", n, "; a world has at most 16777216 ranks");
    CHECK_THROWS_WITH(World::local(n), Contains("World::local: " + most));
    CHECK_THROWS_WITH(World::abstract(n), Contains("World::abstract: " + most));
    CHECK_THROWS_WITH(World::fake(n, 0), Contains("World::fake: " + most));
    CHECK_THROWS_WITH(World::of_process(n, 0, c10::Device("cpu"), "a job", nullptr), Contains(most));
  }
  CHECK_THROWS_WITH(World::local(std::numeric_limits<int64_t>::min()), Contains("World::local: n is -"));
  CHECK_THROWS_WITH(World::of_process(2, 2, c10::Device("cpu"), "a job", nullptr),
                    Contains("World::of_process: rank 2 is outside the world's ranks 0..1"));
  CHECK_THROWS_WITH(World::of_process(2, 1, c10::Device("cpu"), "a job", nullptr), Contains("communicator is null"));
  CHECK_THROWS_WITH(World::local(2).device(-1), Contains("rank -1 is outside local(2, cpu)"));
  CHECK_THROWS_WITH(World::local(2).device(2), Contains("rank 2 is outside local(2, cpu), whose ranks are 0..1"));
  CHECK_FALSE(World().defined());
  const World none;
  CHECK_THROWS_WITH(none.size(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.owned_ranks(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.device(0), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.name(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.communicator(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.memory(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.in_use(), Contains("this handle has no world"));
  CHECK_THROWS_WITH(none.release_caches(), Contains("this handle has no world"));
  CHECK_FALSE(none.idle().defined());
  CHECK_THROWS_WITH(DeviceMesh(none, {1}), Contains("DeviceMesh: world is not defined"));
}

TEST_CASE("worlds are compared by identity", "[mesh][world]") {
  const auto a = World::local(2);
  const World copy = a;
  CHECK(a == copy);
  CHECK(a != World::local(2));
}

TEST_CASE("an attachment is made once per world and may use another", "[mesh][world]") {
  std::vector<std::string> order;
  {
    auto world = World::local(2);
    auto other = World::local(2);
    world_of_outer = &world;
    auto& outer = world.attachment<Outer>();
    CHECK(outer.inner == &world.attachment<Inner>());
    CHECK(&outer == &World(world).attachment<Outer>());
    CHECK(&other.attachment<Inner>() != outer.inner);
    other.attachment<Inner>().value = 8;
    CHECK(outer.inner->value == 7);
    other = World();
    destroyed = &order;
  }
  destroyed = nullptr;
  CHECK(order == std::vector<std::string>{"outer", "inner"});
}

TEST_CASE("threads that request an attachment at once get the same", "[mesh][world]") {
  const auto world = World::local(2);
  std::vector<Counted*> seen(8);
  std::vector<std::thread> threads;
  for (auto& slot : seen) threads.emplace_back([&] { slot = &world.attachment<Counted>(); });
  for (auto& thread : threads) thread.join();
  CHECK(Counted::made == 1);
  for (auto* counted : seen) CHECK(counted == seen[0]);
}

TEST_CASE("a mesh keeps its world alive and the world does not keep the mesh", "[mesh][world]") {
  std::vector<std::string> order;
  destroyed = &order;
  {
    DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
    mesh.world().attachment<Inner>();
    mesh = mesh["tp"];
    CHECK(mesh.world().attachment<Inner>().value == 7);
    CHECK(order.empty());
  }
  destroyed = nullptr;
  CHECK(order == std::vector<std::string>{"inner"});
}

TEST_CASE("the memory meter", "[mesh][memory]") {
  MemoryMeter meter;
  {
    MemoryHold weights(meter, 100);
    {
      MemoryHold activation(meter, 50);
      CHECK(meter.live_bytes() == 150);
    }
    CHECK(meter.live_bytes() == 100);
    CHECK(meter.peak_bytes() == 150);
    meter.touch(20);
    CHECK(meter.peak_bytes() == 150);
    meter.touch(70);
    CHECK(meter.live_bytes() == 100);
    CHECK(meter.peak_bytes() == 170);
    meter.reset_peak();
    CHECK(meter.peak_bytes() == 100);
  }
  CHECK(meter.live_bytes() == 0);
  CHECK(meter.peak_bytes() == 100);
}

TEST_CASE("the memory meter counts threads together", "[mesh][memory]") {
  const auto world = World::local(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) world.memory().add(3);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(world.memory().live_bytes() == 12000);
  CHECK(world.memory().peak_bytes() == 12000);
}

}  // namespace
}  // namespace dtensor
