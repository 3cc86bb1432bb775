// Checkpoints of a job: a folder that every rank writes its own parts to, and that any other job reads.
//
//   save_checkpoint("run/step-100", {.modules = {{"model", &*model}}, .optimizers = {{"optimizer", &adam}},
//                                    .values = {{"step", 100}}});
//
//   CheckpointContents contents{.modules = {{"model", &*model}}, .optimizers = {{"optimizer", &adam}}};
//   load_checkpoint("run/step-100", contents);  // other meshes, layouts, numbers of processes; or no mesh at all
//   const int64_t step = std::get<int64_t>(contents.values.at("step"));
//
// No rank ever holds a whole tensor that is sharded; what several ranks hold is written once, by one of them. The parts
// lie in safetensors files; checkpoint.json, which says where, is written last and replaced in one step, so that a
// folder holds the checkpoint before or the one after, whenever a process dies. Loading reads the byte ranges that a
// rank needs, verifies their checksums on every rank, and only then changes anything.
//
// Both are collective: all processes call them with the same contents, one after the other as with any collective, and
// an error of one of them is an error of all that names its rank. The folder is one that all processes see. Plain
// tensors are taken to be equal on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/serialize.h"
#include "mesh/world.h"

namespace dtensor {

using CheckpointValue = std::variant<bool, int64_t, double, std::string>;

// The contents to save, or to change by a load. Names are joined with '.': parameter weight of child "0" of
// modules["model"] is "model.0.weight", its state in optimizers["optimizer"] "optimizer.model.0.weight.exp_avg". The
// modules and optimizers stay the caller's and must live as long as the call (the save, if it is asynchronous, reads
// them before it returns).
struct CheckpointContents {
  std::map<std::string, torch::nn::Module*> modules = {};
  // SGD, Adam, AdamW, Adagrad, RMSprop, whose parameters are those of the modules. Their options are saved, too.
  std::map<std::string, torch::optim::Optimizer*> optimizers = {};
  NamedTensors tensors = {};                           // plain or distributed; loaded in place
  std::map<std::string, CheckpointValue> values = {};  // the step, a scheduler's count; a load puts the file's here
  // State of the CPU's default generator, assumed to be the same on all ranks, like plain tensors.
  bool random_state = true;
};

struct CheckpointProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;  // that this process writes, or reads: files are verified by the MiB
};

struct SaveCheckpointOptions {
  // By default that of the distributed tensors. Without any, a process that is one of a job says whose: the job's
  // world, or World::local(1) for this process alone.
  World world = {};
  // Called now and then, from the thread that writes.
  std::function<void(const CheckpointProgress&)> progress = {};
};

// Errors (c10::Error): a name twice; a Partial tensor, whose addends would have to be reduced first; tensors of two
// worlds; NotImplementedError for a world without data, another optimizer, a dtype that safetensors lacks; a folder or
// file that cannot be written, by path and rank; another save to this folder is under way. After an error the folder
// holds the checkpoint that it held before.
void save_checkpoint(const std::string& folder, const CheckpointContents& contents,
                     const SaveCheckpointOptions& options = {});

// A save that is being written by a thread of its own while training goes on.
class PendingCheckpoint {
 public:
  PendingCheckpoint(PendingCheckpoint&&) noexcept;
  PendingCheckpoint& operator=(PendingCheckpoint&&) noexcept;
  // Without wait(): written files are removed, and the folder keeps its previous contents. A forked process' copy has
  // no effect on its parent's save.
  ~PendingCheckpoint();

  // Whether this process has written its part, so that wait() would only wait for the others.
  bool written() const;
  // Collective, once. The checkpoint is there when it returns. Errors: those of save_checkpoint().
  void wait();
  // For loops that poll: wait() if all processes have written their part, else false at once. Collective: every process
  // calls it in the same step, and all get the same answer, by an exchange of a few bytes. True means that the
  // checkpoint is complete, also in later calls. Errors: as wait().
  //
  //   if (pending && pending->try_commit()) pending.reset();
  bool try_commit();

 private:
  struct State;
  explicit PendingCheckpoint(std::unique_ptr<State> state);
  friend void save_checkpoint(const std::string&, const CheckpointContents&, const SaveCheckpointOptions&);
  friend PendingCheckpoint save_checkpoint_async(const std::string&, const CheckpointContents&,
                                                 const SaveCheckpointOptions&);
  std::unique_ptr<State> state_;
};

// Copies the data that this process writes, begins to write it, and returns; training may then continue. Collective.
PendingCheckpoint save_checkpoint_async(const std::string& folder, const CheckpointContents& contents,
                                        const SaveCheckpointOptions& options = {});

// Mismatches between the contents and the checkpoint.
struct CheckpointMismatch {
  std::vector<std::string> missing;     // in the contents, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not in the contents
  std::vector<std::string> reshaped;    // "model.0.weight: [4, 6] in the checkpoint, [4, 8] here"

  bool any() const { return !missing.empty() || !unexpected.empty() || !reshaped.empty(); }
  std::string to_string() const;
};

struct LoadCheckpointOptions {
  World world = {};    // as of a save
  bool strict = true;  // a mismatch is an error; else it is returned, and matching entries are loaded
  bool verify = true;  // checksums of the data that is read
  // Called from time to time, in a job from another thread.
  std::function<void(const CheckpointProgress&)> progress = {};
};

// Parameters, buffers and tensors keep layout, dtype and identity; states of optimizers become distributed like their
// parameters. Errors (c10::Error), after which everything is unchanged: no checkpoint; a file that is missing, cut off
// or damaged, by tensor, file and rank; processes that see different checkpoints; with `strict` any mismatch; a target
// that cannot take the values. A later failure, while verified values are copied (a device without memory), leaves the
// contents undefined; the error says so.
CheckpointMismatch load_checkpoint(const std::string& folder, CheckpointContents& contents,
                                   const LoadCheckpointOptions& options = {});

}  // namespace dtensor
