// The SVG of a model's layout.
#include "observe/layout_picture.h"

#include <ATen/core/Tensor.h>

#include <regex>

#include "observe/layout_grid.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

SpecPtr spec(const DeviceMesh& mesh, const Placements& p, std::vector<int64_t> sizes) {
  return Spec::get(mesh, p, sizes, at::kFloat);
}

size_t count(const std::string& s, const std::string& what) {
  size_t n = 0;
  for (size_t at = s.find(what); at != std::string::npos; at = s.find(what, at + 1)) ++n;
  return n;
}

// The rectangles of a rank's parts: x, y, width, height.
std::vector<std::array<double, 4>> boxes(const std::string& svg, int rank) {
  std::vector<std::array<double, 4>> result;
  const std::regex rect(
      "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" height=\"([0-9.]+)\"[^>]*><title>rank " +
      std::to_string(rank) + " ");
  for (std::sregex_iterator it(svg.begin(), svg.end(), rect), end; it != end; ++it) {
    result.push_back({std::stod((*it)[1]), std::stod((*it)[2]), std::stod((*it)[3]), std::stod((*it)[4])});
  }
  return result;
}

}  // namespace

TEST_CASE("layout grid: cells and their ranks") {
  const DeviceMesh mesh(World::abstract(4), {2, 2}, {"dp", "tp"});
  const auto grid = layout_grid(*spec(mesh, {Shard(1), Shard(0)}, {5, 3}));
  CHECK(grid.row_cuts == std::vector<int64_t>{0, 3, 5});
  CHECK(grid.column_cuts == std::vector<int64_t>{0, 2, 3});
  REQUIRE(grid.cells.size() == 4);
  CHECK(grid.cells[0] == std::vector<LayoutGrid::RankGroups>{{0}});
  CHECK(grid.cells[1] == std::vector<LayoutGrid::RankGroups>{{2}});
  CHECK(grid.cells[2] == std::vector<LayoutGrid::RankGroups>{{1}});
  CHECK(layout_grid(*spec(mesh, {Replicate(), Partial()}, {4})).cells[0] ==
        std::vector<LayoutGrid::RankGroups>{{0, 1}, {2, 3}});
  CHECK(layout_grid(*spec(mesh, {Shard(0), Shard(0)}, {3})).empty == std::vector<int64_t>{3});
  // Sharded dims are drawn before large ones.
  CHECK(drawn_dims(*spec(mesh, {Shard(1), Replicate()}, {100, 2, 50})) == absl::InlinedVector<int64_t, 2>{0, 1});
  CHECK(drawn_dims(*spec(mesh, {Shard(1), Shard(2)}, {100, 2, 50})) == absl::InlinedVector<int64_t, 2>{1, 2});
  CHECK(drawn_dims(*spec(mesh, {Replicate(), Replicate()}, {})).empty());
}

TEST_CASE("layout grid: lists of ranks stay short") {
  CHECK(describe_holders({{0}}) == "0");
  CHECK(describe_holders({{0}, {2}}) == "0,2");
  CHECK(describe_holders({{0}, {1}, {2}, {3}}) == "0-3");
  CHECK(describe_holders({{0, 1}, {2, 3}}) == "0+1, 2+3");
  CHECK(describe_holders({{0, 2}}) == "0+2");
  CHECK(join_ranks({0, 2, 4, 6, 8, 10, 12, 14}, ",") == "0,2,4,...,14");
}

TEST_CASE("layout picture: parts have their true proportions, uneven ones too") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const std::string svg = layout_svg({{"w", spec(mesh, {Shard(0)}, {10, 6})}}, "title");
  CHECK_THAT(svg, Catch::StartsWith("<svg xmlns=") && Catch::EndsWith("</svg>\n"));
  const auto first = boxes(svg, 0), last = boxes(svg, 3);
  REQUIRE(first.size() == 1);
  REQUIRE(last.size() == 1);
  CHECK(first[0][3] == Approx(3 * last[0][3]).epsilon(0.02));  // 3, 3, 3 and 1 rows
  CHECK(first[0][2] == last[0][2]);
  CHECK(last[0][1] == Approx(first[0][1] + 3 * first[0][3]).epsilon(0.02));
  CHECK_THAT(svg, Catch::Contains("rank 3 (tp=3): [9:10, 0:6]") && Catch::Contains(">w</text>") &&
                      Catch::Contains(">title</text>"));
}

TEST_CASE("layout picture: copies and addends are sheets, empty parts are named") {
  const World world = World::abstract(4);
  const DeviceMesh grid(world, {2, 2}, {"dp", "tp"}), line(world, {4}, {"x"});
  const std::string copies = layout_svg({{"w", spec(grid, {Replicate(), Shard(1)}, {4, 4})}});
  CHECK_THAT(copies, Catch::Contains("2 copies") && !Catch::Contains("addends"));
  REQUIRE(boxes(copies, 2).size() == 1);
  CHECK(boxes(copies, 2)[0][0] > boxes(copies, 0)[0][0]);  // behind, to the upper right
  CHECK(boxes(copies, 2)[0][1] < boxes(copies, 0)[0][1]);
  const std::string addends = layout_svg({{"g", spec(line, {Partial(ReduceOp::kMax)}, {4, 4})}});
  CHECK_THAT(addends, Catch::Contains("4 addends (max)") && Catch::Contains("stroke-dasharray"));
  CHECK_THAT(layout_svg({{"b", spec(line, {Shard(0)}, {5})}}), Catch::Contains("nothing on rank 3"));
  CHECK_THAT(layout_svg({{"e", spec(line, {Shard(0)}, {0, 4})}}), Catch::Contains("no elements"));
  CHECK(boxes(layout_svg({{"s", spec(line, {StridedShard(0, 3)}, {24})}}), 1).size() == 3);
}

TEST_CASE("layout picture: equal layers share a card, names are escaped, any size of mesh") {
  const World world = World::abstract(4096);
  const DeviceMesh mesh(world, {4096}, {"x"});
  std::vector<NamedSpec> tensors;
  for (int i = 0; i < 5; ++i)
    tensors.push_back({"layers." + std::to_string(i) + ".w", spec(mesh, {Shard(0)}, {8192, 64})});
  tensors.push_back({"layers.5.w", spec(mesh, {Shard(1)}, {8192, 64})});
  tensors.push_back({"a<b>&\"c", spec(mesh, {Replicate()}, {})});
  const std::string svg = layout_svg(tensors);
  CHECK_THAT(svg, Catch::Contains("layers.*.w  x5") && Catch::Contains(">layers.5.w<") &&
                      Catch::Contains("a&lt;b&gt;&amp;&quot;c"));
  CHECK(count(svg, "class=\"name\"") == 3);
  CHECK(svg.size() < 2'000'000);
  CHECK(count(layout_svg({}, "none"), "class=\"name\"") == 0);
}

}  // namespace dtensor
