// The text picture of a layout.
#include "observe/layout_text.h"

#include <algorithm>
#include <sstream>

#include "observe/layout_grid.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

std::string text(const DeviceMesh& mesh, const Placements& p, std::vector<int64_t> sizes) {
  return layout_text(*Spec::get(mesh, p, sizes, at::kFloat));
}

size_t columns_of(const std::string& s) {  // box-drawing characters take three bytes
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

TEST_CASE("layout text: uneven parts to scale, copies") {
  const DeviceMesh mesh(World::abstract(4), {2, 2}, {"dp", "tp"});
  CHECK(text(mesh, {Shard(0), Replicate()}, {5, 8}) == R"(f32[5, 8](S(0)R) @ mesh(dp=2, tp=2)
        0:8
      ┌─────┐
      │     │
  0:3 │ 0,1 │
      │     │
      ├─────┤
  3:5 │ 2,3 │
      │     │
      └─────┘
  2 copies
)");
  CHECK(text(mesh, {Shard(1), Partial()}, {4, 9}) == R"(f32[4, 9](S(1)P(sum)) @ mesh(dp=2, tp=2)
        0:5    5:9
      ┌──────┬─────┐
  0:4 │ 0+1  │ 2+3 │
      └──────┴─────┘
  2 addends (sum)
)");
}

TEST_CASE("layout text: equal parts take no more room than their text") {
  const DeviceMesh mesh(World::abstract(32), {4, 8}, {"dp", "tp"});
  CHECK(text(mesh, {Shard(0), Replicate()}, {4096, 64}) == R"(f32[4096, 64](S(0)R) @ mesh(dp=4, tp=8)
              0:64
            ┌───────┐
     0:1024 │ 0-7   │
            ├───────┤
  1024:2048 │ 8-15  │
            ├───────┤
  2048:3072 │ 16-23 │
            ├───────┤
  3072:4096 │ 24-31 │
            └───────┘
  8 copies
)");
  // Columns of equal parts are equally wide, also where their texts are not.
  const std::string wide = text(mesh, {Shard(0), Shard(1)}, {8, 4096});
  CHECK_THAT(wide, Catch::Contains("│ 0         │ 1         │"));
}

TEST_CASE("layout text: of many cells and ranks the first and the last") {
  const World world = World::abstract(4096);
  const DeviceMesh grid(world, {64, 64}, {"dp", "tp"}), line(world, {4096}, {"x"});
  const std::string cut = text(grid, {Shard(0), Shard(1)}, {4096, 4096});
  CHECK_THAT(cut, Catch::Contains("4032:4096 │ 4032      │ 4033") && Catch::Contains("│ ... │ 4095") &&
                      !Catch::Contains("448:512"));
  std::istringstream lines(cut);
  for (std::string l; std::getline(lines, l);) CHECK(columns_of(l) < 128);
  CHECK_THAT(text(line, {Replicate()}, {8}), Catch::Contains("│ 0-4095 │") && Catch::Contains("4096 copies"));
  CHECK_THAT(
      text(grid, {Replicate(), Partial(ReduceOp::kMax)}, {8}),
      Catch::Contains("0+...+63, 64+...+127, ..., 4032+...+4095") && Catch::Contains("64 copies x 64 addends (max)"));
}

TEST_CASE("layout text: other dims, empty parts, runs, no elements, ranks of its own") {
  const World world = World::abstract(8);
  const DeviceMesh cube(world, {2, 2, 2}, {"a", "b", "c"}), line(world, {4}, {"x"}), odd(world, {2}, {"y"}, {7, 3});
  const std::string parts = text(cube, {Shard(0), Shard(2), Shard(1)}, {4, 4, 4});
  CHECK_THAT(parts, Catch::Contains("dims 0 (down) and 1 (across)") && Catch::Contains("2 pieces along other dims"));
  CHECK_THAT(text(line, {Shard(0)}, {5}), Catch::Contains("nothing on rank 3\n"));
  CHECK_THAT(text(line, {Shard(0)}, {2}), Catch::Contains("nothing on ranks 2, 3\n"));
  CHECK_THAT(text(DeviceMesh(world, {2}, {"z"}), {StridedShard(0, 2)}, {8}),
             Catch::Contains("│ 0   │ 1   │ 0   │ 1   │"));
  CHECK(text(line, {Shard(0)}, {0, 3}) == "f32[0, 3](S(0)) @ mesh(x=4)\n  no elements\n");
  CHECK_THAT(text(line, {Replicate()}, {}), Catch::Contains("│ 0-3 │") && Catch::Contains("4 copies"));
  CHECK_THAT(text(odd, {Shard(0)}, {4, 4}), Catch::Contains("0:2 │ 7 ") && Catch::Contains("2:4 │ 3 "));
}

TEST_CASE("layout grid: why a cell has several ranks") {
  const DeviceMesh mesh(World::abstract(12), {2, 3, 2}, {"a", "b", "c"});
  const auto sheets = [&](const Placements& p, std::vector<int64_t> sizes) {
    const auto spec = Spec::get(mesh, p, sizes, at::kFloat);
    return describe(sheets_of(*spec, drawn_dims(*spec)));
  };
  CHECK(sheets({Replicate(), Partial(), Shard(0)}, {4, 4}) == "2 copies x 3 addends (sum)");
  CHECK(sheets({Shard(0), Shard(1), Shard(2)}, {4, 4, 4}) == "2 pieces along other dims");
  CHECK(sheets({Shard(0), Shard(1), Shard(0)}, {4, 4}).empty());
}

}  // namespace dtensor
