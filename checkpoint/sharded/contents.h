// The contents of a checkpoint as named tensors and settings: the source of a save, and the target of a load.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/sharded/manifest.h"

namespace dtensor::internal {

struct NamedState {
  NamedTensors tensors;                             // themselves, no copies
  std::map<std::string, CheckpointValue> settings;  // options of optimizers, their counts of steps
};

// Errors (c10::Error): see save_checkpoint().
NamedState state_of(const CheckpointContents& contents);

// `given`, else the world of the first distributed tensor among them, possibly none. Checks nothing else: processes
// with faulty contents must be able to report that to the others. Error (c10::Error): neither exists in a process of a
// job with several, which would save or load alone.
World world_of(const CheckpointContents& contents, const World& given);
// Error (c10::Error): the tensors do not all belong to `world`, or the world has no data.
void check_world(const NamedTensors& tensors, const World& world);

// The targets of a load. The contents do not change before commit(), which fails, before it changes anything, if a
// random state is invalid; the caller fills the tensors between construction and commit().
class LoadTargets {
 public:
  LoadTargets(CheckpointContents& contents, const Manifest& manifest);
  ~LoadTargets();

  // By name, those in the manifest, of equal shape. Missing states of optimizers are created.
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
  std::set<std::string> taken_;  // names that the contents use
  NamedTensors tensors_;
  std::vector<std::function<void()>> settings_;  // assignments
  std::vector<NewState> states_;
  NamedTensors made_;  // for undefined tensors in contents_.tensors
  at::Tensor random_state_;
  CheckpointMismatch mismatch_;
};

}  // namespace dtensor::internal
