// The contents of a checkpoint as named tensors and settings: what a save reads, and where a load puts things.
// Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/sharded/manifest.h"

namespace dtensor {

struct NamedState {
  NamedTensors tensors;                             // themselves, no copies
  std::map<std::string, CheckpointValue> settings;  // options of optimizers, their counts of steps
};

// Errors (c10::Error): see save_checkpoint().
NamedState state_of(const CheckpointContents& contents);

// `given`, else the world of the first distributed tensor among them, which may be none. Looks no further: processes
// whose contents have a fault must be able to tell the others. Error (c10::Error): none of either in a process that is
// one of several of a job, which would save or load alone.
World world_of(const CheckpointContents& contents, const World& given);
// Error (c10::Error): the tensors are not all of `world`, or it is one without data.
void check_world(const NamedTensors& tensors, const World& world);

// Where what a checkpoint holds is put. Nothing of the contents changes before commit(), which fails, before it
// changes anything, where a random state is none alone; the
// tensors are filled by whoever reads them, between the two.
class LoadTargets {
 public:
  LoadTargets(CheckpointContents& contents, const Manifest& manifest);
  ~LoadTargets();

  // By name, those that the manifest has, of equal shape. States of optimizers that are not there yet are made.
  const NamedTensors& tensors() const { return tensors_; }
  const CheckpointMismatch& mismatch() const { return mismatch_; }
  void commit();

 private:
  struct NewState;
  using ParamNames = std::map<const c10::TensorImpl*, std::string>;
  void add(const std::string& name, const at::Tensor& target);
  template <typename T>
  void add_setting(const std::string& name, T* place);
  void add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer, const ParamNames& names);
  void add_state(const std::string& prefix, torch::optim::Optimizer& optimizer, const at::Tensor& param);

  CheckpointContents& contents_;
  const Manifest& manifest_;
  std::set<std::string> taken_;  // names that the contents ask for
  NamedTensors tensors_;
  std::vector<std::function<void()>> settings_;  // assignments
  std::vector<NewState> states_;
  NamedTensors made_;  // of contents_.tensors, where those are undefined
  at::Tensor random_state_;
  CheckpointMismatch mismatch_;
};

}  // namespace dtensor
