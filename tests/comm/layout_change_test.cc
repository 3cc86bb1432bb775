// What events say of a redistribution.
#include "comm/layout_change.h"

#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

TEST_CASE("layout change: on one mesh, which is named once", "[comm][layout_change]") {
  const LayoutChange change(c10::kHalf, {6, 4}, {Shard(0), StridedShard(0, 2)}, {Replicate(), Partial()},
                            "mesh(dp=2, tp=2)");
  CHECK(change.dtype() == c10::kHalf);
  CHECK(change.sizes() == Shape{6, 4});
  CHECK(change.on_one_mesh());
  CHECK(change.from().placements == Placements{Shard(0), StridedShard(0, 2)});
  CHECK(change.to().placements == Placements{Replicate(), Partial()});
  CHECK(change.from().where == "mesh(dp=2, tp=2)");
  CHECK(change.to().where == "mesh(dp=2, tp=2)");
  CHECK(to_string(change) == "f16[6, 4](S(0)_S(0, 2)) -> (RP(sum)) @ mesh(dp=2, tp=2)");
  CHECK(to_string(change) == change.text());
  CHECK(to_string(change, 2) == "f16[6, 4](S(0)_S(0, 2)) -> (RP(sum)) @ mesh(dp=2, tp=2) and 2 more");
}

TEST_CASE("layout change: between meshes, also with equal texts, and from boxes", "[comm][layout_change]") {
  const LayoutChange moved(c10::kLong, {}, {Placements{Replicate()}, "mesh(tp=4)"},
                           {Placements{Replicate()}, "mesh(tp=4)"});
  CHECK_FALSE(moved.on_one_mesh());
  CHECK(to_string(moved) == "i64[](R @ mesh(tp=4)) -> (R @ mesh(tp=4))");
  const LayoutChange gathered(c10::kFloat, {8}, {std::nullopt, "3 boxes on ranks 0, 2"},
                              {Placements{Shard(0)}, "mesh(tp=2)"});
  CHECK_FALSE(gathered.on_one_mesh());
  CHECK_FALSE(gathered.from().placements.has_value());
  CHECK(to_string(gathered.from()) == "3 boxes on ranks 0, 2");
  CHECK(to_string(gathered.to()) == "S(0) @ mesh(tp=2)");
  CHECK(to_string(gathered, 1) == "f32[8](3 boxes on ranks 0, 2) -> (S(0) @ mesh(tp=2)) and 1 more");
}

}  // namespace
}  // namespace dtensor
