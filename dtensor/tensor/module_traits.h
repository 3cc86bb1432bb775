// What dispatch() asks of the memory of a parameter or buffer because of its module. Functions for modules set it;
// views share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/mixed_precision.h"

namespace dtensor::internal {

class HookWatch;       // parallel/hook_watch.h
class LeafGroup;       // gradients/leaf_group.h
class ParameterGroup;  // parallel/parameter_group.h
struct LocalStorage;   // local_storage.h

// Which values of a parameter a tensor has that was cast from it.
struct CastOf {
  std::weak_ptr<LocalStorage> memory;       // of the parameter
  uint64_t writes = 0;                      // to that memory, before the cast
  int64_t offset = 0;                       // of the tensor's first element there, in elements
  std::shared_ptr<const std::string> name;  // of the parameter, or null
};

struct ModuleTraits {
  // Hooks that should run before an operator computes with the tensor; a nested module is watched for itself and for
  // the outer one.
  std::vector<std::shared_ptr<HookWatch>> hook_watches;
  std::shared_ptr<ParameterGroup> group;    // of fully_shard(): gathered together; null: none
  std::shared_ptr<const LeafGroup> leaves;  // of the same parameters: whose gradients are reduced together
  bool offload = false;                     // by fully_shard(): data that it gets later is in host memory
  MixedPrecision mixed_precision = {};      // of a parameter: of its group, or by parallelize_module()
  // Of a tensor that was cast from a parameter of `group`; nullopt: it is a parameter.
  std::optional<CastOf> cast_of = std::nullopt;
};

// Sets the traits of `t`'s memory to a copy that `change` was applied to. REQUIRES: is_dtensor(t).
void change_module_traits(const at::Tensor& t, const std::function<void(ModuleTraits&)>& change);
// That of the memory of `t`, a parameter. REQUIRES: is_dtensor(t).
MixedPrecision mixed_precision_of(const at::Tensor& t);
// Copies traits, style and gradient bucket of `from`, if it is distributed, to the memory of `to`, if that has none but
// those of a cast.
// A cast hands on none. REQUIRES: is_dtensor(to).
void keep_module_traits(const at::Tensor& from, const at::Tensor& to);

}  // namespace dtensor::internal
