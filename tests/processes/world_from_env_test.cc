// The world that the processes of a job find. Runs in every rank's process.
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "processes/launch/launch_env.h"
#include "processes/launch/launch_store.h"
#include "processes/launch/open_store.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

int64_t env_rank() { return std::atoll(std::getenv("RANK")); }
int64_t env_size() { return std::atoll(std::getenv("WORLD_SIZE")); }

LaunchOptions on_cpu() {
  LaunchOptions options;
  options.device = "cpu";
  return options;
}

// The sum over all ranks of rank + 1, by a collective.
double sum_of(const World& world) {
  const DeviceMesh mesh(world, {world.size()}, {"tp"});
  CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), {}, {}};
  RankTensors inputs;
  for (int64_t rank : mesh.local_ranks()) inputs.push_back(at::full({2}, static_cast<double>(rank + 1), at::kDouble));
  return world.communicator().all_reduce(call, inputs, ReduceOp::kSum)[0][1].item<double>();
}
double expected_sum() { return static_cast<double>(env_size() * (env_size() + 1) / 2); }

TEST_CASE("world_from_env: properties of the world") {
  const World world = World::from_env(on_cpu());
  CHECK(world.kind() == World::Kind::kProcesses);
  CHECK(world.size() == env_size());
  CHECK(world.owned_ranks() == std::vector<int64_t>{env_rank()});
  CHECK(world.has_data());
  CHECK(world.device(0) == c10::Device(c10::DeviceType::CPU));
  CHECK(world.name() == absl::StrCat("processes(", env_size(), ", rank ", env_rank(), ", gloo, cpu)"));
  CHECK(sum_of(world) == expected_sum());
}

TEST_CASE("world_from_env: random numbers are those of rank 0 for any seeds of the others") {
  at::manual_seed(100 + env_rank());
  const World world = World::from_env(on_cpu());
  const at::Tensor drawn = at::rand({4}, at::kDouble);
  const DeviceMesh mesh(world, {world.size()}, {"tp"});
  const CommCall call{&mesh.get_group("tp"), mesh.local_ranks(), {}, {}};
  const at::Tensor of_rank_0 = world.communicator().broadcast(call, {drawn}, 0)[0];
  CHECK(at::equal(drawn, of_rank_0));
  at::manual_seed(100);
  CHECK(at::equal(drawn, at::rand({4}, at::kDouble)));
}

TEST_CASE("world_from_env: one after the other, and two at once") {
  for (int i = 0; i < 3; ++i) CHECK(sum_of(World::from_env(on_cpu())) == expected_sum());
  const World a = World::from_env(on_cpu()), b = World::from_env(on_cpu());
  CHECK(a != b);
  CHECK(sum_of(b) == expected_sum());
  CHECK(sum_of(a) == expected_sum());
}

// If it were removed, a rank that leaves this world could remove what a slower one has opened for the next.
TEST_CASE("world_from_env: the rendezvous file remains after a world") {
  LaunchOptions options = on_cpu();
  const std::string path = parse_store(find_job_place({}).store, "").path + "-stays";
  options.store = absl::StrCat("file://", path);
  CHECK(sum_of(World::from_env(options)) == expected_sum());
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the other ranks have left it, too
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("world_from_env: options set the rendezvous") {
  // A port that was free on rank 0 a moment ago, sent to all through the launcher's store.
  JobPlace place = find_job_place({});
  const auto store = open_store(place);
  if (place.rank == 0) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    ::close(fd);
    store->set("test/port", std::to_string(ntohs(address.sin_port)));
  }
  LaunchOptions options = on_cpu();
  options.store = "tcp://127.0.0.1:" + store->get_to_str("test/port");
  // The other way round: the launcher's rank n - 1 is rank 0, and serves.
  options.rank = env_size() - 1 - env_rank();
  options.world_size = env_size();
  {
    const World world = World::from_env(options);
    CHECK(world.owned_ranks()[0] == *options.rank);
    CHECK(sum_of(world) == expected_sum());
  }
  CHECK(sum_of(World::from_env(options)) == expected_sum());  // rank 0 serves still
}

TEST_CASE("world_from_env: a process group made by the program") {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("test/group", open_store(find_job_place({})));
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, env_rank(), env_size());
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, env_rank(), env_size(), options);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  for (int i = 0; i < 2; ++i) {
    const World world = World::from_process_group(group);
    CHECK(world.name() == absl::StrCat("processes(", env_size(), ", rank ", env_rank(), ", gloo, cpu)"));
    CHECK(sum_of(world) == expected_sum());
  }
  CHECK_THROWS_WITH(World::from_process_group(group, c10::Device("cuda:0")),
                    Contains("`group` has no backend for `device` cuda:0"));
  CHECK_THROWS_WITH(World::from_process_group({}), Contains("`group` is null"));
  const auto no_store = c10::make_intrusive<c10d::ProcessGroup>(env_rank(), env_size());
  CHECK_THROWS_WITH(World::from_process_group(no_store), Contains("`group` was made without a store"));
}

TEST_CASE("world_from_env: a rank that two processes claim") {
  LaunchOptions options = on_cpu();
  options.rank = 0;  // all of them
  options.world_size = 2;
  options.store = absl::StrCat(find_job_place({}).store, "-claimed");
  options.timeout = std::chrono::seconds(6);
  if (env_rank() != 0) {  // the true one comes first
    JobPlace claimed = find_job_place({});
    claimed.store = options.store;
    open_store(claimed)->wait({"dtensor//0/came/0"});
  }
  std::string error;
  try {
    World::from_env(options);
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  }
  // The true one too, which waits for rank 1.
  CHECK_THAT(error, Contains("a rank 0 has been at the store") && Contains("two processes have the same rank"));
}

TEST_CASE("world_from_env: errors before anything is opened") {
  LaunchOptions options = on_cpu();
  options.store = "nowhere";
  CHECK_THROWS_WITH(World::from_env(options), Contains("LaunchOptions::store is 'nowhere'"));
  options = on_cpu();
  options.backend = "nccl";
  CHECK_THROWS_WITH(World::from_env(options), Contains("give one of the two alone"));
}

TEST_CASE("world_from_env: without a launcher the process is a world of one rank") {
  std::vector<std::pair<std::string, std::string>> saved;
  for (const char* name : {"RANK", "WORLD_SIZE", "DTENSOR_STORE"}) {
    saved.emplace_back(name, std::getenv(name));
    ::unsetenv(name);
  }
  const World world = World::from_env(on_cpu());
  for (const auto& [name, value] : saved) ::setenv(name.c_str(), value.c_str(), 1);
  CHECK(world.name() == "local(1, cpu)");
}

}  // namespace
}  // namespace dtensor
