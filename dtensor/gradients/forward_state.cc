#include "dtensor/gradients/forward_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "comm/scope.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

std::vector<at::Generator> generators_for(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Generator> result = {at::globalContext().defaultGenerator(c10::DeviceType::CPU)};
  for (const at::Tensor& t : inputs) {
    if (!t.defined() || t.is_cpu() || t.is_meta()) continue;
    if (is_dtensor(t) && meta_without_sync(t).locals.empty()) continue;  // an abstract world needs no device
    const at::Generator& own = at::globalContext().defaultGenerator(t.device());
    if (std::find(result.begin(), result.end(), own) == result.end()) result.push_back(own);
  }
  return result;
}

}  // namespace

ForwardState::ForwardState(const std::vector<at::Tensor>& inputs)
    : generators_(generators_for(inputs)),
      generator_states_(copies_of_generators()),
      scope_(current_dispatch_scope()),
      module_path_(current_scope().module_path) {
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) autocast_.push_back(autocast_of(device));
}

ForwardState::Autocast ForwardState::autocast_of(c10::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void ForwardState::set(const Autocast& autocast) {
  at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
  at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
}

std::vector<at::Generator> ForwardState::copies_of_generators() const {
  const PlainFactories plain;
  std::vector<at::Generator> result;
  for (at::Generator generator : generators_) {
    std::lock_guard lock(generator.mutex());
    result.push_back(generator.clone());
  }
  return result;
}

void ForwardState::set_generators(const std::vector<at::Generator>& states) const {
  const PlainFactories plain;
  for (size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];
    std::lock_guard lock(generator.mutex());
    generator.set_state(states[i].get_state());
  }
}

struct ForwardState::Guard::Parts {
  explicit Parts(const ForwardState& to)
      : state(to),
        generators_before(to.copies_of_generators()),
        scope([&to](DispatchScope& s) {
          StepDecider* const decider = s.step_decider;
          s = to.scope_;
          s.step_decider = decider;
        }),
        path([&to](Scope& s) { s.module_path = to.module_path_; }) {
    if (to.scope_.mesh.defined()) mesh.emplace(to.scope_.mesh);
    for (const Autocast& autocast : to.autocast_) {
      autocast_before.push_back(autocast_of(autocast.device));
      set(autocast);
    }
    at::autocast::increment_nesting();
    to.set_generators(to.generator_states_);
  }
  ~Parts() {
    state.set_generators(generators_before);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    for (const Autocast& autocast : autocast_before) set(autocast);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const ForwardState& state;
  const std::vector<at::Generator> generators_before;
  const DispatchScopeGuard scope;
  const ScopeGuard path;
  std::optional<MeshScope> mesh;
  std::vector<Autocast> autocast_before;
};

ForwardState::Guard::Guard(const ForwardState& state) : parts_(std::make_unique<Parts>(state)) {}
ForwardState::Guard::~Guard() = default;

}  // namespace dtensor::internal
