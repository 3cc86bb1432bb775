// Sharding specs: chunks, lists, what is inferred, and a program's own.
#include <chrono>
#include <numeric>
#include <random>

#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/property.h"

namespace dtensor::sharded {
namespace {

using Numbers = std::vector<int64_t>;

TEST_CASE("CS-1 chunk specs, valid and invalid") {
  CHECK_ERROR(c10::NotImplementedError, "ChunkShardingSpec does not support named dimension yet!",
              ChunkShardingSpec(std::string("H"), {"rank:0/cpu"}));
  CHECK_ERROR(c10::NotImplementedError, "not support named dimension",
              ChunkShardingSpec::from_value(c10::IValue("N"), {"rank:0/cpu"}));
  CHECK_ERROR(c10::ValueError, "Sharding dim needs to be an integer, found: None",
              ChunkShardingSpec::from_value(c10::IValue(), {"rank:0/cpu"}));
  CHECK_ERROR(c10::ValueError, "Sharding dim needs to be an integer, found: 1.5",
              ChunkShardingSpec::from_value(c10::IValue(1.5), {"rank:0/cpu"}));
  CHECK(ChunkShardingSpec::from_value(c10::IValue(1), {"rank:0/cpu"}).dim() == 1);
  for (const char* bad : {"random:0", "cuda:foo", "rank:foo"})
    CHECK_ERROR(c10::ValueError, "Could not parse remote_device", ChunkShardingSpec(0, {bad}));
  for (const char* bad : {"rank:0/foo", "rank:0/random:0"})
    CHECK_ERROR(c10::Error, "Expected one of", ChunkShardingSpec(0, {bad}));
  CHECK_ERROR(c10::Error, "Invalid device string", ChunkShardingSpec(0, {"rank:0/cuda:foo"}));
  const ChunkShardingSpec spec(-1, {"cuda:0", c10::Device("cuda:1"), "rank:2"});
  CHECK(spec.placements()[2] == RemoteDevice("rank:2/cpu"));
  CHECK(spec == ChunkShardingSpec(-1, {"cuda:0", "cuda:1", "rank:2/cpu"}));
  CHECK_FALSE(spec == ChunkShardingSpec(0, {"cuda:0", "cuda:1", "rank:2/cpu"}));
  CHECK(AnyShardingSpec(chunks(0)) == AnyShardingSpec(chunks(0)));
  CHECK(AnyShardingSpec(chunks(0)) != AnyShardingSpec(chunks(-2)));
  CHECK(DevicePlacementSpec("rank:0").device == RemoteDevice("rank:0/cpu"));
}

TEST_CASE("CS-2 sizes of chunks") {
  struct Row {
    int64_t size, count;
    Numbers sizes;
  };
  const Row rows[] = {{12, 4, {3, 3, 3, 3}},
                      {10, 4, {3, 3, 3, 1}},
                      {9, 4, {3, 3, 3, 0}},
                      {10, 5, {2, 2, 2, 2, 2}},
                      {10, 2, {5, 5}},
                      {16, 8, {2, 2, 2, 2, 2, 2, 2, 2}},
                      {32, 4, {8, 8, 8, 8}},
                      {2, 4, {1, 1, 0, 0}},
                      {5, 4, {2, 2, 1, 0}},
                      {24, 4, {6, 6, 6, 6}},
                      {24, 10, {3, 3, 3, 3, 3, 3, 3, 3, 0, 0}},
                      {23, 4, {6, 6, 6, 5}},
                      {21, 4, {6, 6, 6, 3}},
                      {13, 4, {4, 4, 4, 1}},
                      {15, 4, {4, 4, 4, 3}},
                      {17, 4, {5, 5, 5, 2}},
                      {14, 4, {4, 4, 4, 2}},
                      {26, 4, {7, 7, 7, 5}},
                      {29, 4, {8, 8, 8, 5}},
                      {11, 4, {3, 3, 3, 2}}};
  for (const Row& row : rows) {
    INFO(row.size << " in " << row.count);
    const auto metadata =
        ChunkShardingSpec(1, std::vector<RemoteDevice>(row.count, "rank:0")).build_metadata({7, row.size}, {});
    REQUIRE(metadata.shards_metadata.size() == row.sizes.size());
    for (size_t i = 0; i < row.sizes.size(); ++i) {
      const int64_t begin = get_split_size(row.size, row.count) * static_cast<int64_t>(i);
      CHECK(metadata.shards_metadata[i].shard_offsets == Numbers{0, begin});
      CHECK(metadata.shards_metadata[i].shard_sizes == Numbers{7, row.sizes[i]});
    }
    CHECK(metadata.size == Numbers{7, row.size});
  }
  const std::vector<std::array<int64_t, 3>> splits = {{11, 4, 3}, {12, 4, 3},  {13, 4, 4},
                                                      {5, 4, 2},  {11, 1, 11}, {11, 11, 1}};
  for (const auto& [size, count, split] : splits) CHECK(get_split_size(size, count) == split);
  const std::vector<std::array<int64_t, 4>> sizes = {
      {11, 3, 0, 3}, {11, 3, 3, 2}, {13, 4, 0, 4}, {13, 4, 3, 1}, {5, 2, 3, 0}};
  for (const auto& [size, split, i, expected] : sizes) CHECK(get_chunked_dim_size(size, split, i) == expected);
  for (int64_t n = 0; n <= 200; ++n) {
    for (int64_t count = 1; count <= 17; ++count) {
      int64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += get_chunked_dim_size(n, get_split_size(n, count), i);
      if (sum != n) FAIL(n << " in " << count << " chunks: " << sum);
    }
  }
}

TEST_CASE("CS-3 invalid dims are detected with the tensor") {
  for (int64_t dim : {2, 3, 4, -3, -4, -5}) {
    const ChunkShardingSpec spec = chunks(dim);
    CHECK_ERROR(c10::ValueError, "Invalid sharding dim: " + std::to_string(dim), spec.build_metadata({10, 20}, {}));
    CHECK_ERROR(c10::ValueError, "Invalid sharding dim", empty(spec, {10, 20}, test_world()));
  }
}

TEST_CASE("CS-4 negative dims are equivalent") {
  CHECK(chunks(-2).build_metadata({10, 20}, {}) == chunks(0).build_metadata({10, 20}, {}));
  CHECK(chunks(-1).build_metadata({10, 20}, {}) == chunks(1).build_metadata({10, 20}, {}));
  CHECK(chunks(-1).build_metadata({10, 20}, {}) != chunks(0).build_metadata({10, 20}, {}));
}

TEST_CASE("CS-5 the first chunk of a rank") {
  CHECK(get_chunk_sharding_params(21, chunks(0), 1) == ChunkParams{6, 6});
  CHECK(get_chunk_sharding_params(21, chunks(0), 3) == ChunkParams{18, 3});
  CHECK(get_chunk_sharding_params(21, chunks(0, {3, 2, 1, 0}), 1) == ChunkParams{12, 6});
  CHECK(get_chunk_sharding_params(21, chunks(0, {3, 2, 1, 0}), 3) == ChunkParams{0, 6});
  CHECK(get_chunk_sharding_params(2, chunks(0), 3) == ChunkParams{2, 0});  // cumulative, so within the tensor
  CHECK_ERROR(c10::ValueError, "has no chunk on rank 5", get_chunk_sharding_params(21, chunks(0), 5));
}

std::vector<ShardMetadata> boxes(const std::vector<std::pair<Numbers, Numbers>>& list) {
  std::vector<ShardMetadata> shards;
  for (const auto& [offsets, sizes] : list)
    shards.emplace_back(offsets, sizes, place(static_cast<int64_t>(shards.size())));
  return shards;
}

TEST_CASE("ES-1 lists that are not valid specs") {
  CHECK_ERROR(c10::ValueError, "Empty shard list provided: []", EnumerableShardingSpec({}));
  CHECK_ERROR(c10::ValueError, "Found inconsistent ranks for shards: 1 and 2",
              EnumerableShardingSpec(boxes({{{0}, {1}}, {{1, 1}, {1, 1}}})));
  CHECK_ERROR(c10::ValueError,
              "Shards ShardMetadata(shard_offsets=[0, 0], shard_sizes=[3, 3], placement=rank:0/cpu) and "
              "ShardMetadata(shard_offsets=[2, 0], shard_sizes=[3, 3], placement=rank:1/cpu) overlap",
              EnumerableShardingSpec(boxes({{{0, 0}, {3, 3}}, {{2, 0}, {3, 3}}})));
  CHECK(AnyShardingSpec(grid()) == AnyShardingSpec(grid()));
  CHECK(AnyShardingSpec(grid()) != AnyShardingSpec(grid({3, 1, 2, 0})));
}

bool overlaps(const std::vector<ShardMetadata>& shards) {
  try {
    validate_non_overlapping(shards);
    return false;
  } catch (const c10::ValueError&) {
    return true;
  }
}

TEST_CASE("ES-2 shards that overlap") {
  CHECK_FALSE(overlaps({}));
  CHECK_FALSE(overlaps(boxes({{{0, 0}, {5, 5}}, {{5, 0}, {5, 5}}})));
  CHECK(overlaps(boxes({{{0, 0}, {5, 5}}, {{4, 0}, {5, 5}}})));
  CHECK(overlaps(boxes({{{0, 0}, {5, 5}}, {{0, 4}, {5, 5}}})));
  CHECK_FALSE(overlaps(boxes({{{5, 0, 5}, {5, 5, 5}}, {{5, 5, 5}, {5, 5, 5}}})));
  CHECK(overlaps(boxes({{{5, 0, 5}, {5, 5, 5}}, {{5, 4, 5}, {5, 5, 5}}})));
  CHECK(overlaps(boxes({{{5, 0, 5}, {5, 5, 5}}, {{5, 4, 9}, {5, 5, 5}}})));
  CHECK(overlaps(boxes({{{0, 0}, {5, 5}}, {{0, 0}, {5, 5}}})));
  CHECK_FALSE(overlaps(boxes({{{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}, {{0, 0}, {0, 0}}})));
  CHECK(overlaps(boxes({{{}, {}}, {{}, {}}})));  // two scalars
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(overlaps(boxes({{{1}, {most}}, {{most - 1}, {1}}})));
}

TEST_CASE("trap T18: a shard without elements inside another one overlaps nothing") {
  CHECK_FALSE(overlaps(boxes({{{0}, {5}}, {{3}, {0}}})));
  CHECK_FALSE(overlaps(boxes({{{0, 0}, {5, 5}}, {{3, 1}, {2, 0}}, {{3, 3}, {0, 2}}})));
}

TEST_CASE("ES-2 shards that overlap, compared with a map of cells") {
  REQUIRE(testing::holds("overlap is what cells say", 2000, [] {
    const int64_t ndim = testing::draw(1, 4), side = testing::draw(1, 5), count = testing::draw(0, 8);
    std::vector<ShardMetadata> shards;
    std::map<Numbers, int> cells;
    for (int64_t i = 0; i < count; ++i) {
      Numbers offsets, sizes;
      for (int64_t d = 0; d < ndim; ++d) {
        offsets.push_back(testing::draw(0, side));
        sizes.push_back(testing::draw(0, 2));
      }
      shards.emplace_back(offsets, sizes, place(i));
      int64_t numel = shards.back().numel();
      for (int64_t k = 0; k < numel; ++k) {
        Numbers at = offsets;
        for (int64_t d = 0, rest = k; d < ndim; rest /= sizes[d], ++d) at[d] += rest % sizes[d];
        ++cells[at];
      }
    }
    const bool expected = std::any_of(cells.begin(), cells.end(), [](const auto& c) { return c.second > 1; });
    RC_ASSERT(overlaps(shards) == expected);
  }));
}

// 10^5 shards in many layouts: what compares all pairs takes minutes.
TEST_CASE("ES-2 a hundred thousand shards are compared quickly") {
  const int64_t n = 100'000;
  std::vector<std::vector<ShardMetadata>> layouts(5);
  const RemoteDevice here("rank:0/cpu");
  const auto add = [&](size_t layout, Numbers offsets, Numbers sizes) {
    layouts[layout].emplace_back(std::move(offsets), std::move(sizes), here);
  };
  for (int64_t i = 0; i < n; ++i) {
    add(0, {i, 0}, {1, 7});                                                                          // rows
    add(1, {i / 316 * 2, i % 316 * 3}, {2, 3});                                                      // a grid
    add(2, i % 2 == 0 ? Numbers{0, i} : Numbers{1, i}, i % 2 == 0 ? Numbers{1, 1} : Numbers{n, 1});  // long columns
    add(3, {i, i}, {1, 1});                                                                          // a diagonal
    add(4, {i / 2500, i / 50 % 50, i % 50}, {1, 1, 1});                                              // a cube
  }
  for (auto& shards : layouts) {
    std::mt19937 random(7);
    std::shuffle(shards.begin(), shards.end(), random);
    const auto start = std::chrono::steady_clock::now();
    CHECK_FALSE(overlaps(shards));
    // Far beyond what it takes, below what all pairs would: the machine may be busy.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    shards.push_back(shards[n / 3]);
    CHECK(overlaps(shards));
  }
}

TEST_CASE("ES-3 shards that do not cover the tensor") {
  const auto rows = boxes({{{0, 0}, {5, 5}}, {{5, 0}, {5, 5}}});
  CHECK_NOTHROW(check_tensor(rows, {10, 5}));
  CHECK_ERROR(c10::ValueError, "Rank of tensor is 3, but shards rank is 2", check_tensor(rows, {10, 5, 1}));
  CHECK_ERROR(c10::ValueError, "Shard offset 0 and length 5 exceeds tensor dim: 3 for shard ShardMetadata(",
              check_tensor(rows, {10, 3}));
  CHECK_ERROR(
      c10::ValueError,
      "Total volume of shards: 91 does not match tensor volume: 100, in other words all the individual shards do "
      "not cover the entire tensor",
      check_tensor(boxes({{{0, 0}, {4, 4}}, {{0, 5}, {5, 5}}, {{5, 0}, {5, 5}}, {{5, 5}, {5, 5}}}), {10, 10}));
  CHECK_ERROR(c10::ValueError, "does not match tensor volume",
              check_tensor(boxes({{{0, 0}, {5, 5}}, {{5, 5}, {5, 5}}}), {10, 10}));
  CHECK_NOTHROW(check_tensor(boxes({{{0, 0}, {2, 4}}, {{0, 4}, {4, 2}}, {{2, 0}, {4, 4}}, {{4, 4}, {2, 2}}}), {6, 6}));
  CHECK_NOTHROW(check_tensor(boxes({{{0}, {2}}, {{7}, {0}}}), {2}));  // an empty one past the end
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK_ERROR(c10::ValueError, "more elements than can be counted", check_tensor(rows, {most, most}));
}

TEST_CASE("ES-4 a list cannot shard") {
  CHECK_ERROR(c10::NotImplementedError, "EnumerableShardingSpec.shard not implemented yet!",
              grid().shard(at::zeros({10, 10}), 0, test_world()));
}

TEST_CASE("IS-1 shards inferred to be a list") {
  const auto is_list = [](const std::vector<ShardMetadata>& shards) {
    return infer_sharding_spec(shards) == AnyShardingSpec(EnumerableShardingSpec(shards));
  };
  CHECK(is_list(boxes({{{0, 0}, {5, 5}}, {{5, 0}, {10, 5}}})));  // rows 5 then 10
  CHECK(is_list(boxes({{{0}, {16}}, {{16}, {9}}})));
  CHECK(is_list(grid().shards()));
  CHECK(is_list(boxes({{{0, 0}, {5, 5}}})));                                // a single one says no dim
  CHECK(is_list(boxes({{{0}, {2}}, {{2}, {2}}, {{4}, {1}}, {{5}, {0}}})));  // clamped
  CHECK(infer_sharding_spec(boxes({{{0}, {2}}, {{2}, {2}}, {{4}, {1}}, {{6}, {0}}})) == AnyShardingSpec(chunks(0)));
}

TEST_CASE("trap T12: shards that split dims 0 and 1 are not chunks, in any order") {
  const auto shards = boxes({{{3, 0}, {3, 3}}, {{0, 3}, {3, 3}}, {{0, 0}, {3, 3}}, {{3, 3}, {3, 3}}});
  CHECK(infer_sharding_spec(shards).as<EnumerableShardingSpec>() != nullptr);
}

TEST_CASE("IS-2 shards inferred to be chunks") {
  const std::vector<std::pair<int64_t, Numbers>> shapes = {
      {0, {4, 16}}, {0, {5, 15, 16}}, {1, {12, 16}}, {2, {4, 18, 15}}, {3, {7, 12, 16, 37}}, {4, {50, 4, 18, 15, 77}}};
  for (const Numbers& order : {Numbers{0, 1, 2, 3}, Numbers{0, 1, 3, 2}, Numbers{2, 3, 1, 0}, Numbers{3, 0, 1, 2}}) {
    for (const auto& [dim, size] : shapes) {
      const ChunkShardingSpec spec = chunks(dim, order);
      auto shards = spec.build_metadata(size, {}).shards_metadata;
      std::sort(shards.begin(), shards.end(),
                [](auto& a, auto& b) { return a.placement->rank() < b.placement->rank(); });
      const AnyShardingSpec inferred = infer_sharding_spec(shards);
      REQUIRE(inferred.as<ChunkShardingSpec>() != nullptr);
      CHECK(*inferred.as<ChunkShardingSpec>() == spec);
    }
  }
}

// A program's own: a square grid over two dims.
struct GridShardingSpec : ShardingSpec {
  GridShardingSpec(int64_t side_, std::vector<RemoteDevice> places_) : side(side_), places(std::move(places_)) {}
  ShardedTensorMetadata build_metadata(c10::IntArrayRef sizes, const TensorProperties& properties) const override {
    TORCH_CHECK_VALUE(sizes.size() == 2, "grids are of two dims");
    TORCH_CHECK_VALUE(sizes[0] % side == 0 && sizes[1] % side == 0, "no multiple of the grid");
    ShardedTensorMetadata metadata;
    metadata.size = sizes.vec();
    metadata.tensor_properties = properties;
    const int64_t across = sizes[1] / side;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto k = static_cast<int64_t>(i);
      metadata.shards_metadata.emplace_back(Numbers{k / across * side, k % across * side}, Numbers{side, side},
                                            places[i]);
    }
    return metadata;
  }
  std::string name() const override { return "GridShardingSpec"; }
  std::string to_string() const override { return c10::str("GridShardingSpec(", side, ", ", places.size(), ")"); }
  int64_t side;
  std::vector<RemoteDevice> places;
};

TEST_CASE("US-1 a program's own spec") {
  const GridShardingSpec spec(2, {"rank:0", "rank:1", "rank:2", "rank:3"});
  CHECK_NOTHROW(check_tensor(GridShardingSpec(4, spec.places).build_metadata({8, 8}, {}).shards_metadata, {8, 8}));
  const ShardedTensor st = ones(spec, {4, 4}, test_world());
  for (int64_t rank : test_world().owned_ranks()) CHECK(at::equal(st.local_tensor(rank), at::ones({2, 2})));
  CHECK(holds(st, at::ones({4, 4})));
  CHECK_ERROR(c10::ValueError, "grids are of two dims", ones(spec, {4, 4, 4}, test_world()));
  CHECK_ERROR(c10::NotImplementedError, "GridShardingSpec.shard not implemented yet!",
              shard_tensor(at::ones({4, 4}), spec, test_world()));
  const ShardedTensor moved = shard_tensor(counted({4, 4}), chunks(0), test_world()).resharded(spec);
  CHECK(holds(moved, counted({4, 4})));
  CHECK(moved.sharding_spec() == AnyShardingSpec(spec));
}

}  // namespace
}  // namespace dtensor::sharded
