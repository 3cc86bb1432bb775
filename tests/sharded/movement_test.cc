// gather, reshard, the bridge to DTensors, and moves to other dtypes and devices.
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribute_parts.h"
#include "observe/comm_debug_mode.h"
#include "plan/spec.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/property.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using Numbers = std::vector<int64_t>;

std::vector<Numbers> all_orders() {
  std::vector<Numbers> orders;
  Numbers order = {0, 1, 2, 3};
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

ShardedTensor of(const at::Tensor& whole, const AnyShardingSpec& spec, const ProcessGroup& group = test_world()) {
  return spec.as<ChunkShardingSpec>() ? shard_tensor(whole, spec, group)
                                      : shard_tensor(whole, chunks(0, {group.ranks()[0]}), group).resharded(spec);
}

void check_gather(const ShardedTensor& st, const at::Tensor& whole, int64_t dst) {
  const int64_t target = st.process_group().ranks()[dst];
  at::Tensor out;
  if (owns(target)) out = at::full_like(whole, 77);
  st.gather(dst, out);
  if (owns(target)) CHECK(at::equal(out, whole));
}

TEST_CASE("GA-1 the whole value on one rank") {
  check_gather(of(counted({10, 20}), chunks(0)), counted({10, 20}), 1);
  check_gather(of(counted({10, 21}), chunks(1, {3, 0, 2, 1})), counted({10, 21}), 2);
}

TEST_CASE("GA-2 several chunks on some ranks, none on another") {
  check_gather(of(counted({10, 20}), chunks(0, {0, 0, 1, 1, 2})), counted({10, 20}), 1);
  check_gather(of(counted({10, 20}), chunks(0, {0, 0, 1, 1, 2})), counted({10, 20}), 3);
}

TEST_CASE("GA-3 grids") {
  check_gather(of(counted({10, 10}), grid()), counted({10, 10}), 0);
  check_gather(of(counted({10, 10}), grid({0, 1, 0, 3})), counted({10, 10}), 0);
}

TEST_CASE("GA-4 where the result goes") {
  const ShardedTensor st = of(counted({10, 20}), chunks(0));
  CHECK_ERROR(c10::ValueError, "Argument ``dst_tensor`` must be specified on destination rank 1", st.gather(1));
  const auto out_on_1 = [](const at::Tensor& t) { return owns(1) ? t : at::Tensor(); };
  CHECK_ERROR(c10::ValueError, "Argument ``dst_tensor`` have size [10, 19],but should be [10, 20]",
              st.gather(1, out_on_1(at::zeros({10, 19}))));
  if (testing::is_job())
    CHECK_ERROR(c10::ValueError, "Argument ``dst_tensor`` must NOT be specified on non-destination ranks.",
                st.gather(1, at::zeros({10, 20})));
  CHECK_ERROR(c10::ValueError, "dst=4 of a group of 4 ranks", st.gather(4));
}

TEST_CASE("GA-5 values are kept in all dtypes (trap T5)") {
  const at::Tensor large = counted({5, 4}, at::kLong) + (int64_t{1} << 40);
  check_gather(of(large, chunks(0)), large, 1);
  const at::Tensor fine = counted({5, 4}, at::kDouble) / 3;
  check_gather(of(fine, chunks(0)), fine, 0);
  at::Tensor out = owns(0) ? at::zeros({5, 4}, at::kDouble) : at::Tensor();
  of(fine, chunks(0)).gather(0, out, at::kFloat);
  if (owns(0)) CHECK(at::equal(out, fine.to(at::kFloat).to(at::kDouble)));
}

TEST_CASE("GA-6 empty shards, and a group whose ranks exceed its size (trap T5)") {
  check_gather(of(counted({2, 3}), chunks(0)), counted({2, 3}), 3);
  check_gather(of(counted({0, 3}), chunks(0)), counted({0, 3}), 0);
  const ProcessGroup group(test_world(), {2, 3});
  check_gather(of(counted({5, 3}), chunks(0, {3, 2}), group), counted({5, 3}), 1);
}

TEST_CASE("RS-1 from any order of the ranks to any other, 24 x 24 (trap T4)") {
  const at::Tensor whole = counted({13, 21});
  const auto orders = all_orders();
  int wrong = 0;
  for (const Numbers& from : orders) {
    const ShardedTensor source = of(whole, chunks(0, from));
    for (const Numbers& to : orders) {
      const ShardedTensor st = clone(source);
      st.reshard(chunks(0, to));
      wrong += !holds(st, whole) || st.sharding_spec() != AnyShardingSpec(chunks(0, to));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("RS-1 the sixteen cases") {
  struct Row {
    int64_t dim, new_dim;
    Numbers order, new_order;
  };
  const Row rows[] = {{0, 0, {0, 1, 3, 2}, {2, 3, 1, 0}},
                      {0, 1, {2, 3, 0, 1}, {1, 0, 3, 2}},
                      {1, 0, {1, 0, 2, 3}, {3, 2, 0, 1}},
                      {1, 1, {3, 2, 1, 0}, {0, 1, 2, 3}}};
  for (const Row& row : rows) {
    for (const Numbers& size : {Numbers{13, 21}, Numbers{14, 23}, Numbers{15, 26}, Numbers{12, 24}}) {
      at::manual_seed(0);
      const at::Tensor whole = at::rand(size);
      const ShardedTensor st = of(whole, chunks(row.dim, row.order));
      const ShardedTensor direct = of(whole, chunks(row.new_dim, row.new_order));
      st.reshard(chunks(row.new_dim, row.new_order));
      CHECK(holds(st, whole));
      for (int64_t rank : test_world().owned_ranks()) {
        REQUIRE(st.local_shards(rank).size() == 1);
        CHECK(at::equal(st.local_tensor(rank), direct.local_tensor(rank)));
        CHECK(st.local_shards(rank)[0].metadata == direct.local_shards(rank)[0].metadata);
      }
    }
  }
}

TEST_CASE("RS-1 from any chunks to any other, and to lists") {
  REQUIRE(testing::holds("resharding is slicing", 150, [] {
    const auto chunk_spec = [](int64_t ndim) {
      Numbers ranks(testing::draw(1, 7));
      for (int64_t& r : ranks) r = testing::draw(0, 3);
      return chunks(testing::draw(-ndim, ndim - 1), ranks);
    };
    const int64_t ndim = testing::draw(1, 3);
    Numbers size(ndim);
    for (int64_t& s : size) s = testing::draw(0, 9);
    const at::Tensor whole = counted(size, at::kLong);
    const ShardedTensor a = shard_tensor(whole, chunk_spec(ndim), test_world());
    RC_ASSERT(holds(a, whole));
    const ShardedTensor b = a.resharded(chunk_spec(ndim));
    RC_ASSERT(holds(b, whole));
    // A list: rows of one dim, of random heights, on random ranks.
    std::vector<ShardMetadata> shards;
    for (int64_t row = 0; row < size[0];) {
      const int64_t height = testing::draw(1, size[0] - row);
      Numbers offsets(ndim, 0), sizes = size;
      offsets[0] = row;
      sizes[0] = height;
      shards.emplace_back(offsets, sizes, place(testing::draw(0, 3)));
      row += height;
    }
    if (shards.empty()) return;
    const ShardedTensor c = b.resharded(EnumerableShardingSpec(shards));
    RC_ASSERT(holds(c, whole));
    RC_ASSERT(holds(c.resharded(a.sharding_spec()), whole));
  }));
}

TEST_CASE("RS-2 resharding to the same spec does nothing") {
  const ShardedTensor st = of(counted({13, 21}), chunks(0));
  const auto before = per_rank(test_world().owned_ranks(), [&](int64_t r) { return st.local_tensor(r); });
  CommDebugMode comm;
  CHECK(st.reshard(chunks(0)).is_same(st));
  CHECK(st.reshard(chunks(-2)).is_same(st));
  for (size_t i = 0; i < before.size(); ++i) CHECK(st.local_tensor(test_world().owned_ranks()[i]).is_same(before[i]));
  CHECK(comm.count(Collective::kAllToAll) == 0);
  // A tensor of its own, also where nothing moves.
  const ShardedTensor other = st.resharded(chunks(0));
  for (int64_t rank : test_world().owned_ranks()) other.local_shards(rank)[0].tensor.fill_(-1);
  CHECK(holds(st, counted({13, 21})));
}

TEST_CASE("trap T13: dims -1 and 1 are the same spec to reshard()") {
  const ShardedTensor st = of(counted({13, 21}), chunks(1));
  const auto before = per_rank(test_world().owned_ranks(), [&](int64_t r) { return st.local_tensor(r); });
  st.reshard(chunks(-1));
  for (size_t i = 0; i < before.size(); ++i) CHECK(st.local_tensor(test_world().owned_ranks()[i]).is_same(before[i]));
  st.reshard(chunks(-2));
  CHECK(holds(st, counted({13, 21})));
  CHECK(st.metadata().shards_metadata[1].shard_offsets == Numbers{4, 0});
}

TEST_CASE("RS-3 metadata in the order of the ranks, offsets that add up") {
  const ShardedTensor st = of(counted({13, 5}), chunks(0));
  st.reshard(chunks(1, {3, 1, 0, 2}));  // 5 over 4: 2, 2, 1, 0
  const auto& shards = st.metadata().shards_metadata;
  REQUIRE(shards.size() == 4);
  CHECK(shards[0] == ShardMetadata({0, 4}, {13, 1}, place(0)));
  CHECK(shards[1] == ShardMetadata({0, 2}, {13, 2}, place(1)));
  CHECK(shards[2] == ShardMetadata({0, 5}, {13, 0}, place(2)));  // not 6, where a chunk spec has it (trap T6)
  CHECK(shards[3] == ShardMetadata({0, 0}, {13, 2}, place(3)));
  CHECK(holds(st, counted({13, 5})));
  st.reshard(chunks(0, {1, 2, 3, 0}));
  CHECK(holds(st, counted({13, 5})));
}

TEST_CASE("RS-4 what reshard() rejects") {
  CHECK_ERROR(c10::NotImplementedError, "Only ChunkShardingSpec supported for reshard.",
              of(counted({10, 10}), chunks(0)).reshard(grid()));
  CHECK_ERROR(c10::NotImplementedError, "Only ChunkShardingSpec supported for reshard.",
              of(counted({10, 10}), grid()).reshard(chunks(0)));
  CHECK_ERROR(c10::NotImplementedError, "Only single local shard supported for reshard.",
              of(counted({10, 10}), chunks(0, {0, 1, 2, 3, 0, 1, 2, 3})).reshard(chunks(0)));
  CHECK_ERROR(c10::ValueError, "Invalid sharding dim: 2", of(counted({10, 10}), chunks(0)).reshard(chunks(2)));
}

TEST_CASE("RS-5 dtypes are kept, and gradients return to the shards") {
  for (auto dtype : {at::kDouble, at::kLong, at::kHalf}) {
    const ShardedTensor st = of(counted({5, 6}, dtype), chunks(0));
    CHECK(holds(st.reshard(chunks(1)), counted({5, 6}, dtype)));
  }
  // The gradient of an element is its place in the whole tensor.
  const at::Tensor weights = counted({13, 21});
  for (const AnyShardingSpec& to :
       {AnyShardingSpec(chunks(1, {2, 0, 3, 1})), AnyShardingSpec(chunks(0, {1, 0, 3, 2}))}) {
    const ShardedTensor st = of(at::rand({13, 21}).set_requires_grad(true), chunks(0));
    const auto leaves = per_rank(test_world().owned_ranks(), [&](int64_t r) { return st.local_shards(r)[0]; });
    st.reshard(to);
    at::Tensor loss = at::zeros({});
    for (int64_t rank : test_world().owned_ranks())
      loss = loss + (st.local_tensor(rank) * window(weights, st.local_shards(rank)[0].metadata)).sum();
    loss.backward();
    for (const Shard& leaf : leaves) {
      CHECK(leaf.tensor.is_leaf());
      CHECK(at::equal(leaf.tensor.grad(), window(weights, leaf.metadata)));
    }
  }
}

TEST_CASE("RS-5 a process that only gives shards gets an error, since it could not call backward") {
  const at::Tensor weights = counted({12, 3});
  const auto give = [&](const std::vector<int64_t>& to) {
    const ShardedTensor st = of(at::rand({12, 3}).set_requires_grad(true), chunks(0));
    const ShardedTensor moved = st.resharded(chunks(0, to));
    at::Tensor loss;
    for (int64_t rank : test_world().owned_ranks()) {
      for (const Shard& shard : moved.local_shards(rank)) {
        const at::Tensor part = (shard.tensor * window(weights, shard.metadata)).sum();
        loss = loss.defined() ? loss + part : part;
      }
    }
    loss.backward();
    for (int64_t rank : test_world().owned_ranks()) {
      for (const Shard& leaf : st.local_shards(rank))
        CHECK(at::equal(leaf.tensor.grad(), window(weights, leaf.metadata)));
    }
  };
  if (!testing::is_job()) return give({0, 2});
  CHECK_ERROR(c10::ValueError, "rank 1 holds parts that require grad and gets none", give({0, 2}));
  give({3, 2, 1, 0});
  const at::NoGradGuard no_grad;
  const ShardedTensor values = of(at::rand({12, 3}), chunks(0));
  CHECK(values.resharded(chunks(0, {0, 2})).sharding_spec().defined());
}

TEST_CASE("RS-5 gradients through ranks without shards and to several shards") {
  const at::Tensor weights = counted({12, 3});
  const ShardedTensor st = of(at::rand({12, 3}).set_requires_grad(true), chunks(0, {0, 1, 0}));
  const ShardedTensor moved = st.resharded(chunks(1, {0, 1, 2, 3}));  // column 3 of 3 is empty, on rank 3
  at::Tensor loss = at::zeros({});
  for (int64_t rank : test_world().owned_ranks())
    loss = loss + (moved.local_tensor(rank) * window(weights, moved.local_shards(rank)[0].metadata)).sum();
  loss.backward();
  for (int64_t rank : test_world().owned_ranks()) {
    for (const Shard& leaf : st.local_shards(rank))
      CHECK(at::equal(leaf.tensor.grad(), window(weights, leaf.metadata)));
  }
}

TEST_CASE("MV-1 to the CPU") {
  const ShardedTensor st = zeros(chunks(0), {10, 20}, test_world());
  CHECK(st.cpu().is_same(st));
  if (!at::hasCUDA()) WARN("SKIPPED: no GPU for the moves; what is on the CPU was tested");
}

TEST_CASE("MV-2 to the GPU") {
  if (!at::hasCUDA()) {
    WARN("SKIPPED: no GPU");
    return;
  }
  const ShardedTensor st = of(counted({10, 20}), chunks(0));
  const ShardedTensor moved = st.cuda();
  CHECK(!moved.is_same(st));
  CHECK(moved.metadata().shards_metadata[1].placement->device().is_cuda());
  CHECK(moved.sharding_spec().as<ChunkShardingSpec>() != nullptr);
  const ShardedTensor again = moved.cuda();
  CHECK(!again.is_same(moved));
  for (int64_t rank : test_world().owned_ranks()) CHECK(again.local_tensor(rank).is_alias_of(moved.local_tensor(rank)));
  CHECK(holds(moved.cpu(), counted({10, 20})));
}

TEST_CASE("MV-3 to another dtype or group") {
  const ShardedTensor st = of(counted({10, 20}), chunks(0));
  CHECK(st.to({.dtype = at::kFloat}).is_same(st));
  CHECK(st.to({.device = c10::Device("cpu")}).is_same(st));
  CHECK(st.to({.device = c10::Device("cpu"), .dtype = at::kFloat}).is_same(st));
  const ShardedTensor copy = st.to({.copy = true});
  CHECK(!copy.is_same(st));
  for (int64_t rank : test_world().owned_ranks()) CHECK(!copy.local_tensor(rank).is_alias_of(st.local_tensor(rank)));
  CHECK(holds(copy, counted({10, 20})));
  for (const ShardedTensor& half :
       {st.to({.dtype = at::kHalf}), st.to(MoveOptions::like(at::zeros({1}, at::kHalf))),
        st.to(MoveOptions::from_values({c10::IValue("cpu"), c10::IValue(static_cast<int64_t>(at::kHalf))})),
        ShardedTensor(st.tensor().to(at::kHalf))}) {
    CHECK(!half.is_same(st));
    CHECK(half.dtype() == at::kHalf);
    CHECK(half.tensor().scalar_type() == at::kHalf);
    CHECK(half.sharding_spec() == st.sharding_spec());
    CHECK(holds(half, counted({10, 20}, at::kHalf)));
  }
  const ShardedTensor trained = ones(chunks(0), {10, 20}, test_world(), {.requires_grad = true});
  CHECK(trained.to({.dtype = at::kDouble}).requires_grad());
  CHECK_FALSE(trained.to({.dtype = at::kLong}).requires_grad());  // integers have no gradients
  const ProcessGroup other(test_world(), {0, 1, 2, 3}, "other");
  const ShardedTensor in_other = st.to({.device = c10::Device("cpu"), .group = other});
  CHECK(in_other.process_group() == other);
  CHECK(in_other.process_group() != st.process_group());
  CHECK(holds(in_other, counted({10, 20})));
}

TEST_CASE("MV-4 invalid arguments") {
  const ShardedTensor st = zeros(chunks(0), {10, 20}, test_world());
  const char* const format = "Only `torch.contiguous_format` or `torch.preserve_format` is supported!";
  CHECK_ERROR(c10::Error, format, st.cpu({}, c10::MemoryFormat::ChannelsLast));
  CHECK_ERROR(c10::Error, format, st.to({.memory_format = c10::MemoryFormat::ChannelsLast}));
  CHECK_ERROR(c10::Error, format, st.cuda(std::nullopt, {}, c10::MemoryFormat::ChannelsLast));
  for (const std::vector<c10::IValue>& bad : {std::vector<c10::IValue>{},
                                              {c10::IValue()},
                                              {c10::IValue("cpu"), c10::IValue("cpu")},
                                              {c10::IValue("cpu"), 5, 6}})
    CHECK_ERROR(c10::Error, "ShardedTensor.to() have wrong arguments: ", MoveOptions::from_values(bad));
}

TEST_CASE("bridge: chunks, one per rank, are placements") {
  for (const Numbers& order : {Numbers{0, 1, 2, 3}, Numbers{2, 0, 3, 1}, Numbers{3, 1}}) {
    for (int64_t dim : {0, -1}) {
      const ShardedTensor st = of(counted({5, 7}), chunks(dim, order));
      const at::Tensor d = to_dtensor(st);
      CHECK(DTensor(d).placements() == Placements{dtensor::Shard(dim == 0 ? 0 : 1)});
      CHECK(DTensor(d).mesh().ranks() == order);
      for (size_t i = 0; i < DTensor(d).mesh().local_ranks().size(); ++i)
        CHECK(
            DTensor(d).local(static_cast<int64_t>(i)).is_alias_of(st.local_tensor(DTensor(d).mesh().local_ranks()[i])));
      const ShardedTensor back = from_dtensor(d);
      CHECK(holds(back, counted({5, 7})));
      CHECK(back.sharding_spec() == AnyShardingSpec(chunks(dim == 0 ? 0 : 1, order)));
      if (order.size() == 4) CHECK(at::equal(full_tensor(d), counted({5, 7})));
    }
  }
}

TEST_CASE("bridge: grids are placements on a mesh of two dims") {
  const ShardedTensor st = of(counted({10, 10}), grid({3, 0, 1, 2}));
  const at::Tensor d = to_dtensor(st);
  CHECK(DTensor(d).placements() == Placements{dtensor::Shard(0), dtensor::Shard(1)});
  CHECK(DTensor(d).mesh().ranks() == Numbers{3, 0, 1, 2});
  CHECK(at::equal(full_tensor(d), counted({10, 10})));
  const ShardedTensor back = from_dtensor(d);
  CHECK(back.sharding_spec() == AnyShardingSpec(grid({3, 0, 1, 2})));
  CHECK(holds(back, counted({10, 10})));
}

TEST_CASE("bridge: layouts without placements go through boxes") {
  const AnyShardingSpec irregular[] = {
      AnyShardingSpec(chunks(0, {0, 1, 0, 3})), AnyShardingSpec(grid({0, 1, 0, 3})),
      AnyShardingSpec(EnumerableShardingSpec(
          {ShardMetadata({0, 0}, {1, 10}, place(2)), ShardMetadata({1, 0}, {9, 10}, place(1))}))};
  const DeviceMesh mesh(test_world(), {2, 2}, {"a", "b"});
  for (const AnyShardingSpec& spec : irregular) {
    const ShardedTensor st = of(counted({10, 10}), spec);
    CHECK_ERROR(c10::ValueError, "cannot be said as placements: give a mesh", to_dtensor(st));
    for (const Placements& placements :
         {Placements{dtensor::Shard(1), Replicate()}, Placements{Replicate(), Replicate()},
          Placements{dtensor::Shard(0), dtensor::Shard(0)}}) {
      const at::Tensor d = to_dtensor(st, mesh, placements);
      CHECK(DTensor(d).placements() == placements);
      CHECK(at::equal(full_tensor(d), counted({10, 10})));
      const ShardedTensor back = from_dtensor(d, spec);
      CHECK(holds(back, counted({10, 10})));
      CHECK(back.sharding_spec() == spec);
    }
  }
  CHECK_ERROR(c10::ValueError, "is not cut along mesh dim 'b'",
              from_dtensor(distribute_tensor(counted({10, 10}), mesh, {dtensor::Shard(0), Replicate()})));
}

TEST_CASE("bridge: shards get gradients") {
  const DeviceMesh mesh(test_world(), {4}, {"x"});
  for (const AnyShardingSpec& spec :
       {AnyShardingSpec(chunks(0, {1, 0, 3, 2})), AnyShardingSpec(chunks(0, {0, 1, 0, 3}))}) {
    const ShardedTensor st = of(at::rand({10, 4}).set_requires_grad(true), spec);
    const at::Tensor d = placements_of(st) ? to_dtensor(st) : to_dtensor(st, mesh, {dtensor::Shard(1)});
    const at::Tensor w = distribute_tensor(counted({10, 4}), DTensor(d).mesh(), DTensor(d).placements());
    (d * w).sum().backward();
    for (int64_t rank : test_world().owned_ranks()) {
      for (const Shard& shard : st.local_shards(rank))
        CHECK(at::equal(shard.tensor.grad(), window(counted({10, 4}), shard.metadata)));
    }
  }
}

TEST_CASE("parts in boxes: from a DTensor and back, with gradients") {
  const World& world = test_world();
  const DeviceMesh mesh(world, {4}, {"x"});
  const Layout uneven(
      world, {{0, {0, 0}, {1, 8}}, {2, {1, 0}, {3, 8}}, {2, {4, 0}, {4, 3}}, {1, {4, 3}, {2, 5}}, {3, {6, 3}, {2, 5}}});
  at::Tensor x = distribute_tensor(counted({8, 8}), mesh, {dtensor::Shard(0)});
  x.set_requires_grad(true);
  const RankPieces parts = to_parts(x, uneven);
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t rank = world.owned_ranks()[i];
    REQUIRE(parts[i].size() == (rank == 2 ? 2 : 1));
    for (const at::Tensor& part : parts[i]) loss = loss + (part * part).sum() / 2;
    if (rank == 2) CHECK(at::equal(parts[i][1].detach(), counted({8, 8}).narrow(0, 4, 4).narrow(1, 0, 3)));
  }
  const at::Tensor y =
      from_parts(parts, {8, 8}, at::kFloat, uneven, mesh, {dtensor::Shard(1)}, {.requires_grad = true});
  CHECK(at::equal(full_tensor(y).detach(), counted({8, 8})));
  (y * y).sum().mul(0.5).backward();
  CHECK(at::equal(full_tensor(x.grad()), counted({8, 8})));
  const Layout overlapping(world, {{0, {0, 0}, {8, 8}}, {1, {0, 0}, {8, 8}}});
  CHECK_NOTHROW(to_parts(x.detach(), overlapping));
  CHECK_THROWS_WITH(redistribute_parts(to_parts(x.detach(), overlapping), {8, 8}, at::kFloat, overlapping, uneven),
                    Catch::Contains("overlaps"));
}

}  // namespace
}  // namespace dtensor::sharded
