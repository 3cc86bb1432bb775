// Writes a checkpoint of parts for dcp_reads_test.py into the folder that is its argument: tensors whose elements count
// from 0, laid out in every way.
#include <ATen/ops/arange.h>

#include <string>

#include "checkpoint/checkpoint.h"
#include "dtensor/redistribute.h"

int main(int argc, char** argv) {
  using namespace dtensor;
  if (argc != 2) return 2;
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto counted = [](c10::ScalarType dtype) { return at::arange(77, dtype).view({11, 7}); };
  CheckpointContents contents;
  contents.random_state = false;
  contents.tensors = {
      {"rows", distribute_tensor(counted(at::kFloat), mesh, {Shard(0), Replicate()})},
      {"blocks", distribute_tensor(counted(at::kBFloat16), mesh, {Shard(0), Shard(1)})},
      {"nested", distribute_tensor(counted(at::kLong), mesh, {Shard(1), Shard(1)})},
      {"strided", distribute_tensor(counted(at::kDouble), mesh, {StridedShard(0, 2), Shard(0)})},
      {"replicated", distribute_tensor(counted(at::kHalf), mesh, {Replicate(), Replicate()})},
      {"plain", counted(at::kInt)},
  };
  save_checkpoint(argv[1], contents);
}
