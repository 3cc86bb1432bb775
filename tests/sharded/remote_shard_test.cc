// Shards of other ranks, and workers by name.
#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

// Every rank sees the shards of all others as their owners have them.
void check_remote(const ShardedTensor& st, const at::Tensor& whole, const std::vector<int64_t>& counts) {
  for (int64_t rank : test_world().owned_ranks()) {
    if (!st.process_group().contains(rank)) continue;
    const auto remote = st.remote_shards(rank);
    CHECK(remote.count(rank) == 0);
    for (int64_t owner = 0; owner < 4; ++owner) {
      const size_t expected = owner == rank ? 0 : counts[owner];
      REQUIRE((remote.count(owner) == 0 ? 0 : remote.at(owner).size()) == expected);
      for (size_t i = 0; i < expected; ++i) {
        const RemoteShard& there = remote.at(owner)[i];
        CHECK(there.owner() == owner);
        const Shard here = there.to_here();
        CHECK(here.metadata.placement->rank() == owner);
        CHECK(here.metadata == there.metadata());
        CHECK(at::equal(here.tensor, window(whole, here.metadata)));
      }
    }
  }
  check_on_all_ranks(st.process_group(), "check_remote", [](int64_t) {});  // no tensor is freed before all have seen it
}

ShardedTensor with_rrefs(const at::Tensor& whole, const AnyShardingSpec& spec, const ProcessGroup& group) {
  const ShardedTensor st = empty(spec, whole.sizes().vec(), group, {.init_rrefs = true});
  for (int64_t rank : group.owned_ranks()) {
    for (Shard& shard : st.local_shards(rank)) shard.tensor.copy_(window(whole, shard.metadata));
  }
  check_on_all_ranks(group, "with_rrefs", [](int64_t) {});
  return st;
}

TEST_CASE("RR-1 remote shards of every kind of layout") {
  const ShardService service(test_world());
  const ProcessGroup all = test_world(), some(test_world(), {1, 2, 3});
  check_remote(with_rrefs(counted({10, 20}), chunks(0), all), counted({10, 20}), {1, 1, 1, 1});
  check_remote(with_rrefs(counted({10, 20}), chunks(0, {2, 3}), all), counted({10, 20}), {0, 0, 1, 1});
  check_remote(with_rrefs(counted({16, 20}), chunks(0, {0, 1, 2, 3, 0, 1, 2, 3}), all), counted({16, 20}),
               {2, 2, 2, 2});
  check_remote(with_rrefs(counted({10, 10}), grid(), all), counted({10, 10}), {1, 1, 1, 1});
  check_remote(with_rrefs(counted({10, 10}), grid({0, 1, 0, 1}), all), counted({10, 10}), {2, 2, 0, 0});
  if (!some.owned_ranks().empty())
    check_remote(with_rrefs(counted({10, 20}), chunks(0, {2, 3}), some), counted({10, 20}), {0, 0, 1, 1});
  const auto local = per_rank(test_world().owned_ranks(), [](int64_t r) {
    return std::vector<Shard>{Shard::from_tensor_and_offsets(window(counted({10, 10}), grid().shards()[r]).contiguous(),
                                                             grid().shards()[r].shard_offsets, r)};
  });
  check_remote(init_from_local_shards(local, {10, 10}, all, {.init_rrefs = true}), counted({10, 10}), {1, 1, 1, 1});
}

TEST_CASE("RR-1 a remote shard is read at the time of the request") {
  const ShardService service(test_world());
  const ShardedTensor st = with_rrefs(at::zeros({4, 2}), chunks(0), test_world());
  if (owns(3)) st.local_shards(3)[0].tensor.fill_(7);
  check_on_all_ranks(test_world(), "written", [](int64_t) {});
  if (owns(0)) {
    const RemoteShard there = st.remote_shards(0).at(3)[0];
    const at::Tensor here = there.to_here().tensor;
    CHECK(at::equal(here, at::full({1, 2}, 7)));
    here.fill_(8);  // a copy
    CHECK(at::equal(there.to_here().tensor, at::full({1, 2}, 7)));
  }
  check_on_all_ranks(test_world(), "read", [](int64_t) {});
}

TEST_CASE("RR-2 errors of remote shards") {
  const ShardedTensor plain = empty(chunks(0), {10, 20}, test_world());
  CHECK_ERROR(c10::Error, "ShardedTensor created with init_rrefs=False, no RRefs to remote shards available",
              plain.remote_shards(test_world().owned_ranks()[0]));
  CHECK_ERROR(c10::Error, "RPC Framework needs to be initialized",
              empty(chunks(0), {10, 20}, test_world(), {.init_rrefs = true}));
  {
    const auto other_ids = per_rank(test_world().owned_ranks(), [](int64_t r) { return (r + 1) % 4; });
    const ShardService service(test_world(), {}, other_ids);
    CHECK_ERROR(c10::ValueError,
                "Default ProcessGroup and RPC ranks must be the same for ShardedTensor, found process group rank: ",
                empty(chunks(0), {10, 20}, test_world(), {.init_rrefs = true}));
    CHECK_ERROR(c10::Error, "there is a shard service", ShardService{test_world()});
  }
  CHECK_ERROR(c10::Error, "RPC Framework needs to be initialized",
              empty(chunks(0), {10, 20}, test_world(), {.init_rrefs = true}));
  CHECK_ERROR(c10::Error, "none answers", ShardService{World::abstract(4)});
  std::optional<RemoteShard> gone;
  const ShardService service(test_world());
  {
    const ShardedTensor st = with_rrefs(at::zeros({4, 2}), chunks(0), test_world());
    const int64_t rank = test_world().owned_ranks()[0];
    gone = st.remote_shards(rank).at((rank + 1) % 4)[0];
  }
  check_on_all_ranks(test_world(), "gone", [](int64_t) {});
  CHECK_ERROR(c10::Error, "Could not find sharded_tensor_id: ", gone->to_here());
  check_on_all_ranks(test_world(), "asked", [](int64_t) {});
}

TEST_CASE("RR-3 workers by name") {
  const ChunkShardingSpec named(0, {"worker0/cpu", "worker1/cpu", "worker2", "worker3/cpu"});
  CHECK_ERROR(c10::Error, "RPC framework needs to be initialized for using worker names: worker0",
              empty(named, {10, 20}, test_world()));
  const ShardService service(test_world());
  const ShardedTensor st = ones(named, {10, 20}, test_world(), {.init_rrefs = true});
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(st.local_shards(rank).size() == 1);
    CHECK(st.local_shards(rank)[0].metadata.placement->str() == "worker" + std::to_string(rank) + "/cpu");
    CHECK(st.local_tensor(rank).sizes() == c10::IntArrayRef({rank < 3 ? 3 : 1, 20}));
    CHECK(at::equal(st.remote_shards(rank).at((rank + 1) % 4)[0].to_here().tensor,
                    at::ones({(rank + 1) % 4 < 3 ? 3 : 1, 20})));
  }
  CHECK_ERROR(c10::ValueError, "Invalid worker name: workerfoo",
              empty(ChunkShardingSpec(0, {"workerfoo/cpu"}), {10, 20}, test_world()));
  const ShardedTensor cut = shard_tensor(counted({10, 2}), named, test_world());
  for (int64_t rank : test_world().owned_ranks())
    CHECK(at::equal(cut.local_tensor(rank), window(counted({10, 2}), cut.metadata().shards_metadata[rank])));
  check_on_all_ranks(test_world(), "seen", [](int64_t) {});
}

TEST_CASE("RR-4 nothing is registered after the tensors are freed") {
  CHECK(registered_count() == 0);
  {
    const ShardService service(test_world());
    const ShardedTensor a = empty(chunks(0), {10, 20}, test_world(), {.init_rrefs = true});
    const ShardedTensor b = empty(chunks(0), {10, 20}, test_world());
    CHECK(registered_count() == 1);
    const ShardedTensor copy = a;
    CHECK(registered_count() == 1);
  }
  CHECK(registered_count() == 0);
}

}  // namespace
}  // namespace dtensor::sharded
