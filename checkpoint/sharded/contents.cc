#include "checkpoint/sharded/contents.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/optimizer/optimizer_state.h"
#include "dtensor/tensor/representation.h"
#include "observe/rank_in_job.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr char kRandomState[] = "random_state.cpu";

using ParamNames = std::map<const c10::TensorImpl*, std::string>;

NamedTensors module_tensors(const CheckpointContents& contents) {
  NamedTensors all;
  for (const auto& [key, module] : contents.modules) {
    TORCH_CHECK_VALUE(module != nullptr, "the module '", key, "' is null");
    for (const auto& [path, t] : state_dict(*module)) {
      const auto [it, is_new] = all.emplace(absl::StrCat(key, ".", path), t);
      TORCH_CHECK_VALUE(is_new || it->second.is_same(t), "two tensors are called '", it->first, "'");
    }
  }
  return all;
}

// By which names states of optimizers go.
ParamNames param_names(const NamedTensors& tensors) {
  ParamNames names;
  for (const auto& [name, t] : tensors) names.emplace(t.unsafeGetTensorImpl(), name);
  return names;
}

const std::string& name_of(const ParamNames& names, const at::Tensor& p, const std::string& optimizer, size_t group,
                           size_t index) {
  const auto it = names.find(p.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(it != names.end(), "parameter ", index, " in group ", group, " of optimizer '", optimizer,
                    "' belongs to none of the modules; give the module, too");
  return it->second;
}

[[noreturn]] void throw_unknown(const std::string& optimizer) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the state of optimizer '", optimizer,
                              "' is not known; that of SGD, Adam, AdamW, Adagrad and RMSprop is");
}

// Visits every option of a group with the name of its setting and its place: a bool* or a double*.
template <typename Visit>
void for_each_option(const std::string& optimizer, size_t number, torch::optim::OptimizerParamGroup& group,
                     const Visit& visit) {
  if (!group.has_options()) return;
  const auto fields = fields_of(group.options());
  if (fields.empty()) throw_unknown(optimizer);
  for (const auto& [field, place] : fields) {
    const std::string setting = absl::StrCat(optimizer, ".param_groups.", number, ".", field);
    std::visit([&](auto* v) { visit(setting, v); }, place);
  }
}

// In what follows a LocalGuard makes plain tensors, also inside a MeshScope.

at::Tensor random_state_now() {
  LocalGuard guard;
  at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU));
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// Laid out like the parameter.
at::Tensor zeros_as(const at::Tensor& param) {
  if (is_dtensor(param)) return at::zeros_like(param.detach());
  LocalGuard guard;
  return at::zeros_like(param.detach());
}

void add_tensor(NamedState& state, const std::string& name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(t.defined(), "the tensor '", name, "' is undefined");
  TORCH_CHECK_VALUE(state.tensors.emplace(name, t).second, "two tensors are called '", name, "'");
}

void add_optimizer(NamedState& state, const std::string& name, torch::optim::Optimizer& optimizer,
                   const ParamNames& names) {
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    for_each_option(name, g, group, [&](const std::string& setting, auto* place) { state.settings[setting] = *place; });
    for (size_t i = 0; i < group.params().size(); ++i) {
      const at::Tensor& p = group.params()[i];
      const std::string prefix = absl::StrCat(name, ".", name_of(names, p, name, g, i), ".");
      const auto it = optimizer.state().find(p.unsafeGetTensorImpl());
      if (it == optimizer.state().end()) continue;
      const auto fields = fields_of(*it->second);
      if (!fields) throw_unknown(name);
      for (const auto& [field, t] : fields->tensors) {
        if (t->defined()) add_tensor(state, prefix + field, *t);
      }
      if (fields->step != nullptr) state.settings[prefix + "step"] = *fields->step;
    }
  }
}

}  // namespace

namespace internal {

NamedState state_of(const CheckpointContents& contents) {
  NamedState state;
  const NamedTensors of_modules = module_tensors(contents);
  for (const auto& [name, t] : of_modules) add_tensor(state, name, t);
  const ParamNames names = param_names(of_modules);
  for (const auto& [name, optimizer] : contents.optimizers) {
    TORCH_CHECK_VALUE(optimizer != nullptr, "the optimizer '", name, "' is null");
    add_optimizer(state, name, *optimizer, names);
  }
  for (const auto& [name, t] : contents.tensors) add_tensor(state, name, t);
  if (contents.random_state) add_tensor(state, kRandomState, random_state_now());
  return state;
}

World world_of(const CheckpointContents& contents, const World& given) {
  if (given.defined()) return given;
  const auto find = [](const NamedTensors& tensors) {
    for (const auto& [name, t] : tensors) {
      if (t.defined() && is_dtensor(t)) return spec_of(t)->mesh().world();
    }
    return World();
  };
  for (const auto& [key, module] : contents.modules) {
    if (module == nullptr) continue;
    if (World world = find(state_dict(*module)); world.defined()) return world;
  }
  World world = find(contents.tensors);
  TORCH_CHECK_VALUE(
      world.defined() || rank_in_job() < 0,
      "this process is one of a job, and nothing here is distributed: give the job's world as options.world, or "
      "World::local(1) to do without the other processes");
  return world;
}

void check_world(const NamedTensors& tensors, const World& world) {
  for (const auto& [name, t] : tensors) {
    if (!is_dtensor(t)) continue;
    const World& own = spec_of(t)->mesh().world();
    TORCH_CHECK_VALUE(own == world, "'", name, "' is of world ", own.name(), ", others are of ", world.name(),
                      "; a checkpoint is of one world");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!world.defined() || (world.has_data() && world.kind() != World::Kind::kFake),
                              "this process lacks values, its world is ", world.defined() ? world.name() : "");
}

// A state that takes the place of what an optimizer remembers of a parameter.
struct LoadTargets::NewState {
  torch::optim::Optimizer* optimizer;
  void* param;
  std::unique_ptr<torch::optim::OptimizerParamState> state;  // null: it has none
};

LoadTargets::~LoadTargets() = default;

LoadTargets::LoadTargets(CheckpointContents& contents, const Manifest& manifest)
    : contents_(contents), manifest_(manifest) {
  c10::AutoGradMode no_grad(false);
  const NamedTensors of_modules = module_tensors(contents);
  for (const auto& [name, t] : of_modules) add(name, t);
  const ParamNames names = param_names(of_modules);
  for (const auto& [name, optimizer] : contents.optimizers) {
    TORCH_CHECK_VALUE(optimizer != nullptr, "the optimizer '", name, "' is null");
    add_optimizer(name, *optimizer, names);
  }
  for (const auto& [name, t] : contents.tensors) {
    if (t.defined()) {
      add(name, t);
    } else if (const auto it = manifest.tensors.find(name); it != manifest.tensors.end()) {
      const Shape& shape = it->second.shape;
      LocalGuard guard;
      made_[name] = at::empty(at::IntArrayRef(shape.data(), shape.size()), at::TensorOptions(it->second.dtype));
      add(name, made_[name]);
    } else {
      mismatch_.missing.push_back(name);
    }
  }
  if (contents.random_state) {
    random_state_ = random_state_now();
    add(kRandomState, random_state_);
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (taken_.count(name) == 0 && name != kRandomState) mismatch_.unexpected.push_back(name);
  }
  for (const auto& [name, value] : manifest.settings) {
    if (taken_.count(name) == 0) mismatch_.unexpected.push_back(name);
  }
}

void LoadTargets::add(const std::string& name, const at::Tensor& target) {
  TORCH_CHECK_VALUE(taken_.insert(name).second, "two tensors are called '", name, "'");
  const auto it = manifest_.tensors.find(name);
  if (it == manifest_.tensors.end()) {
    mismatch_.missing.push_back(name);
  } else if (at::IntArrayRef(it->second.shape.data(), it->second.shape.size()) != target.sizes()) {
    mismatch_.reshaped.push_back(c10::str(name, ": ", at::IntArrayRef(it->second.shape.data(), it->second.shape.size()),
                                          " in the checkpoint, ", target.sizes(), " here"));
  } else {
    tensors_[name] = target;
  }
}

template <typename T>
void LoadTargets::add_setting(const std::string& name, T* place) {
  taken_.insert(name);
  const auto it = manifest_.settings.find(name);
  if (it == manifest_.settings.end()) {
    mismatch_.missing.push_back(name);
    return;
  }
  const T* value = std::get_if<T>(&it->second);
  TORCH_CHECK_VALUE(value != nullptr, "the setting '", name, "' is of another type in the checkpoint");
  settings_.push_back([place, v = *value] { *place = v; });
}

// If a checkpoint has nothing for the optimizer, its states are unchanged.
void LoadTargets::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer, const ParamNames& names) {
  const auto next = manifest_.settings.lower_bound(name + ".");
  const bool known = next != manifest_.settings.end() && absl::StartsWith(next->first, name + ".");
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    for_each_option(name, g, group, [&](const std::string& setting, auto* place) { add_setting(setting, place); });
    for (size_t i = 0; known && i < group.params().size(); ++i) {
      const at::Tensor& p = group.params()[i];
      add_state(absl::StrCat(name, ".", name_of(names, p, name, g, i), "."), optimizer, p);
    }
  }
}

void LoadTargets::add_state(const std::string& prefix, torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  void* const key = param.unsafeGetTensorImpl();
  const auto it = optimizer.state().find(key);
  auto state = it == optimizer.state().end() ? new_param_state(optimizer) : it->second->clone();
  if (state == nullptr) throw_unknown(prefix);
  const auto fields = fields_of(*state);
  if (!fields) throw_unknown(prefix);
  bool any = false;
  const size_t reshaped = mismatch_.reshaped.size();
  for (const auto& [field, t] : fields->tensors) {
    if (manifest_.tensors.count(prefix + field) == 0) {
      *t = at::Tensor();
      continue;
    }
    // Existing tensors keep their memory: they change after everything is verified.
    if (!t->defined()) *t = zeros_as(param);
    add(prefix + field, *t);
    any = true;
  }
  if (mismatch_.reshaped.size() > reshaped) {  // half of a state is none: it stays as it is
    for (const auto& [field, t] : fields->tensors) tensors_.erase(prefix + field);
    taken_.insert(prefix + "step");
    return;
  }
  if (fields->step != nullptr && (any || manifest_.settings.count(prefix + "step") > 0)) {
    add_setting(prefix + "step", fields->step);
    any = true;
  }
  states_.push_back({&optimizer, key, any ? std::move(state) : nullptr});
}

void LoadTargets::commit() {
  if (tensors_.count(kRandomState) > 0) {  // first, since it rejects an invalid state
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(random_state_);
  }
  for (const auto& set : settings_) set();
  for (NewState& s : states_) {
    if (s.state) {
      s.optimizer->state()[s.param] = std::move(s.state);
    } else {
      s.optimizer->state().erase(s.param);
    }
  }
  for (auto& [name, t] : made_) contents_.tensors[name] = std::move(t);
  for (const auto& [name, value] : manifest_.values) contents_.values[name] = value;
}

}  // namespace internal

std::string CheckpointMismatch::to_string() const {
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(absl::StrCat("missing ", absl::StrJoin(missing, ", ")));
  if (!unexpected.empty()) parts.push_back(absl::StrCat("unexpected ", absl::StrJoin(unexpected, ", ")));
  if (!reshaped.empty()) parts.push_back(absl::StrCat("of another shape ", absl::StrJoin(reshaped, ", ")));
  return absl::StrJoin(parts, "; ");
}

}  // namespace dtensor
