#include "plan/memo.h"

#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Squares = Memo<int, int, 4>;

void insert(Squares& memo, int begin, int end) {
  for (int k = begin; k < end; ++k) memo.insert(k, k * k, {});
}

TEST_CASE("memo: keeps used entries, and no more than two generations") {
  Squares memo;
  insert(memo, 0, 4);
  CHECK(memo.find(3) == 9);
  CHECK(memo.find(4) == std::nullopt);
  insert(memo, 4, 8);  // the first four are old
  CHECK(memo.find(1) == 1);
  insert(memo, 9, 13);
  CHECK(memo.find(1) == 1);
  CHECK(memo.find(0) == std::nullopt);
  CHECK(memo.find(12) == 144);
  memo.insert(12, 7, {});
  CHECK(memo.find(12) == 7);
}

TEST_CASE("memo: drops candidates first, except those that were looked up") {
  Squares memo;
  for (int k = 0; k < 8; ++k) memo.insert_old(k, k * k, {});
  insert(memo, 20, 22);
  CHECK(memo.find(5) == 25);
  memo.insert_old(8, 64, {});
  memo.insert_old(9, 81, {});  // no room
  CHECK(memo.find(5) == 25);
  CHECK(memo.find(6) == std::nullopt);
  CHECK(memo.find(9) == 81);
  CHECK(memo.find(20) == 400);
}

TEST_CASE("memo: holds its specs until the world is not used any more") {
  struct Names : Memo<std::vector<int64_t>, std::string, 4> {};
  const size_t alive = Spec::num_alive();
  {
    const DeviceMesh mesh(World::local(2), {2}, {"tp"});
    const auto spec = Spec::get(mesh, {Shard(0)}, {6}, at::kFloat);
    const std::vector<int64_t> key{static_cast<int64_t>(spec->id())};
    mesh.world().attachment<Names>().insert(key, "rows", {spec});
    CHECK(mesh.world().attachment<Names>().find(key) == "rows");
  }
  CHECK(Spec::num_alive() == alive);
}

}  // namespace
}  // namespace dtensor
