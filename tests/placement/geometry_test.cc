#include "placement/geometry.h"

#include <algorithm>
#include <map>
#include <ostream>

#include "tests/testing/catch2.h"

namespace dtensor {
using namespace internal;

// For Catch2.
static std::ostream& operator<<(std::ostream& os, const IndexRange& run) {
  return os << "[" << run.begin << ", " << run.begin + run.size << ")";
}

namespace {

// The oracle works on lists of indices, element by element, without runs or formulas.
using Indices = std::vector<int64_t>;

// torch.chunk: the shortest piece length such that n pieces cover the list, filled one after the other.
std::vector<Indices> cut(const Indices& indices, int64_t n) {
  size_t length = 0;
  while (length * n < indices.size()) ++length;
  std::vector<Indices> pieces(1);
  for (int64_t index : indices) {
    if (pieces.back().size() == length) pieces.emplace_back();
    pieces.back().push_back(index);
  }
  pieces.resize(n);
  return pieces;
}

Indices expected_indices(int64_t size, int64_t dim, const Shape& mesh, const Placements& placements,
                         const Shape& coordinate) {
  Indices held;
  for (int64_t index = 0; index < size; ++index) held.push_back(index);
  for (size_t m = 0; m < mesh.size(); ++m) {
    if (!placements[m].is_sharded_on(dim)) continue;
    Indices rest;
    for (const Indices& piece : cut(held, placements[m].is_shard() ? 1 : placements[m].split_factor())) {
      const Indices part = cut(piece, mesh[m])[coordinate[m]];
      rest.insert(rest.end(), part.begin(), part.end());
    }
    held = rest;
  }
  return held;
}

Indices indices_of(const IndexRanges& runs) {
  Indices indices;
  for (const IndexRange& run : runs) {
    for (int64_t i = 0; i < run.size; ++i) indices.push_back(run.begin + i);
  }
  return indices;
}

// All index tuples of a box of `sizes`, row-major; one empty tuple for no dims.
std::vector<Shape> tuples(const Shape& sizes) {
  std::vector<Shape> all(1);
  for (int64_t size : sizes) {
    std::vector<Shape> longer;
    for (const Shape& prefix : all) {
      for (int64_t i = 0; i < size; ++i) {
        longer.push_back(prefix);
        longer.back().push_back(i);
      }
    }
    all = longer;
  }
  return all;
}

std::vector<Placements> all_placements(const std::vector<Placement>& choices, size_t mesh_ndim) {
  std::vector<Placements> all;
  for (const Shape& pick : tuples(Shape(mesh_ndim, choices.size()))) {
    all.emplace_back();
    for (int64_t i : pick) all.back().push_back(choices[i]);
  }
  return all;
}

// Calls visit(shape, mesh, placements) for layouts on meshes of 1, 2 and 3 dims, with sizes 0 and 1, uneven and empty
// parts, and shards of one dim nested in every order.
template <typename Visit>
void for_each_layout(Visit visit) {
  const std::vector<Placement> few = {Replicate(), Shard(0), StridedShard(0, 2), Shard(1)};
  std::vector<Placement> many = few;
  many.insert(many.end(), {StridedShard(0, 3), StridedShard(1, 5), StridedShard(1, 1), Partial()});
  for (const Shape& mesh : {Shape{1}, Shape{4}, Shape{2, 2}, Shape{3, 2}, Shape{2, 3, 2}}) {
    for (const Placements& placements : all_placements(mesh.size() < 3 ? many : few, mesh.size())) {
      for (const Shape& shape : {Shape{0, 3}, Shape{1, 1}, Shape{2, 5}, Shape{7, 4}, Shape{13, 9}, Shape{24, 0}}) {
        visit(shape, mesh, placements);
      }
    }
  }
}

TEST_CASE("chunk is torch.chunk with DTensor's clamped offsets") {
  struct Row {
    int64_t size;
    int64_t n;
    Indices offsets;
    Indices sizes;
  };
  const Row rows[] = {
      {12, 4, {0, 3, 6, 9}, {3, 3, 3, 3}},
      {10, 4, {0, 3, 6, 9}, {3, 3, 3, 1}},
      {9, 4, {0, 3, 6, 9}, {3, 3, 3, 0}},
      {10, 5, {0, 2, 4, 6, 8}, {2, 2, 2, 2, 2}},
      {10, 2, {0, 5}, {5, 5}},
      {16, 8, {0, 2, 4, 6, 8, 10, 12, 14}, {2, 2, 2, 2, 2, 2, 2, 2}},
      {32, 4, {0, 8, 16, 24}, {8, 8, 8, 8}},
      {2, 4, {0, 1, 2, 2}, {1, 1, 0, 0}},
      {5, 4, {0, 2, 4, 5}, {2, 2, 1, 0}},
      {24, 4, {0, 6, 12, 18}, {6, 6, 6, 6}},
      {24, 10, {0, 3, 6, 9, 12, 15, 18, 21, 24, 24}, {3, 3, 3, 3, 3, 3, 3, 3, 0, 0}},
      {23, 4, {0, 6, 12, 18}, {6, 6, 6, 5}},
      {21, 4, {0, 6, 12, 18}, {6, 6, 6, 3}},
      {13, 4, {0, 4, 8, 12}, {4, 4, 4, 1}},
      {15, 4, {0, 4, 8, 12}, {4, 4, 4, 3}},
      {17, 4, {0, 5, 10, 15}, {5, 5, 5, 2}},
      {14, 4, {0, 4, 8, 12}, {4, 4, 4, 2}},
      {26, 4, {0, 7, 14, 21}, {7, 7, 7, 5}},
      {29, 4, {0, 8, 16, 24}, {8, 8, 8, 5}},
      {11, 4, {0, 3, 6, 9}, {3, 3, 3, 2}},
      {0, 3, {0, 0, 0}, {0, 0, 0}},
      {1, 3, {0, 1, 1}, {1, 0, 0}},
      {7, 1, {0}, {7}},
  };
  for (const Row& row : rows) {
    for (int64_t i = 0; i < row.n; ++i) {
      INFO(row.size << "/" << row.n << " piece " << i);
      CHECK(chunk(row.size, row.n, i).begin == row.offsets[i]);
      CHECK(chunk(row.size, row.n, i).size == row.sizes[i]);
    }
  }
}

TEST_CASE("local_layout: worked examples") {
  struct Row {
    const char* name;
    Shape shape, mesh;
    Placements placements;
    Shape coordinate;
    std::vector<Indices> held;
    Shape offsets;
  };
  const Row rows[] = {
      {"the header's", {10, 2}, {2, 2}, {Shard(0), Shard(0)}, {1, 0}, {{5, 6, 7}, {0, 1}}, {5, 0}},
      {"[2, 4] sharded on 1, flattened", {8}, {2}, {StridedShard(0, 2)}, {1}, {{2, 3, 6, 7}}, {2}},
      // FSDP over TP: the inner mesh dim cuts first, which in left-to-right order is a strided shard.
      {"right to left", {8}, {2, 2}, {StridedShard(0, 2), Shard(0)}, {0, 1}, {{4, 5}}, {4}},
      {"uneven pieces", {10}, {2}, {StridedShard(0, 3)}, {1}, {{2, 3, 6, 7, 9}}, {2}},
      {"uneven pieces, rank 0", {10}, {2}, {StridedShard(0, 3)}, {0}, {{0, 1, 4, 5, 8}}, {0}},
      {"more pieces than elements", {2}, {2}, {StridedShard(0, 1000000000)}, {0}, {{0, 1}}, {0}},
      {"a shard of a strided shard", {8}, {2, 2}, {StridedShard(0, 4), Shard(0)}, {0, 1}, {{4, 6}}, {4}},
      {"an empty part", {2, 3}, {4}, {Shard(0)}, {3}, {{}, {0, 1, 2}}, {2, 0}},
      {"a part emptied by the second cut", {2}, {2, 2}, {Shard(0), Shard(0)}, {0, 1}, {{}}, {2}},
      {"no dims", {}, {2}, {Replicate()}, {1}, {}, {}},
      {"no mesh", {3}, {}, {}, {}, {{0, 1, 2}}, {0}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    const LocalLayout layout = local_layout(row.shape, row.mesh, row.placements, row.coordinate);
    std::vector<Indices> held;
    for (const IndexRanges& runs : layout.dims) held.push_back(indices_of(runs));
    CHECK(held == row.held);
    CHECK(layout.offsets == row.offsets);
  }
  const LocalLayout scalar = local_layout({}, {2}, {Partial()}, {1});
  CHECK(scalar.is_box());
  CHECK_FALSE(scalar.empty());
  CHECK(scalar.sizes().empty());
}

TEST_CASE("shard_runs returns everything unless it shards") {
  const IndexRanges runs = {{2, 3}, {9, 1}};
  for (const Placement& p : {Replicate(), Partial(), MaskPartial({4}, 0)}) CHECK(shard_runs(runs, p, 2, 1) == runs);
  CHECK(shard_runs(runs, Shard(0), 2, 1) == IndexRanges{{4, 1}, {9, 1}});
  CHECK(shard_runs(runs, Shard(0), 1, 0) == runs);
  CHECK(shard_runs({}, StridedShard(0, 2), 2, 0).empty());
  CHECK(total_size(runs) == 4);
}

TEST_CASE("local_layout and local_shape agree with lists of indices") {
  int64_t layouts = 0;
  for_each_layout([&](const Shape& shape, const Shape& mesh, const Placements& placements) {
    for (const Shape& coordinate : tuples(mesh)) {
      const LocalLayout layout = local_layout(shape, mesh, placements, coordinate);
      bool ok = layout.dims.size() == shape.size();
      bool box = true;
      bool empty = false;
      Shape sizes;
      for (size_t d = 0; d < shape.size(); ++d) {
        const IndexRanges& runs = layout.dims[d];
        const Indices held = expected_indices(shape[d], d, mesh, placements, coordinate);
        sizes.push_back(held.size());
        bool jumps = false;
        for (size_t i = 1; i < held.size(); ++i) jumps |= held[i] != held[i - 1] + 1;
        box &= !jumps;
        empty |= held.empty();
        for (size_t i = 0; i < runs.size(); ++i) {
          ok &= runs[i].size > 0 && (i == 0 || runs[i - 1].begin + runs[i - 1].size < runs[i].begin);
        }
        ok &= indices_of(runs) == held && layout.offsets[d] == (held.empty() ? shape[d] : held[0]);
      }
      ok &= layout.sizes() == sizes && local_shape(shape, mesh, placements, coordinate) == sizes;
      ok &= layout.is_box() == box && layout.empty() == empty;
      ++layouts;
      if (ok) continue;
      FAIL_CHECK(placements << " of " << Catch::Detail::stringify(shape) << " on mesh "
                            << Catch::Detail::stringify(mesh) << " at " << Catch::Detail::stringify(coordinate));
    }
  });
  CHECK(layouts == 6 * (8 * 1 + 8 * 4 + 64 * 4 + 64 * 6 + 64 * 12));
}

TEST_CASE("ranks that differ on a sharded mesh dim partition the tensor") {
  for_each_layout([&](const Shape& shape, const Shape& mesh, const Placements& placements) {
    std::map<Shape, int> holders;
    for (const Shape& coordinate : tuples(mesh)) {
      bool first = true;
      for (size_t m = 0; m < mesh.size(); ++m) first &= placements[m].is_sharded() || coordinate[m] == 0;
      if (!first) continue;
      const LocalLayout layout = local_layout(shape, mesh, placements, coordinate);
      for (const Shape& local : tuples(layout.sizes())) {
        ++holders[{indices_of(layout.dims[0])[local[0]], indices_of(layout.dims[1])[local[1]]}];
      }
    }
    bool once = static_cast<int64_t>(holders.size()) == shape[0] * shape[1];
    for (const auto& [index, count] : holders) once &= count == 1;
    if (!once) FAIL_CHECK(placements << " of " << Catch::Detail::stringify(shape));
  });
  SUCCEED();
}

}  // namespace
}  // namespace dtensor
