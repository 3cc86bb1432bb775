// Sharded tensors of shards that are there, and what is wrong with some of them.
#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

using Numbers = std::vector<int64_t>;

Shard shard_of(int64_t rank, const Numbers& offsets, const at::Tensor& t) {
  return Shard::from_tensor_and_offsets(t, offsets, rank);
}

// Every rank's 5x5 shard of `grid`, as `make` has it.
template <typename Make>
RankShards grid_shards(Make make) {
  return per_rank(test_world().owned_ranks(), [&](int64_t r) {
    return std::vector<Shard>{shard_of(r, {r / 2 * 5, r % 2 * 5}, make(r))};
  });
}

RankShards grid_of(const at::Tensor& whole) {
  return grid_shards([&](int64_t r) { return window(whole, grid().shards()[r]).contiguous(); });
}

const GlobalSize kTen = {10, 10};

TEST_CASE("IL-1 a grid from its shards") {
  const at::Tensor whole = counted({10, 10});
  const ShardedTensor st = init_from_local_shards(grid_of(whole), kTen, test_world());
  CHECK(holds(st, whole));
  CHECK(st.metadata().shards_metadata == grid().shards());
  CHECK(st.sharding_spec() == AnyShardingSpec(grid()));
  const RankShards mine = grid_of(whole);
  const ShardedTensor same = init_from_local_shards(mine, kTen, test_world());
  for (size_t i = 0; i < mine.size(); ++i)
    CHECK(same.local_tensor(test_world().owned_ranks()[i]).is_same(mine[i][0].tensor));  // no copies
}

TEST_CASE("IL-2 offsets computed from the shards (trap T15)") {
  for (int64_t s : {0, 5}) {
    const auto shards = per_rank(test_world().owned_ranks(), [&](int64_t r) {
      return std::vector<Shard>{shard_of(r, {0, 0}, at::full({s, s}, r))};
    });
    const ShardedTensor st = init_from_local_shards(shards, {std::nullopt, std::nullopt}, test_world());
    CHECK(st.sizes() == c10::IntArrayRef({4 * s, s}));
    for (int64_t r : test_world().owned_ranks()) {
      CHECK(st.local_shards(r)[0].metadata == ShardMetadata({r * s, 0}, {s, s}, place(r)));
      CHECK(at::equal(st.local_tensor(r), at::full({s, s}, r)));
    }
    CHECK(st.metadata().shards_metadata.size() == 4);
  }
  const ShardedTensor rows = init_from_local_shards(grid_of(counted({10, 10})), {std::nullopt, 5}, test_world());
  CHECK(rows.sizes() == c10::IntArrayRef({20, 5}));
  for (int64_t r : test_world().owned_ranks()) {
    CHECK(rows.local_shards(r)[0].metadata == ShardMetadata({5 * r, 0}, {5, 5}, place(r)));
    CHECK(at::equal(rows.local_tensor(r), window(counted({10, 10}), grid().shards()[r])));
  }
  // In a group whose ranks are not its positions.
  const ProcessGroup group(test_world(), {1, 3});
  if (group.owned_ranks().empty()) return;
  const auto in_group = per_rank(group.owned_ranks(), [&](int64_t r) {
    return std::vector<Shard>{shard_of(r, {7, 7}, at::full({2, 3}, r))};
  });
  const ShardedTensor st = init_from_local_shards(in_group, {std::nullopt, 3}, group);
  CHECK(st.sizes() == c10::IntArrayRef({4, 3}));
  const auto two = per_rank(group.owned_ranks(), [&](int64_t r) {
    return std::vector<Shard>(2, shard_of(r, {0, 0}, at::full({2, 3}, r)));
  });
  CHECK_ERROR(c10::ValueError, "should has and only has one metadata for local rank, actual: 2",
              init_from_local_shards(two, {std::nullopt, 3}, group));
}

TEST_CASE("IL-3 global sizes that are missing or wrong") {
  const auto at_zero = [] {
    return per_rank(test_world().owned_ranks(), [](int64_t r) {
      return std::vector<Shard>{shard_of(r, {0, 0}, at::zeros({5, 5}))};
    });
  };
  const auto rows = [] {
    return per_rank(test_world().owned_ranks(), [](int64_t r) {
      return std::vector<Shard>{shard_of(r, {5 * r, 0}, at::zeros({5, 5}))};
    });
  };
  CHECK_ERROR(c10::ValueError, "", init_from_local_shards(at_zero(), {0, 0}, test_world()));
  CHECK_ERROR(c10::ValueError, "exceeds tensor dim", init_from_local_shards(rows(), {0, 0}, test_world()));
  CHECK_ERROR(c10::ValueError, "", init_from_local_shards(rows(), {}, test_world()));
  CHECK_ERROR(c10::ValueError, "must be >= 0", init_from_local_shards(rows(), {-1, 5}, test_world()));
  CHECK_NOTHROW(init_from_local_shards(rows(), {20, 5}, test_world()));
}

TEST_CASE("IL-4 invalid local shards") {
  const World& world = test_world();
  const auto none = per_rank(world.owned_ranks(), [](int64_t) { return std::vector<Shard>{}; });
  CHECK_ERROR(c10::ValueError, "have no local shards on all ranks", init_from_local_shards(none, kTen, world));

  auto shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards) of_rank[0].tensor = at::zeros({5, 5}).to_sparse();
  CHECK_ERROR(c10::ValueError, "Only torch.strided layout is currently supported",
              init_from_local_shards(shards, kTen, world));

  shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards) of_rank[0].tensor = at::zeros({5, 5}).t();
  CHECK_ERROR(c10::ValueError, "Only torch.contiguous_format memory_format is currently supported",
              init_from_local_shards(shards, kTen, world));

  shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards) of_rank[0].tensor = at::zeros({2, 3});
  CHECK_ERROR(c10::ValueError, "Shard tensor size does not match", init_from_local_shards(shards, kTen, world));

  shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards) of_rank[0].metadata.placement = of_rank[0].metadata.placement->on(c10::Device("meta"));
  CHECK_ERROR(c10::ValueError, "Local shard tensor device does not match", init_from_local_shards(shards, kTen, world));

  shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards)
    of_rank[0].metadata.placement = RemoteDevice((*of_rank[0].metadata.placement->rank() + 1) % 4, c10::Device("cpu"));
  CHECK_ERROR(c10::ValueError, "Local shard metadata's rank does not match with the rank in its process group!",
              init_from_local_shards(shards, kTen, world));

  if (testing::is_job()) {  // in one process there is one argument
    const int64_t other = owns(0) ? 10 : 5;
    CHECK_ERROR(c10::ValueError, "ShardedTensor global_size property does not match from different ranks!",
                init_from_local_shards(grid_of(at::zeros({10, 10})), {10, other}, world));
  }
  CHECK_ERROR(
      c10::ValueError,
      "ShardedTensor dtype property does not match from different ranks! Found dtype=Int on rank:0, and dtype=Float "
      "on rank:1.",
      init_from_local_shards(grid_shards([](int64_t r) {
                               return at::zeros({5, 5}, r == 0 ? at::kInt : at::kFloat);
                             }),
                             kTen, world));
  CHECK_ERROR(c10::ValueError, "ShardedTensor requires_grad property does not match from different ranks!",
              init_from_local_shards(grid_shards([](int64_t r) {
                                       return at::zeros({5, 5}).set_requires_grad(r == 0);
                                     }),
                                     kTen, world));
  const auto two = per_rank(world.owned_ranks(), [](int64_t r) {
    return std::vector<Shard>{shard_of(r, {0, 5 * r}, at::zeros({5, 5})),
                              shard_of(r, {5, 5 * r}, at::zeros({5, 5}, at::kInt))};
  });
  CHECK_ERROR(c10::ValueError, "Local shards' tensor dtype property need to be the same on rank:0!",
              init_from_local_shards(two, {10, 20}, world));
  CHECK_ERROR(c10::ValueError, "give one list for each", init_from_local_shards({}, kTen, world));
  if (!at::hasCUDA()) {
    WARN("SKIPPED: no GPU for pinned memory; the other rows were run");
    return;
  }
  CHECK_ERROR(c10::ValueError, "ShardedTensor pin_memory property does not match from different ranks!",
              init_from_local_shards(grid_shards([](int64_t r) {
                                       return r == 0 ? at::zeros({5, 5}).pin_memory() : at::zeros({5, 5});
                                     }),
                                     kTen, world));
}

TEST_CASE("IL-5 shards that overlap or leave gaps") {
  const auto with_first = [](int64_t side) {
    return grid_shards([&](int64_t r) { return r == 0 ? at::zeros({side, side}) : at::zeros({5, 5}); });
  };
  CHECK_ERROR(c10::ValueError, "overlap", init_from_local_shards(with_first(6), kTen, test_world()));
  CHECK_ERROR(c10::ValueError, "Total volume of shards: 91 does not match tensor volume: 100",
              init_from_local_shards(with_first(4), kTen, test_world()));
}

TEST_CASE("IL-6 shards of a group") {
  const ProcessGroup group(test_world(), {1, 2, 3});
  const auto shards = per_rank(group.owned_ranks(), [](int64_t r) {
    return std::vector<Shard>{shard_of(r, {5 * (r - 1), 0}, at::full({5, 5}, r))};
  });
  if (group.owned_ranks().empty()) {
    CHECK_ERROR(c10::ValueError, "this process has no rank of", init_from_local_shards(shards, {15, 5}, group));
    return;
  }
  const ShardedTensor st = init_from_local_shards(shards, {15, 5}, group);
  REQUIRE(st.metadata().shards_metadata.size() == 3);
  for (int64_t r = 1; r < 4; ++r)
    CHECK(st.metadata().shards_metadata[r - 1] == ShardMetadata({5 * (r - 1), 0}, {5, 5}, place(r)));
  for (int64_t r : group.owned_ranks()) CHECK(at::equal(st.local_tensor(r), at::full({5, 5}, r)));
}

// (trap T9) Without a word to the others they would wait until the deadline, and say so.
TEST_CASE("IL-7 one rank's fault is every rank's error") {
  auto shards = grid_of(at::zeros({10, 10}));
  for (auto& of_rank : shards) {
    if (of_rank[0].metadata.placement->rank() == 2) of_rank[0].tensor = at::zeros({2, 3});
  }
  const std::string expected =
      "[init_from_local_shards] rank 2: Shard tensor size does not match with metadata.shard_lengths!";
  CHECK_ERROR(c10::ValueError, expected, init_from_local_shards(shards, kTen, test_world()));
  CHECK_ERROR(c10::ValueError, "rank 2: Shard tensor size does not match",
              init_from_local_shards_and_global_metadata(shards, grid().build_metadata({10, 10}, {}), test_world()));
  CHECK_ERROR(c10::TypeError, "[op] ranks 1,3: not here; rank 2: nor here",
              check_on_all_ranks(test_world(), "op", [](int64_t r) {
                TORCH_CHECK_TYPE(r % 2 == 0, "not here");
                TORCH_CHECK_VALUE(r != 2, "nor here");
              }));
  CHECK(holds(init_from_local_shards(grid_of(at::ones({10, 10})), kTen, test_world()), at::ones({10, 10})));
}

TEST_CASE("IM-1 shards with metadata of all") {
  const at::Tensor whole = counted({10, 10});
  const ShardedTensor st =
      init_from_local_shards_and_global_metadata(grid_of(whole), grid().build_metadata({10, 10}, {}), test_world());
  CHECK(holds(st, whole));
  CHECK(st.sharding_spec() == AnyShardingSpec(grid()));

  ShardedTensorMetadata zero;
  zero.size = {0, 0};
  for (int64_t r = 0; r < 4; ++r) zero.shards_metadata.emplace_back(Numbers{0, 0}, Numbers{0, 0}, place(r));
  const auto empty_shards = per_rank(test_world().owned_ranks(), [](int64_t r) {
    return std::vector<Shard>{shard_of(r, {0, 0}, at::zeros({0, 0}))};
  });
  const ShardedTensor nothing = init_from_local_shards_and_global_metadata(empty_shards, zero, test_world());
  CHECK(nothing.sizes() == c10::IntArrayRef({0, 0}));
  CHECK(nothing.metadata().shards_metadata == zero.shards_metadata);
  for (int64_t r : test_world().owned_ranks()) CHECK(nothing.local_shards(r).size() == 1);

  // Rank 1's view: it has all, the others nothing.
  for (int64_t o : {0, 1}) {
    ShardedTensorMetadata view;
    view.size = {5, 5};
    for (int64_t r = 0; r < 4; ++r) {
      if (r == 1)
        view.shards_metadata.emplace_back(Numbers{o, 0}, Numbers{5, 5}, place(r));
      else
        view.shards_metadata.emplace_back(Numbers{r < 1 ? 0 : 5, 0}, Numbers{0, 0}, place(r));
    }
    const auto shards = per_rank(test_world().owned_ranks(), [&](int64_t r) {
      const ShardMetadata& md = view.shards_metadata[r];
      return std::vector<Shard>{Shard(at::full(md.shard_sizes, 3.f), md)};
    });
    if (o == 1) {
      CHECK_ERROR(c10::ValueError, "exceeds tensor dim",
                  init_from_local_shards_and_global_metadata(shards, view, test_world()));
      continue;
    }
    const ShardedTensor own = init_from_local_shards_and_global_metadata(shards, view, test_world());
    CHECK(own.sizes() == c10::IntArrayRef({5, 5}));
    CHECK(own.metadata().shards_metadata == view.shards_metadata);
    for (int64_t r : test_world().owned_ranks()) CHECK(own.local_tensor(r).numel() == (r == 1 ? 25 : 0));
  }
}

TEST_CASE("IM-2 shards that differ from the metadata") {
  const World& world = test_world();
  const ShardedTensorMetadata metadata = grid().build_metadata({10, 10}, {});
  const auto check = [&](auto change, auto error, const char* text, ShardedTensorMetadata md) {
    RankShards shards = grid_of(at::zeros({10, 10}));
    for (auto& of_rank : shards) change(of_rank);
    INFO(text);
    CHECK_ERROR(typename decltype(error)::type, text, init_from_local_shards_and_global_metadata(shards, md, world));
  };
  const std::common_type<c10::Error> runtime;
  const std::common_type<c10::ValueError> value;
  using Shards = std::vector<Shard>;
  check(
      [](Shards& s) { s.clear(); }, runtime,
      "Number of local shards (0) does not match number of local shards metadata in sharded_tensor_metadata (1) on rank (0) ",
      metadata);
  check([](Shards& s) { s.push_back(s[0]); }, runtime, "does not match number of local shards metadata", metadata);
  check(
      [](Shards& s) {
        s[0].tensor = at::zeros({2, 3});
      },
      value, "Shard tensor size does not match with metadata.shard_lengths", metadata);
  check([](Shards& s) { s[0].metadata.placement = s[0].metadata.placement->on(c10::Device("meta")); }, value,
        "Local shard tensor device does not match with local Shard's placement", metadata);
  check(
      [](Shards& s) {
        s[0].tensor = at::zeros({5, 5}, at::kInt);
      },
      value,
      "Local shards' tensor dtype property is incompatible with tensor property on rank 0: tensor property dtype=Float, "
      "local shard tensor dtype=Int.",
      metadata);
  check([](Shards& s) { s[0].tensor = s[0].tensor.to_sparse(); }, value,
        "Local shards' tensor layout property is incompatible with", metadata);
  check(
      [](Shards& s) {
        s[0].tensor = at::zeros({5, 5}).set_requires_grad(true);
      },
      value, "Local shards' tensor requires_grad property is incompatible with", metadata);
  check(
      [](Shards& s) {
        s[0].tensor = at::zeros({5, 5}).t();
      },
      value, "Only torch.contiguous_format memory_format is currently supported", metadata);
  ShardedTensorMetadata pinned = metadata;
  pinned.tensor_properties.pin_memory = true;
  check([](Shards&) {}, value, "Local shards' tensor pin_memory property is incompatible with", pinned);
  ShardedTensorMetadata nobody = metadata;
  nobody.shards_metadata.clear();
  check([](Shards& s) { s.clear(); }, value, "shards_metadata must not be empty!", nobody);
  ShardedTensorMetadata elsewhere = metadata;
  elsewhere.shards_metadata[3].placement = RemoteDevice("rank:5");
  check([](Shards&) {}, value, "Global rank 5 does not exist in input process group", elsewhere);
}

TEST_CASE("trap T17: metadata of chunks are in the order of the offsets, not of the arguments") {
  ShardedTensorMetadata metadata = chunks(0, {2, 3, 1, 0}).build_metadata({12, 2}, {});
  const auto in_order = metadata.shards_metadata;
  std::reverse(metadata.shards_metadata.begin(), metadata.shards_metadata.end());
  const auto shards = per_rank(test_world().owned_ranks(), [&](int64_t r) {
    for (const ShardMetadata& md : metadata.shards_metadata) {
      if (md.placement->rank() == r) return std::vector<Shard>{Shard(window(counted({12, 2}), md).contiguous(), md)};
    }
    return std::vector<Shard>{};
  });
  const ShardedTensor st = init_from_local_shards_and_global_metadata(shards, metadata, test_world());
  CHECK(st.metadata().shards_metadata == in_order);
  CHECK(holds(st, counted({12, 2})));
}

TEST_CASE("IT-1 a local tensor and a spec") {
  const std::vector<std::pair<int64_t, Numbers>> specs = {
      {0, {2, 3, 1, 0}}, {1, {3, 1, 0, 2}}, {1, {2, 3, 0, 1}}, {0, {3, 2, 1, 0}}};
  for (const auto& [dim, order] : specs) {
    for (const Numbers& size : {Numbers{20, 10}, Numbers{21, 11}, Numbers{23, 16}, Numbers{44, 16, 8}}) {
      const ChunkShardingSpec spec = chunks(dim, order);
      const at::Tensor whole = counted(size);
      const auto expected = spec.build_metadata(size, {});
      const auto locals = per_rank(test_world().owned_ranks(), [&, &order = order](int64_t r) {
        const auto at = std::find(order.begin(), order.end(), r) - order.begin();
        return window(whole, expected.shards_metadata[at]).contiguous();
      });
      const ShardedTensor st = init_from_local_tensor(locals, spec, size, test_world());
      CHECK(holds(st, whole));
      CHECK(st.metadata().shards_metadata == expected.shards_metadata);
      CHECK(st.sharding_spec() == AnyShardingSpec(spec));
      for (size_t i = 0; i < locals.size(); ++i)
        CHECK(st.local_tensor(test_world().owned_ranks()[i]).is_same(locals[i]));
    }
  }
}

TEST_CASE("IT-2 local tensors that do not match the spec") {
  const EnumerableShardingSpec halves(
      {ShardMetadata({0, 0}, {5, 5}, place(0)), ShardMetadata({5, 0}, {5, 5}, place(1))});
  const auto all = [](const at::Tensor& t) { return per_rank(test_world().owned_ranks(), [&](int64_t) { return t; }); };
  CHECK_ERROR(c10::ValueError, "do not cover the entire tensor",
              init_from_local_tensor(all(at::zeros({24, 12})), halves, {24, 12}, test_world()));
  CHECK_ERROR(c10::ValueError, "local_tensor is not a contiguous Tensor.",
              init_from_local_tensor(all(at::zeros({12, 6}).t()), chunks(0), {24, 12}, test_world()));
  CHECK_ERROR(c10::ValueError, "Shard tensor size does not match",
              init_from_local_tensor(all(at::zeros({5, 12})), chunks(0), {24, 12}, test_world()));
  CHECK_ERROR(c10::ValueError, "its tensor is undefined",
              init_from_local_tensor(all(at::Tensor()), chunks(0), {24, 12}, test_world()));
}

TEST_CASE("SG-1 two groups side by side, without data") {
  for (int64_t first : {0, 1}) {
    const ProcessGroup group(test_world(), {first, first + 2});
    if (group.owned_ranks().empty()) continue;
    const auto shards = per_rank(group.owned_ranks(), [](int64_t r) {
      return std::vector<Shard>{Shard(at::empty({3}, at::TensorOptions().device(at::kMeta)),
                                      ShardMetadata({3 * (r / 2)}, {3}, "rank:" + std::to_string(r) + "/meta"))};
    });
    const ShardedTensor st = init_from_local_shards(shards, {6}, group);
    CHECK(st.sizes() == c10::IntArrayRef({6}));
    CHECK(st.is_meta());
    CHECK(st.metadata().shards_metadata.size() == 2);
  }
}

TEST_CASE("SG-2 placements from inside and from outside of a group") {
  const ProcessGroup group(test_world(), {1, 3});
  for (int64_t rank : {1, 3}) {
    for (int64_t at : {1, 3}) {
      const auto valid = validate_remote_device(
          group, rank, RemoteDevice("rank:" + std::to_string(at) + "/cuda:" + std::to_string(at % 2)));
      CHECK((valid.rank == at && valid.device == c10::Device(at::kCUDA, 1)));
    }
    CHECK_ERROR(c10::ValueError, "Global rank 0 does not exist in input process group: [1, 3]",
                validate_remote_device(group, rank, RemoteDevice("rank:0")));
  }
  CHECK(validate_remote_device(group, 0, RemoteDevice("rank:0")).rank == 0);  // outside the group it is not checked
}

}  // namespace
}  // namespace dtensor::sharded
