// Splits a tensor by ShardedTensor's public header, and gathers it.
#include "sharded/sharded.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <iostream>

#include "dtensor/dtensor.h"

using namespace dtensor;

int main() {
  const World world = World::local(2);
  const auto whole = at::arange(6.).view({3, 2});
  auto st = sharded::shard_tensor(whole, sharded::ChunkShardingSpec(0, {"rank:0/cpu", "rank:1/cpu"}), world);
  auto gathered = at::zeros({3, 2});
  st.gather(0, gathered);
  const bool same = at::equal(gathered, whole);
  std::cout << st.local_tensor(0).sizes() << " " << (same ? "equal" : "different") << "\n";
  return same ? 0 : 1;
}
