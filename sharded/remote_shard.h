// Shards that other ranks hold, to be fetched without their owners' help (RRefs in PyTorch).
//
//   ShardService service(world, {"worker0", "worker1"});    // as torch.distributed.rpc.init_rpc, until its end
//   ShardedTensor st = rand(spec, {10, 20}, world, {.init_rrefs = true});
//   st.remote_shards(0).at(1)[0].to_here();                 // what rank 1 holds now
//
// Within one process the shards are read directly; between processes a thread of each serves them through the job's
// rendezvous store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/world.h"
#include "sharded/process_group.h"
#include "sharded/shard.h"

namespace dtensor::sharded {

struct ShardServiceState;  // remote_shard.cc

// While it lives, tensors of its world may have remote shards, and placements may contain workers' names. Collective,
// as is its end; one per world at a time.
class ShardService {
 public:
  // `names`: of the ranks that this process owns; by default "worker0" of rank 0, and so on. `ids`: the workers'
  // numbers, by default their ranks. Errors (c10::Error): a name twice, another service of this world, a world without
  // data or of processes that have no store.
  explicit ShardService(const World& world, std::vector<std::string> names = {}, std::vector<int64_t> ids = {});
  ~ShardService();
  ShardService(const ShardService&) = delete;
  ShardService& operator=(const ShardService&) = delete;

 private:
  std::shared_ptr<ShardServiceState> state_;
};

class RemoteShard {
 public:
  RemoteShard(World world, int64_t owner, int64_t tensor_id, int64_t index, ShardMetadata metadata);
  int64_t owner() const { return owner_; }
  const ShardMetadata& metadata() const { return metadata_; }
  // A copy of the shard as it is now, on this rank's device. Errors (c10::Error): the tensor is gone at its owner
  // ("Could not find sharded_tensor_id: ..."), the service has ended, the deadline of the job.
  Shard to_here() const;

 private:
  World world_;
  int64_t owner_ = 0, tensor_id_ = 0, index_ = 0;
  ShardMetadata metadata_;
};

// Rank of a placement: its own, or that of the worker it names. Errors: c10::Error "RPC framework needs to be
// initialized for using worker names: ..." without a service, ValueError "Invalid worker name: ...".
int64_t rank_of(const RemoteDevice& placement, const World& world);
// Checks a placement on `rank`. A rank outside the group does not check whether the placement's rank is in it. Errors
// (ValueError): "remote device is None", "Global rank 5 does not exist in input process group: [0, 1]"; and
// rank_of()'s.
struct RankAndDevice {
  int64_t rank = 0;
  c10::Device device;
};
RankAndDevice validate_remote_device(const ProcessGroup& group, int64_t rank,
                                     const std::optional<RemoteDevice>& placement);

// Tensors of this process that are registered now: with init_rrefs, and alive.
int64_t registered_count();

}  // namespace dtensor::sharded
