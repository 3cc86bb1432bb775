// What slices of split dims move, in bytes and collectives: taking one moves nothing, and reading it what ranks lack.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "placement/geometry.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

using at::Tensor;
using Ints = std::vector<int64_t>;

constexpr int64_t kColumns = 4, kItem = 8;

struct RowLayout {
  Ints mesh;
  Placements placements;
  int64_t rows;
};

std::vector<RowLayout> row_layouts() {
  return {{{4}, {Shard(0)}, 12},
          {{3}, {Shard(0)}, 10},  // 4, 4, 2
          {{4}, {Shard(0)}, 9},   // 3, 3, 3, 0
          {{2, 2}, {Shard(0), Shard(0)}, 10},
          {{2, 2}, {Shard(1), Shard(0)}, 8},
          {{2, 2}, {StridedShard(0, 2), Shard(0)}, 12},
          {{3}, {StridedShard(0, 2)}, 14},  // blocks of 7
          {{1, 2}, {Shard(0), Shard(0)}, 8}};
}

std::vector<int64_t> rows_of(const IndexRanges& runs) {
  std::vector<int64_t> all;
  for (const IndexRange& run : runs) {
    for (int64_t i = 0; i < run.size; ++i) all.push_back(run.begin + i);
  }
  return all;
}

// The bytes that the rank which lacks most lacks, of the rows start, start + step, ... in the layout `to`.
int64_t bytes_lacked(const RowLayout& layout, const DeviceMesh& mesh, const Placements& to, int64_t start,
                     int64_t count, int64_t step) {
  int64_t most = 0;
  for (const int64_t rank : mesh.ranks()) {
    const auto part = [&](const Ints& sizes, const Placements& placements) {
      return local_layout(Shape(sizes.begin(), sizes.end()), mesh.shape(), placements, mesh.coordinate(rank));
    };
    const LocalLayout held = part({layout.rows, kColumns}, layout.placements), wanted = part({count, kColumns}, to);
    const auto own = rows_of(held.dims[0]);
    int64_t lacked = 0;
    for (const int64_t i : rows_of(wanted.dims[0]))
      lacked += std::find(own.begin(), own.end(), start + step * i) == own.end();
    most = std::max(most, lacked * static_cast<int64_t>(rows_of(held.dims[1]).size()) * kItem);
  }
  return most;
}

// With as few indices as ranks that share the rows, a slice is replicated over them.
Placements layout_of_rows(const RowLayout& layout, int64_t count) {
  Placements to = layout.placements;
  int64_t ranks = 1;
  for (size_t m = 0; m < to.size(); ++m) ranks *= to[m].is_sharded_on(0) ? layout.mesh[m] : 1;
  for (size_t m = 0; m < to.size(); ++m) {
    if (to[m].is_sharded_on(0) && layout.mesh[m] > 1 && count <= ranks) to[m] = Replicate();
  }
  return to;
}

TEST_CASE("slice policy: a slice moves the rows that ranks lack, when it is read", "[ops][halo]") {
  for (const RowLayout& layout : row_layouts()) {
    int64_t ranks = 1;
    for (const int64_t n : layout.mesh) ranks *= n;
    const DeviceMesh mesh(World::local(ranks), layout.mesh);
    const Tensor plain = at::randn({layout.rows, kColumns}, at::kDouble);
    const Tensor x = distribute_tensor(plain, mesh, layout.placements);
    const bool in_blocks = layout.mesh == Ints{3} && layout.placements[0].is_strided_shard();
    for (int64_t start = 0; start < layout.rows; ++start) {
      for (int64_t end = start + 1; end <= layout.rows; ++end) {
        for (const int64_t step : {1, 2, 3}) {
          CAPTURE(mesh.to_string(), to_string(layout.placements), start, end, step);
          const Tensor expected = plain.slice(0, start, end, step);
          const int64_t count = expected.size(0);
          Placements to = count == layout.rows ? layout.placements : layout_of_rows(layout, count);
          if (in_blocks && step == 1 && start % 7 == 0 && end % 7 == 0 && count == 7) to = {Shard(0)};  // a block
          const int64_t bytes = bytes_lacked(layout, mesh, to, start, count, step);
          Tensor y;
          CHECK(traffic([&] { y = x.slice(0, start - layout.rows, end, step); }) == Traffic{0, 0});
          CHECK(DTensor(y).placements() == to);
          CHECK(traffic([&] { y.eq(0); }) == Traffic{bytes > 0, bytes});
          CHECK(difference(y, expected).value_or("") == "");
          CHECK(traffic([&] { y.eq(0); }) == Traffic{0, 0});
        }
      }
      const Tensor row = x.select(0, start);
      const int64_t bytes = bytes_lacked(layout, mesh, layout_of_rows(layout, 1), start, 1, 1);
      CHECK(traffic([&] { row.eq(0); }) == Traffic{bytes > 0, bytes});
      CHECK(difference(row, plain.select(0, start)).value_or("") == "");
    }
  }
}

TEST_CASE("slice policy: at the borders of blocks a slice shares the memory, also beside a mesh dim of one rank",
          "[ops][halo]") {
  for (const Ints& shape : {Ints{4}, Ints{1, 4}, Ints{4, 1}}) {
    const DeviceMesh mesh(World::local(4), shape);
    Placements blocks, block;
    for (const int64_t n : shape) {
      blocks.push_back(n > 1 ? StridedShard(0, 3) : Shard(0));
      block.push_back(Shard(0));
    }
    CAPTURE(to_string(blocks));
    Tensor plain = at::arange(24 * kColumns, at::kDouble).view({24, kColumns});
    const Tensor x = distribute_tensor(plain, mesh, blocks);
    CHECK(traffic([&] {
            const Tensor second = x.slice(0, 8, -8), parts = x.chunk(3)[2];
            CHECK(DTensor(second).placements() == block);
            CHECK(DTensor(parts).placements() == block);
            for (int64_t i = 0; i < 4; ++i) CHECK(DTensor(second).locals()[i].is_alias_of(DTensor(x).locals()[i]));
            second.mul_(-1);
            parts.zero_();
          }) == Traffic{0, 0});
    plain.slice(0, 8, 16).mul_(-1);
    plain.slice(0, 16).zero_();
    CHECK(difference(x, plain).value_or("") == "");
    const Tensor replaced = x.slice_scatter(x.slice(0, 0, 8), 0, 16);
    CHECK(traffic([&] { x.slice_scatter(x.slice(0, 0, 8), 0, 16); }) == Traffic{0, 0});
    CHECK(DTensor(replaced).placements() == blocks);
    CHECK(difference(replaced, plain.slice_scatter(plain.slice(0, 0, 8), 0, 16)).value_or("") == "");
  }
}

TEST_CASE("slice policy: above a memory limit a slice follows its rule", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(4), {4});
  const Tensor x = distribute_tensor(at::randn({64, 64}, at::kDouble), mesh, {Shard(0)});
  const int64_t row = 64 * kItem, peak = (16 + 16 + 2) * row;  // own part, result, one row sent and one received
  Tensor y;
  {
    const RedistributeMemoryLimit limit(peak);
    CHECK(traffic([&] { y = x.slice(0, 1); }) == Traffic{0, 0});
    CHECK(traffic([&] { y.eq(0); }) == Traffic{1, row});
    CHECK(DTensor(y).placements() == Placements{Shard(0)});
  }
  {
    const RedistributeMemoryLimit limit(peak - 1);  // to columns, in rounds
    CHECK(traffic([&] { y = x.slice(0, 1); }).bytes == 12 * row);
    CHECK(traffic([&] { y.eq(0); }) == Traffic{0, 0});
    CHECK(DTensor(y).placements() == Placements{Shard(1)});
  }
  const RedistributeMemoryLimit limit(1);
  CHECK_THROWS_WITH(x.slice(0, 1), Catch::Contains("aten::slice.Tensor") && Catch::Contains("max_bytes is 1,"));
  CHECK(traffic([&] { x.slice(0, -3, 2).eq(0); }) == Traffic{0, 0});
}

TEST_CASE("slice policy: a frozen cache lets slices at new positions pass, as far as no rule decides", "[ops][halo]") {
  const int64_t positions = 2500;  // more than are remembered
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor plain = at::arange(positions * 2, at::kDouble).view({positions, 2});
  const Tensor rows = distribute_tensor(plain, mesh, {Shard(0)}), columns = distribute_tensor(plain, mesh, {Shard(1)});
  const auto step = [&](int64_t t) { return rows.select(0, t) + rows.slice(0, t, t + 1).squeeze(0); };
  step(0);
  StrategyCache& cache = strategy_cache(mesh.world());
  cache.freeze();
  bool equal = true;
  for (int64_t t = 1; t < positions; ++t) equal = equal && at::equal(DTensor(step(t)).locals()[1], plain[t] * 2);
  CHECK(equal);
  for (int64_t t = 1; t < positions; ++t) equal = equal && at::equal(DTensor(step(t)).locals()[0], plain[t] * 2);
  CHECK(equal);
  CHECK_THROWS_WITH(columns.select(0, 3), Catch::Contains("frozen") && Catch::Contains("aten::select.int"));
  cache.freeze(false);
}

}  // namespace
}  // namespace dtensor::testing
