#include "checkpoint/sharded/save_plan.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

std::vector<Box> boxes_of(const std::vector<RankBox>& all) {
  std::vector<Box> boxes;
  for (const RankBox& b : all) boxes.push_back({b.offsets, b.sizes});
  return boxes;
}

// Does the rank hold all of the box?
bool holds(const LocalLayout& part, const RankBox& box) {
  return overlap_numel(part, part_of(Box{box.offsets, box.sizes})) == Box{box.offsets, box.sizes}.numel();
}

Placement random_placement(std::mt19937& random, int64_t ndim) {
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const int kind = pick(4);
  if (kind == 0 || ndim == 0) return Replicate();
  if (kind == 1) return StridedShard(pick(static_cast<int>(ndim)), 1 + pick(3));
  return Shard(pick(static_cast<int>(ndim)));
}

}  // namespace

TEST_CASE("save plan: every element is saved once, by a rank that has it", "[checkpoint]") {
  std::mt19937 random(5);
  const auto pick = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  for (int round = 0; round < 500; ++round) {
    Shape mesh_shape, sizes;
    for (int64_t d = pick(3) + 1; d > 0; --d) mesh_shape.push_back(1 + pick(4));
    for (int64_t d = pick(4); d > 0; --d) sizes.push_back(pick(10));
    const int64_t ranks = std::accumulate(mesh_shape.begin(), mesh_shape.end(), int64_t{1}, std::multiplies<>());
    const DeviceMesh mesh(World::abstract(ranks + pick(3)), {mesh_shape.begin(), mesh_shape.end()});
    Placements placements;
    for (size_t d = 0; d < mesh_shape.size(); ++d)
      placements.push_back(random_placement(random, static_cast<int64_t>(sizes.size())));
    const SpecPtr spec = Spec::get(mesh, placements, sizes, at::kFloat);
    SavePlanner planner(mesh.world().size());
    const std::vector<RankBox> boxes = planner.add(spec);
    INFO(spec->to_string());
    CHECK(why_no_tiling(spec->sizes(), boxes_of(boxes)).empty());
    for (const RankBox& box : boxes) {
      const bool empty = Box{box.offsets, box.sizes}.numel() == 0;
      CHECK((empty || holds(spec->layout_of_rank(box.rank), box)));
    }
  }
}

TEST_CASE("save plan: replicated data is spread over its ranks", "[checkpoint]") {
  const DeviceMesh mesh(World::abstract(8), {2, 4});
  SavePlanner planner(8);
  const auto most = [&] { return *std::max_element(planner.bytes().begin(), planner.bytes().end()); };
  const auto total = [&] { return std::accumulate(planner.bytes().begin(), planner.bytes().end(), int64_t{0}); };
  for (int k = 0; k < 40; ++k) planner.add(Spec::get(mesh, {Replicate(), Shard(0)}, {1024, 256}, at::kFloat));
  CHECK(most() * 8 == total());
  planner.add(Spec::get(mesh, {Replicate(), Replicate()}, {8192, 8192}, at::kFloat));  // one of 256 MiB
  planner.add_replicated({{8192, 8192}, {}, at::kFloat});
  CHECK(static_cast<double>(most()) * 8 < 1.05 * static_cast<double>(total()));
}

TEST_CASE("boxes that do not tile the tensor are detected", "[checkpoint]") {
  const auto why = [](const Shape& shape, const std::vector<Box>& boxes) { return why_no_tiling(shape, boxes); };
  using Catch::Contains;
  CHECK(why({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 2}}, {{2, 2}, {2, 2}}}).empty());
  CHECK_THAT(why({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 2}}}), Contains("12 elements, it has 16"));
  CHECK_THAT(why({4, 4}, {{{0, 0}, {3, 4}}, {{2, 0}, {1, 4}}}), Contains("overlap"));
  CHECK_THAT(why({4}, {{{2}, {3}}}), Contains("reaches beyond"));
  CHECK_THAT(why({4}, {{{INT64_MAX}, {INT64_MAX}}}), Contains("reaches beyond"));
  CHECK(why({}, {{{}, {}}}).empty());
  CHECK_THAT(why({}, {{{}, {}}, {{}, {}}}), Contains("overlap"));
  CHECK(why({0, 3}, {}).empty());
  CHECK(why({0, 3}, {{{0, 0}, {0, 3}}}).empty());
}

}  // namespace dtensor
