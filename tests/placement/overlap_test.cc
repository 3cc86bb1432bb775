#include <map>
#include <set>

#include "placement/geometry.h"
#include "tests/testing/catch2.h"

namespace dtensor {
using namespace internal;

namespace {

// Every element of a part: global index -> local offset, by explicit loops over the runs of two dims.
std::map<Shape, Shape> elements(const LocalLayout& layout) {
  std::map<Shape, Shape> local_of;
  int64_t row = 0;
  for (const IndexRange& rows : layout.dims[0]) {
    for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i, ++row) {
      int64_t column = 0;
      for (const IndexRange& columns : layout.dims[1]) {
        for (int64_t j = columns.begin; j < columns.begin + columns.size; ++j, ++column) {
          local_of[{i, j}] = {row, column};
        }
      }
    }
  }
  return local_of;
}

bool same(const Block& a, const Block& b) { return a.from == b.from && a.to == b.to && a.sizes == b.sizes; }

// Whether b continues a in one dim, in both parts, and agrees with it in the others.
bool mergeable(const Block& a, const Block& b) {
  int continued = 0;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.from[d] == b.from[d] && a.to[d] == b.to[d] && a.sizes[d] == b.sizes[d]) continue;
    if (a.from[d] + a.sizes[d] != b.from[d] || a.to[d] + a.sizes[d] != b.to[d]) return false;
    ++continued;
  }
  return continued == 1;
}

// The fault of overlap(source, target), or "". Adds the target's elements that it covers to `covered`.
std::string wrong(const LocalLayout& source, const LocalLayout& target, std::multiset<Shape>& covered) {
  std::set<std::pair<Shape, Shape>> expected;
  const auto target_elements = elements(target);
  for (const auto& [index, from] : elements(source)) {
    const auto found = target_elements.find(index);
    if (found != target_elements.end()) expected.insert({from, found->second});
  }
  if (overlap_numel(source, target) != static_cast<int64_t>(expected.size())) return "numel";

  const std::vector<Block> blocks = overlap(source, target);
  std::set<std::pair<Shape, Shape>> copied;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Block& block = blocks[b];
    if (b > 0 && !(blocks[b - 1].to < block.to)) return "order";
    for (const Block& other : blocks) {
      if (mergeable(block, other)) return "not maximal";
    }
    for (int64_t i = 0; i < block.sizes[0]; ++i) {
      for (int64_t j = 0; j < block.sizes[1]; ++j) {
        const Shape to = {block.to[0] + i, block.to[1] + j};
        if (!copied.insert({{block.from[0] + i, block.from[1] + j}, to}).second) return "copied twice";
        covered.insert(to);
      }
    }
  }
  return copied == expected ? "" : "elements";
}

TEST_CASE("overlap: worked examples") {
  struct Row {
    const char* name;
    LocalLayout source, target;
    std::vector<Block> blocks;
  };
  const auto part = [](int64_t size, int64_t n, Placement p, int64_t i) { return local_layout({size}, {n}, {p}, {i}); };
  const auto part2 = [](Placement p, int64_t i) { return local_layout({4, 6}, {2}, {p}, {i}); };
  const Row rows[] = {
      {"a box in the whole", part(10, 1, Replicate(), 0), part(10, 4, Shard(0), 1), {{{3}, {0}, {3}}}},
      {"two boxes", part(10, 4, Shard(0), 1), part(10, 2, Shard(0), 1), {{{2}, {0}, {1}}}},
      {"apart", part(10, 2, Shard(0), 0), part(10, 2, Shard(0), 1), {}},
      {"an empty part", part(2, 4, Shard(0), 3), part(2, 1, Shard(0), 0), {}},
      {"strided from whole",
       part(8, 1, Shard(0), 0),
       part(8, 2, StridedShard(0, 2), 1),
       {{{2}, {0}, {2}}, {{6}, {2}, {2}}}},
      {"equal strided parts are one block",
       part(8, 2, StridedShard(0, 2), 1),
       part(8, 2, StridedShard(0, 2), 1),
       {{{0}, {0}, {4}}}},
      {"rows against columns", part2(Shard(0), 1), part2(Shard(1), 1), {{{0, 3}, {2, 0}, {2, 3}}}},
      {"row-major in the target",
       local_layout({4, 4}, {1}, {Replicate()}, {0}),
       local_layout({4, 4}, {2, 2}, {StridedShard(0, 2), StridedShard(1, 2)}, {1, 0}),
       {{{1, 0}, {0, 0}, {1, 1}}, {{1, 2}, {0, 1}, {1, 1}}, {{3, 0}, {1, 0}, {1, 1}}, {{3, 2}, {1, 1}, {1, 1}}}},
      {"no dims: the one element", LocalLayout{}, LocalLayout{}, {{{}, {}, {}}}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    const std::vector<Block> blocks = overlap(row.source, row.target);
    REQUIRE(blocks.size() == row.blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b) CHECK(same(blocks[b], row.blocks[b]));
  }
  CHECK(overlap_numel(LocalLayout{}, LocalLayout{}) == 1);
}

TEST_CASE("overlap agrees with matching element by element, and all sources cover a target once") {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 3}, {1, 1}, {7, 4}, {12, 5}};
  const std::vector<Placement> choices = {Replicate(),        Shard(0),           Shard(1),
                                          StridedShard(0, 2), StridedShard(0, 3), StridedShard(1, 2)};
  int64_t pairs = 0;
  for (const auto& [rows, columns] : shapes) {
    const Shape shape = {rows, columns};
    for (const Placement& source_0 : choices) {
      for (const Placement& target_0 : choices) {
        for (const Placement& target_1 : choices) {
          const Placements target_placements = {target_0, target_1};
          for (int64_t t = 0; t < 6; ++t) {
            const LocalLayout target = local_layout(shape, {3, 2}, target_placements, {t / 2, t % 2});
            std::multiset<Shape> covered;
            std::string error;
            for (int64_t s = 0; s < (source_0.is_sharded() ? 4 : 1); ++s, ++pairs) {
              error += wrong(local_layout(shape, {4}, {source_0}, {s}), target, covered);
            }
            const std::set<Shape> distinct(covered.begin(), covered.end());
            if (distinct.size() != covered.size() || distinct.size() != elements(target).size()) error += " coverage";
            if (error.empty()) continue;
            FAIL_CHECK(source_0 << " on 4 to " << target_placements << " on 3x2, rank " << t << ", shape " << rows
                                << "x" << columns << ": " << error);
          }
        }
      }
    }
  }
  CHECK(pairs == 4 * (1 + 5 * 4) * 36 * 6);
}

}  // namespace
}  // namespace dtensor
