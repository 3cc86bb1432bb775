#include "mesh/device_mesh.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
namespace {

using Ints = std::vector<int64_t>;
using Members = std::vector<Ints>;

TEST_CASE("a 2-d mesh", "[mesh][device_mesh]") {
  const auto world = World::local(6);
  const DeviceMesh mesh(world, {2, 3}, {"dp", "tp"});
  CHECK(mesh.world() == world);
  CHECK(mesh.ndim() == 2);
  CHECK(mesh.shape() == Ints{2, 3});
  CHECK(mesh.size() == 6);
  CHECK(mesh.size(1) == 3);
  CHECK(mesh.size("dp") == 2);
  CHECK(mesh.dim("tp") == 1);
  CHECK(mesh.ranks() == Ints{0, 1, 2, 3, 4, 5});
  CHECK(mesh.num_copies() == 1);
  CHECK(mesh.local_ranks() == mesh.ranks());
  CHECK(mesh.coordinate(4) == Ints{1, 1});
  CHECK(Ints(mesh.local_coordinate(5).begin(), mesh.local_coordinate(5).end()) == Ints{1, 2});
  CHECK(mesh.local_rank(4, 0) == 1);
  CHECK(mesh.local_rank(5, 1) == 2);
  CHECK(mesh.contains(5));
  CHECK_FALSE(mesh.contains(6));
  CHECK(mesh.to_string() == "mesh(dp=2, tp=3)");
  std::ostringstream os;
  os << mesh << DeviceMesh();
  CHECK(os.str() == "mesh(dp=2, tp=3)mesh(undefined)");
}

TEST_CASE("a mesh of some ranks in another order", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(6), {2, 2}, {}, {5, 0, 3, 2});
  CHECK(mesh.names() == std::vector<std::string>{"dim0", "dim1"});
  CHECK(mesh.local_ranks() == Ints{5, 0, 3, 2});
  CHECK(mesh.coordinate(3) == Ints{1, 0});
  CHECK_FALSE(mesh.contains(1));
  const RankGroups& group = mesh.get_group("dim0");
  CHECK(group.members == Members{{5, 3}, {0, 2}});
  CHECK(group.group_of == Ints{1, -1, 1, 0, -1, 0});
  CHECK(group.position_of == Ints{0, -1, 1, 1, -1, 0});
  CHECK(mesh["dim1"].ranks() == Ints{3, 2, 5, 0});
}

TEST_CASE("the process's ranks of a fake and an abstract world", "[mesh][device_mesh]") {
  const DeviceMesh fake(World::fake(8, 6), {2, 2, 2});
  CHECK(fake.local_ranks() == Ints{6});
  CHECK(Ints(fake.local_coordinate(0).begin(), fake.local_coordinate(0).end()) == Ints{1, 1, 0});
  CHECK(DeviceMesh(World::fake(8, 6), {4}).local_ranks().empty());
  CHECK(DeviceMesh(World::abstract(8), {8}).local_ranks().empty());
}

TEST_CASE("the device of a mesh is that of its first local rank, or of its first rank", "[mesh][device_mesh]") {
  CHECK(DeviceMesh(World::local(4), {2}, {}, {3, 1}).device() == c10::Device(c10::kCPU));
  CHECK(DeviceMesh(World::abstract(8), {8}).device() == World::abstract(8).device(0));
  const World meta = World::local(2).meta();
  CHECK(DeviceMesh(meta, {2}).device() == c10::Device(c10::kMeta));
  CHECK_THROWS_WITH(DeviceMesh().device(), Catch::Contains("has no mesh"));
}

TEST_CASE("device mesh: invalid arguments", "[mesh][device_mesh]") {
  const auto world = World::local(4);
  CHECK_THROWS_WITH(DeviceMesh(World(), {2}), Contains("DeviceMesh: world is not defined"));
  CHECK_THROWS_WITH(DeviceMesh(world, {}), Contains("shape is empty; a mesh has at least 1 dim"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2, 0}), Contains("shape [2, 0] has size 0 at dim 1"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2, 3}), Contains("shape [2, 3] needs more ranks than local(4, cpu) has"));
  CHECK_THROWS_WITH(DeviceMesh(world, {int64_t{1} << 62, 4}), Contains("needs more ranks"));
  CHECK_THROWS_WITH(DeviceMesh(world, {4}, {}, {0, 1}), Contains("ranks has 2 entries but shape [4] has room for 4"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2}, {}, {1, 4}),
                    Contains("rank 4 is outside local(4, cpu), whose ranks are 0..3"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2}, {}, {-1, 0}), Contains("rank -1 is outside"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2}, {}, {3, 3}), Contains("rank 3 occurs twice"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2, 2}, {"dp"}), Contains("names has 1 entries (dp) for a mesh of 2 dims"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2, 2}, {"a", "a"}), Contains("the name a occurs twice in (a, a)"));
  CHECK_THROWS_WITH(DeviceMesh(world, {2, 2}, {"a", ""}), Contains("the name of dim 1 is empty"));
  CHECK_FALSE(DeviceMesh().defined());
  CHECK_THROWS_WITH(DeviceMesh().ndim(), Contains("this handle has no mesh"));
}

TEST_CASE("device mesh: invalid queries", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(8), {2, 1, 2}, {"dp", "cp", "tp"});
  CHECK_THROWS_WITH(mesh.dim("pp"), Contains("no dim is named pp in mesh(dp=2, cp=1, tp=2); known names: dp, cp, tp"));
  CHECK_THROWS_WITH(mesh["pp"], Contains("known names: dp, cp, tp"));
  CHECK_THROWS_WITH(mesh.get_group("pp"), Contains("known names: dp, cp, tp"));
  CHECK_THROWS_WITH(mesh.size(3), Contains("dim 3 is outside"));
  CHECK_THROWS_WITH(mesh.coordinate(7), Contains("rank 7 is not in mesh(dp=2, cp=1, tp=2) of ranks [0, 1, 2, 3]"));
  CHECK_THROWS_WITH(mesh.local_rank(0, -1), Contains("dim -1 is outside"));
  CHECK_THROWS_WITH(mesh.local_coordinate(4), Contains("index 4 with 4 local ranks"));
  CHECK_THROWS_WITH(mesh.group({}), Contains("dims is empty"));
  CHECK_THROWS_WITH(mesh.group({2, 0}), Contains("dims [2, 0] of mesh(dp=2, cp=1, tp=2) must ascend within 0..2"));
  CHECK_THROWS_WITH(mesh.group({0, 3}), Contains("must ascend within 0..2"));
  CHECK_THROWS_WITH((mesh[{"tp", "dp"}]),
                    Contains("(tp, dp) must differ and keep the order of mesh(dp=2, cp=1, tp=2)"));
  CHECK_THROWS_WITH((mesh[{"dp", "dp"}]), Contains("(dp, dp) must differ"));
  CHECK_THROWS_WITH(mesh[std::vector<std::string>{}], Contains("no names given"));
  CHECK_THROWS_WITH(mesh.flatten({"dp", "tp"}), Contains("(dp, tp) must be neighbours in"));
  CHECK_THROWS_WITH(mesh.flatten({"cp", "dp"}), Contains("must be neighbours in"));
  CHECK_THROWS_WITH(mesh.flatten({"dp", "cp"}, "tp"), Contains("another dim named tp"));
  CHECK_THROWS_WITH(mesh.flatten({"dp", "dp"}), Contains("must be neighbours in"));
  CHECK_THROWS_WITH(mesh.flatten({""}), Contains("no dim is named  in"));
  CHECK_THROWS_WITH(mesh[""], Contains("known names: dp, cp, tp"));
  for (const int64_t n :
       {int64_t{3}, int64_t{-1}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    CHECK_THROWS_WITH(mesh.size(n), Contains(c10::str("dim ", n, " is outside")));
    CHECK_THROWS_WITH(mesh.get_group(n), Contains("must ascend within 0..2"));
    CHECK_THROWS_WITH(mesh.local_rank(0, n), Contains(c10::str("dim ", n, " is outside")));
    CHECK_THROWS_WITH(mesh.local_coordinate(n == 3 ? 4 : n), Contains("with 4 local ranks"));
    const int64_t rank = n == 3 ? 4 : n;
    CHECK_THROWS_WITH(mesh.coordinate(rank), Contains(c10::str("rank ", rank, " is not in mesh(dp=2, cp=1, tp=2)")));
    CHECK_FALSE(mesh.contains(rank));
  }
}

TEST_CASE("device mesh: the number of ranks per node determines which dims are between nodes", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(8), {4, 2}, {"dp", "tp"});
  CHECK(mesh.dims_between_nodes(1) == 3);
  CHECK(mesh.dims_between_nodes(2) == 1);
  CHECK(mesh.dims_between_nodes(8) == 0);
  CHECK(mesh.dims_between_nodes(std::numeric_limits<int64_t>::max()) == 0);
  for (const int64_t n : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    for (int time = 0; time < 2; ++time) {  // a failure is not cached as a result
      CHECK_THROWS_WITH(mesh.dims_between_nodes(n),
                        Contains(c10::str("ranks_per_node is ", n, "; a node has at least 1")));
    }
  }
  const DeviceMesh many(World::local(2), std::vector<int64_t>(65, 1));
  CHECK_THROWS_WITH(many.dims_between_nodes(1), Contains("the mesh has 65 dims"));
}

TEST_CASE("device mesh: queries of a handle without a mesh throw", "[mesh][device_mesh]") {
  const DeviceMesh none;
  const std::string error = "this handle has no mesh";
  CHECK_THROWS_WITH(none.world(), Contains(error));
  CHECK_THROWS_WITH(none.ndim(), Contains(error));
  CHECK_THROWS_WITH(none.shape(), Contains(error));
  CHECK_THROWS_WITH(none.size(), Contains(error));
  CHECK_THROWS_WITH(none.size(0), Contains(error));
  CHECK_THROWS_WITH(none.size("dp"), Contains(error));
  CHECK_THROWS_WITH(none.names(), Contains(error));
  CHECK_THROWS_WITH(none.dim("dp"), Contains(error));
  CHECK_THROWS_WITH(none.ranks(), Contains(error));
  CHECK_THROWS_WITH(none.num_copies(), Contains(error));
  CHECK_THROWS_WITH(none.local_ranks(), Contains(error));
  CHECK_THROWS_WITH(none.local_coordinate(0), Contains(error));
  CHECK_THROWS_WITH(none.coordinate(0), Contains(error));
  CHECK_THROWS_WITH(none.contains(0), Contains(error));
  CHECK_THROWS_WITH(none.local_rank(0, 0), Contains(error));
  CHECK_THROWS_WITH(none.group({0}), Contains(error));
  CHECK_THROWS_WITH(none.get_group("dp"), Contains(error));
  CHECK_THROWS_WITH(none.get_group(0), Contains(error));
  CHECK_THROWS_WITH(none.dims_between_nodes(1), Contains(error));
  CHECK_THROWS_WITH(none["dp"], Contains(error));
  CHECK_THROWS_WITH(none.flatten(), Contains(error));
  CHECK_FALSE(none.idle().defined());
  CHECK(none.to_string() == "mesh(undefined)");
}

TEST_CASE("groups of a 3-d mesh", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(12), {2, 3, 2}, {"dp", "cp", "tp"});
  CHECK(mesh.get_group("tp").members == Members{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}});
  CHECK(mesh.get_group("cp").members == Members{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}});
  CHECK(mesh.get_group(0).members == Members{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}});
  const RankGroups& both = mesh.group({0, 2});
  CHECK(both.name == "dp,tp");
  CHECK(both.size == 4);
  CHECK(both.members == Members{{0, 1, 6, 7}, {2, 3, 8, 9}, {4, 5, 10, 11}});
  CHECK(both.group_of[9] == 1);
  CHECK(both.position_of[9] == 3);
  CHECK(&both == &mesh.group({0, 2}));
  CHECK(mesh.group({0, 1, 2}).members == Members{mesh.ranks()});
}

TEST_CASE("slices keep every rank", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(12), {2, 3, 2}, {"dp", "cp", "tp"});
  const auto cp = mesh["cp"];
  CHECK(cp.shape() == Ints{3});
  CHECK(cp.size() == 3);
  CHECK(cp.num_copies() == 4);
  CHECK(cp.ranks() == Ints{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11});
  CHECK(cp.local_ranks() == cp.ranks());
  CHECK(cp.coordinate(8) == Ints{1});
  CHECK(cp.get_group("cp").members == Members{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}});
  CHECK(cp.to_string() == "mesh(cp=3)");

  const auto dp_tp = mesh[{"dp", "tp"}];
  CHECK(dp_tp.num_copies() == 3);
  CHECK(dp_tp.ranks() == Ints{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11});
  CHECK(dp_tp.coordinate(9) == Ints{1, 1});
  CHECK(dp_tp.get_group("dp").members == Members{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}});
}

TEST_CASE("device mesh: a slice is the same mesh however it was taken", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(12), {2, 3, 2}, {"dp", "cp", "tp"});
  CHECK(mesh[{"dp", "cp", "tp"}] == mesh);
  CHECK(mesh[{"dp", "cp"}]["dp"] == mesh["dp"]);
  CHECK(mesh[{"dp", "tp"}]["dp"] == mesh["dp"]);
  CHECK(mesh[{"dp", "tp"}]["tp"] == mesh["tp"]);
  CHECK(mesh[{"cp", "tp"}]["tp"]["tp"] == mesh["tp"]);
  CHECK(mesh["dp"] != mesh["tp"]);
  const std::string name = "cp";
  CHECK(mesh[name] == mesh[{"cp"}]);
}

TEST_CASE("flatten", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::local(12), {2, 3, 2}, {"dp", "cp", "tp"});
  const auto flat = mesh.flatten();
  CHECK(flat.to_string() == "mesh(dp_cp_tp=12)");
  CHECK(flat.ranks() == mesh.ranks());
  CHECK(flat == DeviceMesh(mesh.world(), {12}, {"dp_cp_tp"}));
  const auto right = mesh.flatten({"cp", "tp"}, "model");
  CHECK(right.to_string() == "mesh(dp=2, model=6)");
  CHECK(right.get_group("model").members == mesh.group({1, 2}).members);
  const auto slice = mesh[{"dp", "tp"}].flatten();
  CHECK(slice.to_string() == "mesh(dp_tp=4)");
  CHECK(slice.num_copies() == 3);
  CHECK(slice.get_group(0).members == mesh.group({0, 2}).members);
  CHECK(mesh.flatten({"cp"}) == mesh);
}

TEST_CASE("equal meshes of one world are one", "[mesh][device_mesh]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {2, 2}, {"dp", "tp"});
  const DeviceMesh b(world, {2, 2}, {"dp", "tp"}, {0, 1, 2, 3});
  CHECK(a == b);
  CHECK(a.identity() == b.identity());
  CHECK(a != DeviceMesh(world, {2, 2}, {"dp", "cp"}));
  CHECK(a != DeviceMesh(world, {2, 2}, {"dp", "tp"}, {0, 2, 1, 3}));
  CHECK(a != DeviceMesh(world, {4}, {"dp"}));
  CHECK(a != DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}));
  // The same ranks as one copy of four and as two copies of two.
  CHECK(DeviceMesh(world, {2}, {"tp"}) != a["tp"]);
}

TEST_CASE("device mesh: threads get the same meshes and groups", "[mesh][device_mesh]") {
  const auto world = World::local(8);
  const DeviceMesh mesh(world, {2, 2, 2}, {"a", "b", "c"});
  const auto slice = mesh["b"];
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        wrong += DeviceMesh(world, {2, 2, 2}, {"a", "b", "c"}) != mesh;
        wrong += mesh["b"] != slice;
        wrong += mesh[{"a", "c"}].num_copies() != 2;
        wrong += mesh.group({0, 2}).size != 4;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("device mesh: threads that make the first mesh and group at once make one", "[mesh][device_mesh]") {
  for (int round = 0; round < 20; ++round) {
    const auto world = World::abstract(4096);  // large, so that the constructions overlap
    std::vector<DeviceMesh> meshes(4);
    std::vector<const RankGroups*> groups(4);
    std::atomic<size_t> ready{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < meshes.size(); ++t) {
      threads.emplace_back([&, t] {
        ++ready;
        while (ready < meshes.size()) std::this_thread::yield();
        meshes[t] = DeviceMesh(world, {64, 64});
        groups[t] = &meshes[t].get_group(0);
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& mesh : meshes) CHECK(mesh == meshes[0]);
    for (const auto* group : groups) CHECK(group == groups[0]);
  }
}

TEST_CASE("4096 abstract ranks", "[mesh][device_mesh]") {
  const DeviceMesh mesh(World::abstract(4096), {8, 64, 8}, {"pp", "dp", "tp"});
  const RankGroups& dp = mesh.get_group("dp");
  CHECK(dp.members.size() == 64);
  CHECK(dp.members[9] == [] {
    Ints expected;
    for (int64_t i = 0; i < 64; ++i) expected.push_back(512 + 1 + 8 * i);
    return expected;
  }());
  CHECK(std::set<int64_t>(dp.position_of.begin(), dp.position_of.end()).size() == 64);
  CHECK(mesh["tp"].num_copies() == 512);
}

}  // namespace
}  // namespace dtensor
