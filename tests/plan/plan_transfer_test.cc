// Plans between two meshes, and to and from boxes.

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "plan/transfer/transfer.h"
#include "tests/plan/random_plans.h"
#include "tests/testing/plan_cases.h"
#include "tests/testing/plan_matcher.h"
#include "tests/testing/time_limits.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;
using Kind = RedistributeStep::Kind;
using TimesHeld = std::vector<int>;  // how often a rank holds each element of the tensor

DeviceMesh mesh_on(const World& world, std::vector<int64_t> ranks, std::vector<int64_t> shape = {},
                   std::string name = "a") {
  std::vector<std::string> names;
  if (shape.empty()) shape = {static_cast<int64_t>(ranks.size())};
  for (size_t m = 0; m < shape.size(); ++m) names.push_back(absl::StrCat(name, m));
  return DeviceMesh(world, shape, names, ranks);
}

TimesHeld elements(const LocalLayout& part, const Shape& sizes) {
  TimesHeld held = {1};
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::vector<int> along(sizes[d]);
    for (const IndexRange& run : part.dims[d]) std::fill_n(along.begin() + run.begin, run.size, 1);
    TimesHeld next;
    for (int outer : held) {
      for (int inner : along) next.push_back(outer * inner);
    }
    held = std::move(next);
  }
  return held;
}

// Bytes missing on the rank that misses most, element by element.
int64_t lacking_bytes(const TensorMeta& meta, const Layout& before, const Layout& after) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < before.world().size(); ++rank) {
    TimesHeld held(meta.numel());
    for (const LocalLayout& part : before.parts(meta.sizes, rank)) {
      const TimesHeld of_part = elements(part, meta.sizes);
      for (size_t i = 0; i < held.size(); ++i) held[i] += of_part[i];
    }
    int64_t lacks = 0;
    for (const LocalLayout& part : after.parts(meta.sizes, rank)) {
      const TimesHeld of_part = elements(part, meta.sizes);
      for (size_t i = 0; i < held.size(); ++i) lacks += of_part[i] > 0 && held[i] == 0;
    }
    most = std::max(most, lacks);
  }
  return most * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

bool same_parts(const TensorMeta& meta, const Layout& a, const Layout& b) {
  for (int64_t rank = 0; rank < a.world().size(); ++rank) {
    const auto x = a.parts(meta.sizes, rank), y = b.parts(meta.sizes, rank);
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].sizes() != y[i].sizes() || elements(x[i], meta.sizes) != elements(y[i], meta.sizes)) return false;
    }
  }
  return true;
}

TEST_CASE("layouts list the parts of each rank", "[transfer]") {
  const World world = World::abstract(6);
  const Layout rows(mesh_on(world, {4, 2}), {Shard(0)});
  CHECK(rows.ranks() == std::vector<int64_t>{2, 4});
  CHECK(rows.to_string() == "S(0) @ mesh(a0=2)");
  CHECK(!rows.is_boxes());
  CHECK(rows.world() == world);
  REQUIRE(rows.parts({5, 3}, 4).size() == 1);
  CHECK(rows.parts({5, 3}, 4)[0].sizes() == Shape{3, 3});
  CHECK(rows.parts({5, 3}, 2)[0].offsets == Shape{3, 0});
  CHECK(rows.parts({5, 3}, 0).empty());

  const Layout boxes(world, {{3, {2, 0}, {3, 3}}, {0, {0, 0}, {2, 3}}, {3, {1, 1}, {0, 2}}});
  CHECK(boxes.is_boxes());
  CHECK(boxes.ranks() == std::vector<int64_t>{0, 3});
  CHECK(boxes.to_string() == "3 boxes on ranks 0, 3");
  REQUIRE(boxes.parts({5, 3}, 3).size() == 2);
  CHECK(boxes.parts({5, 3}, 3)[0].sizes() == Shape{3, 3});
  CHECK(boxes.parts({5, 3}, 3)[0].offsets == Shape{2, 0});
  CHECK(boxes.parts({5, 3}, 3)[1].sizes() == Shape{0, 2});
  CHECK(boxes.parts({5, 3}, 3)[1].empty());
  CHECK(boxes.parts({5, 3}, 1).empty());

  CHECK(rows == Layout(mesh_on(world, {4, 2}), {Shard(0)}));
  CHECK(rows == rows.idle());
  CHECK(rows != Layout(mesh_on(world, {2, 4}), {Shard(0)}));
  CHECK(rows != Layout(mesh_on(world, {4, 2}), {Shard(1)}));
  CHECK(rows != boxes);
  CHECK(boxes == Layout(world, {{3, {2, 0}, {3, 3}}, {0, {0, 0}, {2, 3}}, {3, {1, 1}, {0, 2}}}));
  CHECK(boxes != Layout(world, {{3, {2, 0}, {3, 3}}, {0, {0, 0}, {2, 3}}}));
  CHECK(boxes != Layout(World::abstract(6), boxes.boxes()));
}

TEST_CASE("equal parts by other placements need no step", "[transfer]") {
  const World world = World::abstract(4);
  const TensorMeta meta = meta_of({8, 8});
  const Layout nested(mesh_on(world, {0, 1, 2, 3}, {2, 2}), {Shard(0), Shard(0)});
  const Layout flat(mesh_on(world, {0, 1, 2, 3}), {Shard(0)});
  const Layout across(mesh_on(world, {0, 2, 1, 3}, {2, 2}),
                      {StridedShard(0, 2), Shard(0)});  // rank 2i+j has quarter 2i+j
  const Layout boxes(world, {{0, {0, 0}, {2, 8}}, {1, {2, 0}, {2, 8}}, {2, {4, 0}, {2, 8}}, {3, {6, 0}, {2, 8}}});
  REQUIRE(same_parts(meta, flat, across));
  for (const Layout& from : {nested, flat, across, boxes}) {
    for (const Layout& to : {nested, flat, across, boxes}) {
      const RedistributePlan plan = plan_transfer(meta, from, to);
      INFO(plan.explain());
      CHECK(plan.steps.empty());
      CHECK(plan.seconds == 0);
      CHECK(plan.bytes == 0);
      CHECK(plan.peak_bytes == 64);
      CHECK(plan.from == from);
      CHECK(plan.to == to);
    }
  }
  // Columns and rows with ranks in another order.
  const Layout square(mesh_on(world, {0, 1, 2, 3}, {2, 2}), {Shard(0), Shard(1)});
  const Layout turned(mesh_on(world, {0, 2, 1, 3}, {2, 2}), {Shard(1), Shard(0)});
  CHECK(plan_transfer(meta, square, turned).steps.empty());
  // Uneven parts differ: 3 + 2, 3 + 2 of 10 rows are not 3, 3, 3, 1.
  EXPECT_PLAN(plan_transfer(meta_of({10, 8}), nested, flat), "transfer");
  CHECK(plan_transfer(meta_of({10, 8}), nested, flat).bytes == 8 * 4);
  // One mesh: as plan_redistribution.
  EXPECT_PLAN(plan_transfer(meta, flat, Layout(flat.mesh(), {Shard(1)})), "a2a(a0)");
}

TEST_CASE("transfers between meshes", "[transfer]") {
  const World world = World::abstract(8);
  const TensorMeta meta = meta_of({8, 8});  // 256 bytes
  const DeviceMesh low = mesh_on(world, {0, 1, 2, 3}), high = mesh_on(world, {4, 5, 6, 7}, {}, "b");
  const DeviceMesh middle = mesh_on(world, {2, 3, 4, 5}, {}, "c"), backwards = mesh_on(world, {3, 2, 1, 0}, {}, "d");
  const DeviceMesh all = mesh_on(world, {0, 1, 2, 3, 4, 5, 6, 7}, {2, 4}, "e");
  const auto plan = [&](const DeviceMesh& a, const char* from, const DeviceMesh& b, const char* to) {
    return plan_transfer(meta, Layout(a, layout(from)), Layout(b, layout(to)));
  };
  // Disjoint: everything.
  EXPECT_PLAN(plan(low, "S(0)", high, "S(0)"), "transfer");
  CHECK(plan(low, "S(0)", high, "S(0)").bytes == 64);
  CHECK(plan(low, "S(0)", high, "S(1)").bytes == 64);
  CHECK(plan(low, "S(0)", high, "R").bytes == 256);
  // The ranks reversed: rank 1 has the part that rank 2 needs.
  CHECK(plan(low, "S(0)", backwards, "S(0)").bytes == 64);
  CHECK(plan(low, "R", backwards, "S(0)").bytes == 0);
  CHECK(plan(low, "R", backwards, "S(0)").num_collectives() == 0);
  CHECK(plan(low, "R", backwards, "R").steps.empty());
  // Overlapping: ranks 2 and 3 have a part, but not the one that they need.
  CHECK(plan(low, "S(0)", middle, "S(0)").bytes == 64);
  CHECK(plan(low, "R", middle, "R").bytes == 256);
  CHECK(plan(low, "R", middle, "S(0)").bytes == 64);
  // More or fewer ranks.
  CHECK(plan(low, "S(0)", all, "RS(0)").bytes == 64);
  CHECK(plan(all, "RS(0)", low, "S(0)").steps.empty() == false);  // 4..7 send theirs
  CHECK(plan(all, "RS(0)", low, "S(0)").bytes == 0);
  CHECK(plan(all, "S(0)S(0)", low, "S(0)").bytes == 64);  // rank 1 needs rows 2, 3 and has row 1
  // Partials are reduced first.
  EXPECT_PLAN(plan(low, "P(sum)", high, "S(0)"), "rs(a0), transfer");
  CHECK(plan(low, "P(sum)", high, "S(0)").bytes == 192 + 64);
  CHECK(plan(low, "P(sum)", high, "P(sum)").steps.back().kind == Kind::kFill);
  CHECK(plan(low, "S(0)", high, "P(max)").steps.back().kind == Kind::kFill);
  for (const RedistributeStep& step : plan(low, "P(sum)", high, "P(sum)").steps) {
    if (step.kind == Kind::kTransfer) CHECK(step.dims.empty());
  }
  const RedistributePlan whole = plan(low, "S(0)", high, "S(1)");
  CHECK(whole.steps[0].before == layout("S(0)"));
  CHECK(whole.steps[0].after == layout("S(1)"));
  CHECK(whole.steps[0].collective() == Collective::kAllToAll);
  CHECK_THAT(whole.to_string(), Contains("S(0) -> S(1): transfer 64 B"));
  CHECK_THAT(whole.explain(), Contains("S(0) @ mesh(a0=4) -> S(1) @ mesh(b0=4)"));
}

TEST_CASE("transfers to and from boxes", "[transfer]") {
  const World world = World::abstract(4);
  const TensorMeta meta = meta_of({6, 4});
  const Layout boxes(world, {{0, {0, 0}, {2, 4}}, {3, {2, 0}, {4, 2}}, {3, {2, 2}, {4, 2}}});
  const Layout rows(mesh_on(world, {0, 1}), {Shard(0)});
  const RedistributePlan in = plan_transfer(meta, boxes, rows);
  INFO(in.explain());
  EXPECT_PLAN(in, "transfer");
  CHECK(in.bytes == 3 * 4 * 4);  // rank 1 has nothing
  CHECK(in.steps[0].before.empty());
  CHECK(in.steps[0].after == layout("S(0)"));
  const RedistributePlan out = plan_transfer(meta, rows, boxes);
  CHECK(out.bytes == 16 * 4);  // rank 3
  CHECK(out.steps[0].before == layout("S(0)"));
  CHECK(out.steps[0].after.empty());
  // The target may overlap, repeat, and leave parts out.
  const Layout some(world, {{1, {1, 1}, {2, 2}}, {2, {0, 0}, {6, 4}}, {1, {0, 0}, {0, 4}}});
  CHECK(plan_transfer(meta, rows, some).bytes == 24 * 4);
  CHECK(plan_transfer(meta, boxes, some).bytes == 24 * 4);
  CHECK(plan_transfer(meta, boxes, boxes).steps.empty());
  // Partials are reduced on the mesh of the source.
  EXPECT_PLAN(plan_transfer(meta, Layout(rows.mesh(), {Partial()}), Layout(world, {{0, {0, 0}, {6, 4}}})),
              "ar(a0), transfer");
  EXPECT_PLAN(plan_transfer(meta, Layout(rows.mesh(), {Partial()}), Layout(world, {{2, {0, 0}, {6, 4}}})),
              "rs(a0), transfer");

  const auto json = nlohmann::json::parse(in.to_json());
  CHECK(json["from"]["boxes"].size() == 3);
  CHECK(json["from"]["boxes"][1]["rank"] == 3);
  CHECK(json["from"]["boxes"][1]["offsets"] == std::vector<int64_t>{2, 0});
  CHECK(json["from"]["boxes"][1]["sizes"] == std::vector<int64_t>{4, 2});
  CHECK(json["to"]["placements"] == "S(0)");
  CHECK(json["steps"][0]["step"] == "transfer");
  CHECK(json["steps"][0]["bytes"] == 48);
  CHECK(json["steps"][0].count("before") == 0);
  CHECK_THAT(in.explain(), Contains("3 boxes on ranks 0, 3 -> S(0) @ mesh(a0=2)"));
}

TEST_CASE("transfers: invalid arguments", "[transfer]") {
  const World world = World::abstract(4), other = World::abstract(4);
  const TensorMeta meta = meta_of({6, 4});
  const Layout rows(mesh_on(world, {0, 1}), {Shard(0)});
  const auto error = [&](const Layout& from, const Layout& to) -> std::string {
    try {
      plan_transfer(meta, from, to);
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "planned";
  };
  const auto boxes = [&](std::vector<RankBox> list) { return Layout(world, std::move(list)); };
  CHECK_THAT(error(rows, Layout(mesh_on(other, {0, 1}), {Shard(0)})), Contains("world"));
  CHECK_THAT(error(boxes({{0, {0, 0}, {6, 4}}}), Layout(other, {{0, {0, 0}, {6, 4}}})), Contains("world"));
  CHECK_THAT(error(rows, boxes({{0, {0, 1}, {6, 4}}})), Contains("`to`") && Contains("box 0") && Contains("dim 1"));
  CHECK_THAT(error(rows, boxes({{0, {-1, 0}, {2, 4}}})), Contains("box 0") && Contains("dim 0"));
  CHECK_THAT(error(rows, boxes({{0, {0, 0}, {-1, 4}}})), Contains("box 0") && Contains("dim 0"));
  CHECK_THAT(error(rows, boxes({{0, {7, 0}, {0, 4}}})), Contains("box 0") && Contains("dim 0"));
  CHECK_THAT(error(rows, boxes({{0, {0, 0}, {std::numeric_limits<int64_t>::max(), 4}}})), Contains("dim 0"));
  CHECK_THAT(error(rows, boxes({{0, {0}, {6}}})), Contains("box 0") && Contains("2 offsets"));
  CHECK_THAT(error(rows, boxes({{0, {0, 0}, {6, 4}}, {4, {0, 0}, {6, 4}}})), Contains("box 1") && Contains("rank 4"));
  CHECK_THAT(error(boxes({{0, {0, 0}, {4, 4}}, {1, {3, 2}, {3, 2}}}), rows),
             Contains("`from`") && Contains("box 1") && Contains("overlaps box 0"));
  CHECK_THAT(error(boxes({{0, {0, 0}, {2, 4}}, {1, {3, 0}, {3, 4}}}), rows),
             Contains("rank 0") && Contains("12") && Contains("8"));
  CHECK_THAT(error(boxes({}), rows), Contains("rank 0"));
  CHECK_THAT(error(rows, Layout(mesh_on(world, {0, 1}), {Shard(0), Shard(0)})), Contains("one per mesh dim"));
  CHECK_THAT(error(Layout(), rows), Contains("neither"));
  // Every rank's own submesh at once is not one mesh.
  CHECK_THAT(error(Layout(mesh_on(world, {0, 1, 2, 3}, {2, 2})["a1"], {Shard(0)}), rows), Contains("slice"));
  // Elements that `to` does not need may be missing.
  CHECK(error(boxes({{0, {0, 0}, {2, 4}}}), boxes({{3, {1, 1}, {1, 2}}})) == "planned");
  // Empty boxes never overlap.
  CHECK(error(boxes({{0, {0, 0}, {6, 4}}, {1, {3, 2}, {0, 2}}}), rows) == "planned");
}

TEST_CASE("a transfer within limits", "[transfer]") {
  const World world = World::abstract(8);
  const TensorMeta meta = meta_of({64, 64});
  const Layout from(mesh_on(world, {0, 1, 2, 3}), {Shard(0)}), to(mesh_on(world, {2, 3, 4, 5}), {Shard(1)});
  const auto plan = [&](int64_t limit) { return plan_transfer(meta, from, to, {nullptr, {limit}}); };
  const RedistributePlan free = plan_transfer(meta, from, to);
  REQUIRE(free.steps.size() == 1);
  CHECK(plan(free.peak_bytes).to_string() == free.to_string());
  const RedistributePlan rounds = plan(free.peak_bytes - 1);
  INFO(rounds.explain());
  CHECK(rounds.steps[0].chunks > 1);
  CHECK(rounds.peak_bytes < free.peak_bytes);
  CHECK(rounds.seconds > free.seconds);
  CHECK(rounds.bytes == free.bytes);
  CHECK_THROWS_WITH(plan(100), Contains("max_bytes is 100") && Contains("every route needs at least"));
}

// Some of the ranks of `world`, in any order, as a mesh of one or two dims; or boxes.
Layout random_layout(const World& world, const TensorMeta& meta, bool is_source, const char* name) {
  const int64_t ndim = static_cast<int64_t>(meta.sizes.size());
  if (testing::draw(0, 3) == 0) {
    // The tensor cut in two, then one of the pieces, and so on; a target may lack some pieces.
    std::vector<RankBox> pieces(1);
    pieces[0].offsets.assign(ndim, 0);
    pieces[0].sizes = meta.sizes;
    for (int64_t cuts = ndim == 0 ? 0 : testing::draw(0, 20); cuts > 0; --cuts) {
      RankBox& piece = pieces[testing::draw(0, static_cast<int64_t>(pieces.size()) - 1)];
      const int64_t d = testing::draw(0, ndim - 1);
      RankBox rest = piece;
      piece.sizes[d] = testing::draw(0, rest.sizes[d]);
      rest.offsets[d] += piece.sizes[d];
      rest.sizes[d] -= piece.sizes[d];
      pieces.push_back(std::move(rest));
    }
    std::vector<RankBox> boxes;
    for (RankBox& piece : pieces) {
      piece.rank = testing::draw(0, world.size() - 1);
      if (is_source || testing::draw(0, 3) > 0) boxes.push_back(piece);
    }
    const Layout layout(world, boxes);
    RC_LOG() << name << " " << layout.to_string() << std::endl;
    return layout;
  }
  std::vector<int64_t> ranks;
  std::set<int64_t> used;
  const int64_t rows = testing::draw(1, 3), columns = testing::draw(1, 2);
  while (static_cast<int64_t>(ranks.size()) < rows * columns) {
    int64_t rank = testing::draw(0, world.size() - 1);
    while (!used.insert(rank).second) rank = (rank + 1) % world.size();
    ranks.push_back(rank);
  }
  Placements placements = {draw_placement(ndim), draw_placement(ndim)};
  if (!normalize_placements(placements, ndim).ok()) placements[1] = Replicate();  // reductions that cannot be mixed
  const Layout layout(mesh_on(world, ranks, {rows, columns}), placements);
  RC_LOG() << name << " " << layout.to_string() << " of ranks " << absl::StrJoin(ranks, ",") << std::endl;
  return layout;
}

TEST_CASE("random transfers move just the elements that ranks lack", "[transfer]") {
  const auto property = [] {
    const World world = World::local(8);
    Shape sizes;
    for (int64_t d = testing::draw(0, 2); d > 0; --d) sizes.push_back(testing::draw(0, 9));
    const TensorMeta meta = meta_of(sizes);
    RC_LOG() << "[" << absl::StrJoin(sizes, ", ") << "]" << std::endl;
    const Layout from = random_layout(world, meta, true, "from"), to = random_layout(world, meta, false, "to");
    const RedistributePlan plan = plan_transfer(meta, from, to);
    RC_LOG() << plan.to_string() << std::endl;
    RC_ASSERT(plan.from == from);
    RC_ASSERT(plan.to == to);
    if (!from.is_boxes() && !to.is_boxes() && from.mesh() == to.mesh()) return;
    int64_t bytes = 0, transfers = 0;
    Placements at = from.placements();
    for (const RedistributeStep& step : plan.steps) {
      const bool last_mesh = transfers > 0;
      if (step.kind != Kind::kTransfer) {
        RC_ASSERT(step.before.size() == step.after.size());
        RC_ASSERT(!(last_mesh ? to : from).is_boxes());
        bytes += step.bytes;
        at = step.after;
        continue;
      }
      ++transfers;
      RC_ASSERT(step.dims.empty());
      const Layout before = from.is_boxes() ? from : Layout(from.mesh(), step.before);
      const Layout after = to.is_boxes() ? to : Layout(to.mesh(), step.after);
      for (const Placements& placements : {step.before, step.after}) {
        RC_ASSERT(
            std::none_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); }));
      }
      RC_ASSERT(step.bytes == lacking_bytes(meta, before, after));
      bytes += step.bytes;
      at = step.after;

      // Every element of every part comes once, from a rank that has it.
      std::map<std::pair<int64_t, int64_t>, TimesHeld> filled;  // rank, output -> per local element
      std::map<int64_t, int64_t> received;
      for (const Message& m : transfer_messages(meta, before, after)) {
        const auto source = before.parts(meta.sizes, m.sender), target = after.parts(meta.sizes, m.receiver);
        RC_ASSERT(m.input < static_cast<int64_t>(source.size()));
        RC_ASSERT(m.output < static_cast<int64_t>(target.size()));
        int64_t numel = 1;
        for (int64_t size : m.block.sizes) numel *= size;
        if (m.sender != m.receiver) received[m.receiver] += numel;
        // The block has the same global indices at its source and at its target.
        const auto global = [&](const LocalLayout& part, size_t d, int64_t local) {
          for (const IndexRange& run : part.dims[d]) {
            if (local < run.size) return run.begin + local;
            local -= run.size;
          }
          return int64_t{-1};
        };
        const Shape target_sizes = target[m.output].sizes();
        TimesHeld& cells = filled[{m.receiver, m.output}];
        int64_t target_numel = 1;
        for (int64_t size : target_sizes) target_numel *= size;
        cells.resize(target_numel);
        for (int64_t i = 0; i < numel; ++i) {
          int64_t rest = i, index = 0, stride = 1;
          for (size_t d = meta.sizes.size(); d-- > 0;) {
            const int64_t along = rest % m.block.sizes[d];
            rest /= m.block.sizes[d];
            RC_ASSERT(global(source[m.input], d, m.block.from[d] + along) ==
                      global(target[m.output], d, m.block.to[d] + along));
            index += (m.block.to[d] + along) * stride;
            stride *= target_sizes[d];
          }
          ++cells[index];
        }
      }
      for (int64_t rank : after.ranks()) {
        const auto parts = after.parts(meta.sizes, rank);
        for (size_t o = 0; o < parts.size(); ++o) {
          int64_t numel = 1;
          for (int64_t size : parts[o].sizes()) numel *= size;
          RC_ASSERT((filled[{rank, static_cast<int64_t>(o)}] == TimesHeld(numel, 1)));
        }
        RC_ASSERT(received[rank] * 4 <= step.bytes);
      }
    }
    RC_ASSERT(transfers <= 1);
    RC_ASSERT(plan.bytes == bytes);
    if (transfers == 0) {  // other placements for the parts that the steps on the first mesh leave
      RC_ASSERT(same_parts(meta, from.is_boxes() ? from : Layout(from.mesh(), at), to));
      return;
    }
    for (size_t m = 0; m < to.placements().size(); ++m) {
      if (to.mesh().size(static_cast<int64_t>(m)) > 1) RC_ASSERT(at[m] == to.placements()[m]);
    }
  };
  REQUIRE(testing::holds("transfer", 1000, property));
}

// Comparing every box with every other would take hundreds of times as long.
TEST_CASE("planning time for many boxes grows little faster than their number", "[transfer]") {
  const auto seconds = [](int64_t n) {
    const World world = World::abstract(n);
    const TensorMeta meta = meta_of({n, 64});
    std::vector<RankBox> rows, others, tiles;
    for (int64_t i = 0; i < n; ++i) rows.push_back({i, {i, 0}, {1, 64}});
    for (int64_t i = 0; i < n; ++i) others.push_back({i, {n - 1 - i, 0}, {1, 64}});
    for (int64_t i = 0; i < n; ++i) tiles.push_back({i, {i / 16 * 16, i % 16 * 4}, {16, 4}});
    double best = 1e9;
    for (int repetition = 0; repetition < 3; ++repetition) {
      const double begin = testing::thread_cpu_seconds();
      for (const auto& target : {others, tiles}) {
        CHECK(plan_transfer(meta, Layout(world, rows), Layout(world, target)).short_form() == "transfer");
      }
      best = std::min(best, testing::thread_cpu_seconds() - begin);
    }
    return best;
  };
  CHECK(seconds(4096) < 128 * seconds(256));  // 16 times as many; 256 times as many pairs
}

TEST_CASE("ranks that hold the same part share the sending", "[transfer]") {
  const World world = World::local(8);
  const TensorMeta meta = meta_of({8, 8});
  std::set<int64_t> senders;
  for (const Message& m : transfer_messages(meta, Layout(mesh_on(world, {0, 1, 2, 3}), {Replicate()}),
                                            Layout(mesh_on(world, {4, 5, 6, 7}), {Shard(0)}))) {
    senders.insert(m.sender);
  }
  CHECK(senders == std::set<int64_t>{0, 1, 2, 3});
}

TEST_CASE("a transfer's plan does not depend on which process owns the ranks", "[transfer]") {
  const auto text = [](const World& world) {
    const Layout from(mesh_on(world, {0, 1, 2, 3}), {Partial()}),
        to(mesh_on(world, {3, 2, 5, 4}, {2, 2}), {Shard(1), Replicate()});
    return plan_transfer(meta_of({7, 10}), from, to, {std::make_shared<const CostModel>(), {}}).explain();
  };
  CHECK(text(World::abstract(6)) == text(World::local(6)));
  CHECK(text(World::abstract(6)) == text(World::fake(6, 5)));
}

}  // namespace
}  // namespace dtensor
