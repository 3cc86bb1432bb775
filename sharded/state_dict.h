// Sharded tensors of modules by name; as bytes of each rank, and in checkpoints of a job.
//
//   NamedTensors dict = state_dict(model);                    // the parameters and buffers that are sharded, and the
//   others
//   std::vector<std::string> bytes = save_shards(dict, world);  // one string per owned rank
//   load_state_dict(other, load_shards(bytes, world));
//   save_checkpoint("run/step-1", model, world);              // of the job: loads onto other specs and numbers of
//   ranks
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/named_tensors.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// Parameters and buffers by path: the tensors themselves.
NamedTensors state_dict(const torch::nn::Module& module);
// Sharded values replace the parameter or buffer of their name, whatever it was (set_parameter()); plain ones are
// copied. Names missing on either side are skipped (strict=False). Errors (c10::ValueError), before anything is loaded:
// a plain value of other sizes, or for a sharded tensor.
void load_state_dict(torch::nn::Module& module, const NamedTensors& values);

// The shards of each owned rank of `world`, with the rank's position in world and groups; plain tensors whole. The
// format has a version; no communication.
std::vector<std::string> save_shards(const NamedTensors& tensors, const World& world);
// Sharded tensors of the group of LoadWithProcessGroup, else of all ranks. Errors (c10::Error): no world and no guard,
// "Need to initialize default process group ... before loading ShardedTensor"; then, where the place of a rank is
// another than when it was saved: "Local rank at save time was 1, but at load time was 0", "Global rank ...", "Local
// world size
// ...", "Global world size ..."; bytes that are damaged or of another version. On all ranks alike, none goes on.
NamedTensors load_shards(const std::vector<std::string>& bytes, const World& world);

// The group for tensors loaded on this thread until the end of the block. Error (c10::Error): 'ProcessGroup already set
// by previous "load_with_process_group" context manager'.
class LoadWithProcessGroup {
 public:
  explicit LoadWithProcessGroup(ProcessGroup group);
  ~LoadWithProcessGroup();
  LoadWithProcessGroup(const LoadWithProcessGroup&) = delete;
  LoadWithProcessGroup& operator=(const LoadWithProcessGroup&) = delete;
};

// Through checkpoint/checkpoint.h: the folder has whole tensors, so it may be read as DTensors or plain ones, too, and
// sharded tensors can load what any job saved. A load writes to the shards in place. Errors: of the functions there.
void save_checkpoint(const std::string& folder, const NamedTensors& tensors, const SaveCheckpointOptions& options = {});
void load_checkpoint(const std::string& folder, const NamedTensors& tensors, const LoadCheckpointOptions& options = {});

}  // namespace dtensor::sharded
