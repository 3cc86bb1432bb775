#include "sharded/sharded_optimizer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/optimizer/optimizer_state.h"
#include "sharded/sharded_tensor.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/tensor_ops.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr const char* kSave = "ShardedOptimizer::state_dict";
constexpr const char* kLoad = "ShardedOptimizer::load_state_dict";

// The fields of a parameter's state, and its step count.
struct StateKind {
  std::set<std::string> fields;
  int64_t step = -1;  // -1: not counted, or never stepped
  bool exists = false;

  void add(const StateKind& other) {
    fields.insert(other.fields.begin(), other.fields.end());
    step = std::max(step, other.step);
    exists |= other.exists;
  }
  nlohmann::json to_json() const { return {{"fields", fields}, {"step", step}, {"exists", exists}}; }
  static StateKind from_json(const nlohmann::json& json) {
    return {json.at("fields").get<std::set<std::string>>(), json.at("step"), json.at("exists")};
  }
};

std::vector<at::Tensor> local_tensors(const at::Tensor& param) {
  if (!is_sharded(param)) return {param};
  std::vector<at::Tensor> tensors;
  for (const auto& of_rank : ShardedTensor(param).state().shards) {
    for (const Shard& shard : of_rank) tensors.push_back(shard.tensor);
  }
  return tensors;
}

OptimizerParamState* find_state(Optimizer& optimizer, const at::Tensor& local) {
  const auto it = optimizer.state().find(local.unsafeGetTensorImpl());
  return it == optimizer.state().end() ? nullptr : it->second.get();
}

ParamStateFields known_fields(OptimizerParamState& state) {
  auto fields = fields_of(state);
  TORCH_CHECK_NOT_IMPLEMENTED(
      fields.has_value(),
      "ShardedOptimizer: the state of this optimizer has no names here; known are those of SGD, "
      "Adam, AdamW, Adagrad and RMSprop");
  return *std::move(fields);
}

StateKind kind_of(Optimizer& optimizer, const std::vector<at::Tensor>& locals) {
  StateKind kind;
  for (const at::Tensor& local : locals) {
    OptimizerParamState* state = find_state(optimizer, local);
    if (state == nullptr) continue;
    const ParamStateFields fields = known_fields(*state);
    kind.exists = true;
    if (fields.step != nullptr) kind.step = std::max(kind.step, *fields.step);
    for (const auto& [name, tensor] : fields.tensors) {
      if (tensor->defined()) kind.fields.insert(name);
    }
  }
  return kind;
}

// For all parameters. Ranks without shards of one get it from those that have some.
std::map<std::string, StateKind> kinds_of(Optimizer& optimizer, const NamedParams& params) {
  std::map<std::string, StateKind> kinds;
  std::vector<std::pair<ProcessGroup, std::vector<std::string>>> groups;
  for (const auto& p : params) {
    kinds[p.key()] = kind_of(optimizer, local_tensors(p.value()));
    if (!is_sharded(p.value())) continue;
    const ProcessGroup& group = ShardedTensor(p.value()).process_group();
    auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == group; });
    if (it == groups.end()) it = groups.insert(groups.end(), {group, {}});
    it->second.push_back(p.key());
  }
  for (const auto& [group, names] : groups) {
    const auto text = [&, &names = names](int64_t) {
      nlohmann::json json = nlohmann::json::array();
      for (const std::string& name : names) json.push_back(kinds[name].to_json());
      return json.dump();
    };
    for (const std::string& of_rank : exchange_texts(group, kSave, text)) {
      if (of_rank.empty()) continue;
      const auto json = nlohmann::json::parse(of_rank);
      for (size_t i = 0; i < names.size(); ++i) kinds[names[i]].add(StateKind::from_json(json.at(i)));
    }
  }
  return kinds;
}

// The field of a local tensor's state; undefined if there is none.
at::Tensor field_of(Optimizer& optimizer, const at::Tensor& local, const std::string& name) {
  OptimizerParamState* state = find_state(optimizer, local);
  if (state == nullptr) return {};
  for (const auto& [field, tensor] : known_fields(*state).tensors) {
    if (field == name) return *tensor;
  }
  return {};
}

// A copy of it; zeros for a shard that was never stepped although others were.
at::Tensor field_copy(Optimizer& optimizer, const at::Tensor& local, const std::string& name) {
  const at::Tensor field = field_of(optimizer, local, name);
  return field.defined() ? field.detach().clone() : at::zeros_like(local.detach());
}

at::Tensor sharded_field(Optimizer& optimizer, const ShardedTensor& param, const std::string& name) {
  Parts parts = parts_of(param);
  parts.metadata.tensor_properties.requires_grad = false;
  parts.init_rrefs = false;
  for (auto& of_rank : parts.shards) {
    for (Shard& shard : of_rank) {
      shard.tensor = field_copy(optimizer, shard.tensor, name);
    }
  }
  return make_sharded_tensor(std::move(parts));
}

using OptionPlace = std::variant<bool*, double*>;

// "param_groups.0.lr" and its location.
std::vector<std::pair<std::string, OptionPlace>> options_of(Optimizer& optimizer) {
  std::vector<std::pair<std::string, OptionPlace>> places;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const auto& [name, place] : fields_of(optimizer.param_groups()[g].options())) {
      places.emplace_back(absl::StrCat("param_groups.", g, ".", name), place);
    }
  }
  return places;
}

// The loaded state of one parameter.
struct LoadedState {
  std::map<std::string, at::Tensor> fields;
  int64_t step = 0;
  bool exists = false;
};

// The names of a parameter's state. `param`: for its optimizer's kind of state.
std::vector<std::string> field_names(const Optimizer& optimizer) {
  const auto state = new_param_state(optimizer);
  TORCH_CHECK_NOT_IMPLEMENTED(state != nullptr, "ShardedOptimizer: this optimizer's state is not known here");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : known_fields(*state).tensors) names.push_back(name);
  return names;
}

void check_field(const std::string& name, const at::Tensor& param, const at::Tensor& value) {
  TORCH_CHECK_VALUE(is_sharded(value) == is_sharded(param), "[", kLoad, "] '", name, "' is ",
                    is_sharded(value) ? "sharded" : "plain", ", its parameter is not");
  TORCH_CHECK_VALUE(value.sizes() == param.sizes(), "[", kLoad, "] '", name, "' has the shape ", value.sizes(),
                    ", its parameter ", param.sizes());
}

std::map<std::string, LoadedState> read_states(const Optimizer& optimizer, const NamedParams& params,
                                               const NamedTensors& values, std::set<std::string>& known) {
  std::map<std::string, LoadedState> states;
  const auto take = [&](const std::string& name) {
    const auto it = values.find(name);
    if (it == values.end()) return at::Tensor();
    known.insert(name);
    return it->second;
  };
  for (const auto& p : params) {
    LoadedState& state = states[p.key()];
    const std::string prefix = absl::StrCat("state.", p.key(), ".");
    for (const std::string& field : field_names(optimizer)) {
      const at::Tensor value = take(prefix + field);
      if (!value.defined()) continue;
      check_field(prefix + field, p.value(), value);
      state.fields[field] = value;
      state.exists = true;
    }
    if (const at::Tensor step = take(prefix + "step"); step.defined()) {
      state.step = step.item<int64_t>();
      state.exists = true;
    }
  }
  return states;
}

void set_state(Optimizer& optimizer, const at::Tensor& param, const LoadedState& loaded) {
  std::map<std::string, std::vector<at::Tensor>> fields;  // by local tensor
  for (const auto& [name, value] : loaded.fields) {
    at::Tensor laid_out = value;
    if (is_sharded(param)) laid_out = ShardedTensor(value).resharded(ShardedTensor(param).sharding_spec());
    fields[name] = local_tensors(laid_out);
  }
  const std::vector<at::Tensor> locals = local_tensors(param);
  for (size_t i = 0; i < locals.size(); ++i) {
    optimizer.state().erase(locals[i].unsafeGetTensorImpl());
    if (!loaded.exists) continue;
    auto state = new_param_state(optimizer);
    const ParamStateFields places = known_fields(*state);
    if (places.step != nullptr) *places.step = loaded.step;
    for (const auto& [name, tensor] : places.tensors) {
      if (auto it = fields.find(name); it != fields.end()) *tensor = it->second[i].detach().clone();
    }
    optimizer.state()[locals[i].unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace

NamedParams named_params_with_sharded_tensor(const torch::nn::Module& module, const std::string& prefix, bool recurse) {
  NamedParams result;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    if (!t.defined() || !seen.insert(t.unsafeGetTensorImpl()).second) return;
    result.insert(prefix.empty() ? name : absl::StrCat(prefix, ".", name), t);
  };
  for (const auto& b : module.named_buffers(recurse)) {
    if (is_sharded(b.value())) add(b.key(), b.value());
  }
  for (const auto& p : module.named_parameters(recurse)) add(p.key(), p.value());
  return result;
}

NamedParams deepcopy(const NamedParams& params) {
  NamedParams copies;
  for (const auto& p : params) {
    if (is_sharded(p.value())) {
      copies.insert(p.key(), deepcopy(ShardedTensor(p.value())).tensor());
    } else {
      copies.insert(p.key(), p.value().detach().clone().requires_grad_(p.value().requires_grad()));
    }
  }
  return copies;
}

std::vector<at::Tensor> local_params(const NamedParams& params) {
  std::vector<at::Tensor> result;
  for (const auto& p : params) {
    for (const at::Tensor& local : local_tensors(p.value())) result.push_back(local);
  }
  return result;
}

namespace internal {

NamedTensors optimizer_state_dict(Optimizer& optimizer, const NamedParams& params) {
  const c10::AutoGradMode no_gradient(false);
  NamedTensors result;
  const auto kinds = kinds_of(optimizer, params);
  for (const auto& p : params) {
    const StateKind& kind = kinds.at(p.key());
    if (!kind.exists) continue;
    const std::string prefix = absl::StrCat("state.", p.key(), ".");
    for (const std::string& field : kind.fields) {
      result[prefix + field] = is_sharded(p.value()) ? sharded_field(optimizer, ShardedTensor(p.value()), field)
                                                     : field_copy(optimizer, p.value(), field);
    }
    if (kind.step >= 0) result[prefix + "step"] = at::scalar_tensor(kind.step, at::kLong);
  }
  for (const auto& [name, place] : options_of(optimizer)) {
    const double value = std::visit([](const auto* v) { return static_cast<double>(*v); }, place);
    result[name] = at::scalar_tensor(value, at::kDouble);
  }
  return result;
}

void load_optimizer_state_dict(Optimizer& optimizer, const NamedParams& params, const NamedTensors& values) {
  const c10::AutoGradMode no_gradient(false);
  std::set<std::string> known;
  const auto states = read_states(optimizer, params, values, known);
  const auto options = options_of(optimizer);
  for (const auto& [name, place] : options) known.insert(name);
  for (const auto& [name, value] : values) {
    TORCH_CHECK_VALUE(known.count(name) == 1, "[", kLoad, "] '", name,
                      "' is neither the state of a parameter nor an option of this optimizer");
  }
  for (const auto& [name, place] : options) {
    const auto it = values.find(name);
    if (it == values.end()) continue;
    const double value = it->second.item<double>();
    std::visit([&](auto* v) { *v = static_cast<std::remove_pointer_t<decltype(v)>>(value); }, place);
  }
  for (const auto& p : params) set_state(optimizer, p.value(), states.at(p.key()));
}

}  // namespace internal
}  // namespace dtensor::sharded
