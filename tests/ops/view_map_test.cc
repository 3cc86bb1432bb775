#include "ops/views/view_map.h"

#include <ostream>
#include <random>

#include "placement/parse_placements.h"
#include "tests/testing/catch2.h"

namespace dtensor {

namespace internal {

// For Catch2's messages.
static std::ostream& operator<<(std::ostream& out, const DimGroup& g) {
  return out << '[' << g.in_begin << ", " << g.in_end << ") -> [" << g.out_begin << ", " << g.out_end << ')';
}

}  // namespace internal

using namespace internal;

namespace {

using Flat = std::vector<int64_t>;

// The placements of the view, of all mesh dims; nullopt where some rank would not keep its elements.
std::optional<Placements> follow_view(absl::Span<const int64_t> in, absl::Span<const int64_t> out,
                                      absl::Span<const int64_t> mesh_shape, const Placements& placements) {
  ViewMap map(in, out);
  Placements result;
  for (size_t m = 0; m < placements.size(); ++m) {
    std::optional<Placement> followed = map.follow(placements[m], mesh_shape[m]);
    if (!followed) return std::nullopt;
    result.push_back(*std::move(followed));
  }
  return result;
}

// Flat indices of the elements that a rank holds, in its order: element by element, without runs.
Flat elements(const Shape& shape, const Shape& mesh, const Placements& placements, const Shape& coordinate) {
  const LocalLayout layout = local_layout(shape, mesh, placements, coordinate);
  Flat flat = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    Flat longer;
    for (int64_t prefix : flat) {
      for (const IndexRange& run : layout.dims[d]) {
        for (int64_t i = 0; i < run.size; ++i) longer.push_back(prefix * shape[d] + run.begin + i);
      }
    }
    flat = longer;
  }
  return flat;
}

std::vector<Shape> coordinates(const Shape& mesh) {
  std::vector<Shape> all = {{}};
  for (int64_t n : mesh) {
    std::vector<Shape> longer;
    for (const Shape& prefix : all) {
      for (int64_t i = 0; i < n; ++i) {
        longer.push_back(prefix);
        longer.back().push_back(i);
      }
    }
    all = longer;
  }
  return all;
}

bool same_parts(const Shape& in, const Shape& out, const Shape& mesh, const Placements& from, const Placements& to) {
  for (const Shape& c : coordinates(mesh)) {
    if (elements(in, mesh, from, c) != elements(out, mesh, to, c)) return false;
  }
  return true;
}

std::vector<Placement> shards(const Shape& shape, int64_t max_split_factor) {
  std::vector<Placement> all = {Replicate()};
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    all.push_back(Shard(d));
    for (int64_t sf = 2; sf <= max_split_factor; ++sf) all.push_back(StridedShard(d, sf));
  }
  return all;
}

TEST_CASE("dims are grouped by equal products") {
  struct Row {
    Shape in, out;
    std::vector<DimGroup> groups;
  };
  const Row rows[] = {
      {{4, 6, 5}, {24, 5}, {{0, 2, 0, 1}, {2, 3, 1, 2}}},
      {{24, 5}, {4, 6, 5}, {{0, 1, 0, 2}, {1, 2, 2, 3}}},
      {{4, 6}, {6, 4}, {{0, 2, 0, 2}}},
      {{2, 3, 4, 5}, {6, 20}, {{0, 2, 0, 1}, {2, 4, 1, 2}}},
      {{3}, {1, 3}, {{0, 1, 0, 2}}},
      {{1, 3}, {3}, {{0, 2, 0, 1}}},
      {{3, 1}, {3}, {{0, 1, 0, 1}, {1, 2, 1, 1}}},
      {{3}, {3, 1, 1}, {{0, 1, 0, 1}, {1, 1, 1, 3}}},
      {{2, 1, 3}, {2, 3}, {{0, 1, 0, 1}, {1, 3, 1, 2}}},
      {{1, 1}, {}, {{0, 2, 0, 0}}},
      {{}, {}, {}},
      {{7, 2}, {7, 2}, {{0, 1, 0, 1}, {1, 2, 1, 2}}},
  };
  for (const Row& row : rows) CHECK(group_dims(row.in, row.out) == row.groups);
}

TEST_CASE("placements are followed through views") {
  struct Row {
    Shape in, out, mesh;
    const char* from;
    const char* to;  // null: not possible
  };
  const Row rows[] = {
      // Heads: split where they divide.
      {{2, 5, 8}, {2, 5, 4, 2}, {4}, "S(2)", "S(2)"},
      {{2, 5, 4, 2}, {2, 5, 8}, {4}, "S(2)", "S(2)"},
      {{2, 5, 6}, {2, 5, 3, 2}, {2}, "S(2)", nullptr},
      {{2, 5, 8}, {2, 5, 2, 4}, {4}, "S(2)", nullptr},
      {{6}, {6, 1}, {4}, "S(0)", "S(0)"},
      {{14}, {7, 2}, {4}, "S(0)", "S(0)"},   // 4 4 4 2 elements: 2 2 2 1 rows
      {{10}, {5, 2}, {4}, "S(0)", nullptr},  // 3 elements are not whole rows
      // Batches: flattened.
      {{4, 3, 5}, {12, 5}, {4}, "S(0)", "S(0)"},
      {{4, 3, 5}, {12, 5}, {2}, "S(1)", "_S(0, 4)"},
      {{4, 3, 5}, {12, 5}, {2}, "S(2)", "S(1)"},
      {{5, 4}, {20}, {2}, "S(0)", nullptr},  // 12 and 8, but half of 20 is 10
      {{5, 4}, {20}, {4}, "S(0)", nullptr},
      {{7, 2}, {14}, {4}, "S(0)", "S(0)"},
      {{3, 2}, {6}, {4}, "S(0)", "S(0)"},  // an empty last part
      {{12, 5}, {4, 3, 5}, {2}, "_S(0, 4)", "S(1)"},
      {{12, 5}, {2, 6, 5}, {2}, "_S(0, 4)", "_S(1, 2)"},
      {{12}, {2, 2, 3}, {3}, "_S(0, 4)", "S(2)"},
      {{2, 2, 3}, {4, 3}, {3}, "S(2)", "S(1)"},
      // Dims of size 1 are inserted and removed.
      {{1, 6}, {6}, {3}, "S(1)", "S(0)"},
      {{1, 6}, {6}, {3}, "S(0)", nullptr},
      {{6}, {1, 6, 1}, {3}, "S(0)", "S(1)"},
      {{1, 6}, {1, 2, 3}, {3}, "S(0)", "S(0)"},
      {{6, 1}, {6}, {1}, "S(1)", "R"},
      // Several mesh dims.
      {{4, 6}, {24}, {2, 2}, "S(0)S(0)", "S(0)S(0)"},
      {{4, 6}, {24}, {2, 2}, "S(0)S(1)", "S(0)_S(0, 2)"},
      {{4, 6}, {24}, {2, 2}, "S(1)S(0)", "_S(0, 4)S(0)"},
      {{24}, {4, 6}, {2, 2}, "S(0)_S(0, 2)", "S(0)S(1)"},
      {{24}, {2, 2, 6}, {2, 2}, "S(0)S(0)", "S(0)S(1)"},
      {{8}, {2, 4}, {4}, "S(0)", nullptr},
      {{4, 3, 6}, {12, 3, 2}, {2, 3}, "S(0)S(2)", "S(0)S(1)"},
      {{5, 4}, {20}, {2, 2}, "S(0)S(1)", nullptr},
      // Sums stay.
      {{4, 6}, {24}, {2, 2}, "P(sum)S(0)", "P(sum)S(0)"},
      {{4, 6}, {24}, {2}, "P(max)", "P(max)"},
      {{4, 6}, {24}, {2}, "MaskP(sum, [10, 6], 0)", "P(sum)"},
      // Without elements every layout is possible.
      {{0, 6}, {3, 0}, {2}, "S(1)", "R"},
      {{4, 6}, {6, 4}, {2}, "S(0)", "S(0)"},
      {{4, 6}, {6, 4}, {4}, "S(0)", nullptr},
  };
  for (const Row& row : rows) {
    const Placements from = parse_placements(row.from).value();
    const auto to = follow_view(row.in, row.out, row.mesh, from);
    INFO(row.from << " of " << row.in.size() << " dims, first " << row.in[0] << ", expecting "
                  << (row.to ? row.to : "nothing"));
    REQUIRE(to.has_value() == (row.to != nullptr));
    if (to) CHECK(to_string(*to) == row.to);
  }
}

TEST_CASE("followed placements are right on every rank, and others are impossible") {
  const std::vector<std::pair<Shape, Shape>> views = {
      {{4, 6}, {24}},   {{24}, {4, 6}},      {{4, 6}, {6, 4}},       {{5, 4}, {20}},         {{20}, {5, 4}},
      {{1, 6}, {6}},    {{6}, {1, 6}},       {{2, 3, 4}, {6, 4}},    {{2, 3, 4}, {2, 12}},   {{12, 2}, {3, 4, 2}},
      {{7, 2}, {14}},   {{14}, {7, 2}},      {{3, 4, 2}, {2, 12}},   {{9}, {3, 3}},          {{3, 3}, {9}},
      {{0, 3}, {3, 0}}, {{2, 2, 2}, {4, 2}}, {{2, 1, 3}, {2, 3, 1}}, {{2, 2, 3, 2}, {4, 6}}, {{10, 3}, {2, 15}},
  };
  int followed = 0, refused = 0;
  for (const auto& [in, out] : views) {
    for (int64_t n : {1, 2, 3, 4}) {
      const Shape mesh = {n};
      for (const Placement& p : shards(in, 6)) {
        const auto to = follow_view(in, out, mesh, {p});
        if (to) {
          ++followed;
          CHECK(same_parts(in, out, mesh, {p}, *to));
          continue;
        }
        // Strided shards so fine that the first rank has (nearly) everything have many equal forms: not searched for.
        if (!p.is_shard() || elements(in, mesh, {p}, {0}).size() == elements(in, mesh, {Replicate()}, {0}).size())
          continue;
        ++refused;
        for (const Placement& q : shards(out, 24)) {
          INFO(p << " -> " << q << " over " << n);
          CHECK_FALSE(same_parts(in, out, mesh, {p}, {q}));
        }
      }
    }
    for (const Shape& mesh : {Shape{2, 2}, Shape{2, 3}, Shape{3, 2}, Shape{2, 2, 2}}) {
      std::mt19937 random(11);
      const auto choices = shards(in, 4);
      for (int k = 0; k < 60; ++k) {
        Placements from;
        for (size_t m = 0; m < mesh.size(); ++m) from.push_back(choices[random() % choices.size()]);
        const auto to = follow_view(in, out, mesh, from);
        if (!to) continue;
        ++followed;
        INFO(from << " -> " << *to);
        CHECK(same_parts(in, out, mesh, from, *to));
      }
    }
  }
  CHECK(followed > 1000);
  CHECK(refused > 20);
}

// Would take hours if ranks were visited one by one with all their elements.
TEST_CASE("placements on thousands of ranks are followed quickly") {
  CHECK(follow_view({4096, 4096, 8192}, {4096 * 4096LL, 64, 128}, {64, 64}, {Shard(0), Shard(2)}) ==
        Placements{Shard(0), Shard(1)});
  CHECK(follow_view({4096, 8192}, {4096 * 8192LL}, {64, 64}, {Shard(0), Shard(0)}) == Placements{Shard(0), Shard(0)});
  CHECK(follow_view({64, 64, 8192}, {4096, 8192}, {64, 64}, {Shard(0), Shard(1)}) == Placements{Shard(0), Shard(0)});
}

}  // namespace
}  // namespace dtensor
