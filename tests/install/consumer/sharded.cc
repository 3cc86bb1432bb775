// Splits a tensor by ShardedTensor's public header, and gathers it.
#include "sharded/sharded.h"

#include <torch/torch.h>

#include <iostream>

#include "dtensor/dtensor.h"

using namespace dtensor;

int main() {
  const World world = World::local(2);
  const auto whole = torch::arange(6.).view({3, 2});
  auto st = sharded::shard_tensor(whole, sharded::ChunkShardingSpec(0, {"rank:0/cpu", "rank:1/cpu"}), world);
  auto gathered = torch::zeros({3, 2});
  st.gather(0, gathered);
  const bool same = torch::equal(gathered, whole);
  std::cout << st.local_tensor(0).sizes() << " " << (same ? "equal" : "different") << "\n";
  return same ? 0 : 1;
}
