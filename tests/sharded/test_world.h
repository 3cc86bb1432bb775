// What tests share that run in both ways: all ranks in this process, and one rank per process.
//
// sharded_test and sharded_job_test are made of the same sources; the latter is started by tools/launch.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mesh/world.h"
#include "sharded/sharded.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/four_ranks.h"

namespace dtensor::sharded {

inline const World& test_world() { return testing::four_ranks(); }

// Its ranks.
inline const std::vector<int64_t> kAll = {0, 1, 2, 3};

// One entry per rank of a list, as group.owned_ranks().
template <typename F>
auto per_rank(const std::vector<int64_t>& ranks, F f) {
  std::vector<decltype(f(int64_t{}))> result;
  for (int64_t rank : ranks) result.push_back(f(rank));
  return result;
}

inline bool owns(int64_t rank) {
  const auto& owned = test_world().owned_ranks();
  return std::find(owned.begin(), owned.end(), rank) != owned.end();
}

inline std::string place(int64_t rank) { return "rank:" + std::to_string(rank) + "/cpu"; }

// A chunk spec with these ranks in order.
inline ChunkShardingSpec chunks(int64_t dim, const std::vector<int64_t>& ranks = kAll) {
  std::vector<RemoteDevice> placements;
  for (int64_t rank : ranks) placements.emplace_back(place(rank));
  return ChunkShardingSpec(dim, std::move(placements));
}

// Four 5x5 shards of a 10x10 tensor.
inline EnumerableShardingSpec grid(const std::vector<int64_t>& ranks = kAll) {
  std::vector<ShardMetadata> shards;
  for (int64_t i = 0; i < 4; ++i)
    shards.emplace_back(std::vector<int64_t>{i / 2 * 5, i % 2 * 5}, std::vector<int64_t>{5, 5}, place(ranks[i]));
  return EnumerableShardingSpec(std::move(shards));
}

inline at::Tensor window(const at::Tensor& whole, const ShardMetadata& md) {
  at::Tensor t = whole;
  for (size_t d = 0; d < md.shard_sizes.size(); ++d)
    t = t.narrow(static_cast<int64_t>(d), std::min(md.shard_offsets[d], whole.size(static_cast<int64_t>(d))),
                 md.shard_sizes[d]);
  return t;
}

// Whether every local shard is what the metadata says of `whole`, and the metadata say the same as the shards.
inline bool holds(const ShardedTensor& st, const at::Tensor& whole) {
  if (st.sizes() != whole.sizes() || st.dtype() != whole.scalar_type()) return false;
  for (int64_t rank : st.process_group().owned_ranks()) {
    size_t count = 0;
    for (const ShardMetadata& md : st.metadata().shards_metadata) count += md.placement->rank() == rank;
    if (st.local_shards(rank).size() != count) return false;
    for (const Shard& shard : st.local_shards(rank)) {
      const auto& all = st.metadata().shards_metadata;
      if (std::find(all.begin(), all.end(), shard.metadata) == all.end()) return false;
      if (!at::equal(shard.tensor.detach(), window(whole, shard.metadata))) return false;
    }
  }
  return true;
}

// 0, 1, 2, ... in a tensor of these sizes.
inline at::Tensor counted(c10::IntArrayRef sizes, c10::ScalarType dtype = at::kFloat) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return at::arange(numel, at::TensorOptions().dtype(dtype)).reshape(sizes);
}

// The text of the E that `f` throws; another error, or none, is a failure with what it was.
template <typename E, typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    const bool right = typeid(e) == typeid(E);
    return (right ? "" : std::string("of class ") + typeid(e).name() + ": ") + e.what_without_backtrace();
  } catch (const std::exception& e) {
    return std::string("std: ") + e.what();
  }
  return "nothing was thrown";
}

}  // namespace dtensor::sharded

// The class exactly, and a part of the text.
#define CHECK_ERROR(Class, text, ...)                                                          \
  do {                                                                                         \
    const std::string error_text_ = ::dtensor::sharded::error_of<Class>([&] { __VA_ARGS__; }); \
    CHECK_THAT(error_text_, Catch::Contains(text) && !Catch::StartsWith("of class"));          \
  } while (false)
