// Four ranks in this process look up rows of an embedding table that none of them holds whole.

#include <torch/nn.h>

#include <iostream>

#include "dtensor/dtensor.h"

using namespace dtensor;

int main() {
  auto world = World::local(4);                  // four ranks inside this process
  DeviceMesh mesh(world, {2, 2}, {"dp", "tp"});  // arranged 2 x 2

  torch::manual_seed(0);
  auto table = distribute_tensor(torch::randn({10, 6}), mesh, {Replicate(), Shard(0)});        // rows over tp
  auto ids = distribute_tensor(torch::arange(8).view({4, 2}), mesh, {Shard(0), Replicate()});  // batch over dp
  std::cout << DTensor(table);

  CommDebugMode comm;
  auto y = torch::embedding(table, ids);  // plain ATen, on distributed tensors
  std::cout << to_string(DTensor(y).placements()) << ", " << comm.total() << " collectives\n\n";

  const Placements target = {Shard(0), Replicate()};
  std::cout << plan_of(y, target).to_string() << "\n";
  auto whole = redistribute(y, target);  // one all-reduce over tp
  std::cout << comm << "\n";

  auto plain = torch::embedding(full_tensor(table), full_tensor(ids));
  std::cout << "equal to one device: " << std::boolalpha << torch::equal(full_tensor(whole), plain) << "\n";
}
