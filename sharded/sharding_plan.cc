#include "sharded/sharding_plan.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sharded/output_hooks.h"
#include "sharded/shard_tensor.h"

namespace dtensor::sharded {
namespace {

using torch::nn::Module;

std::shared_ptr<Module> child_of(const Module& module, const std::string& name) {
  const auto children = module.named_children();
  const auto* child = children.find(name);
  if (child == nullptr || *child == nullptr) raise<AttributeError>(module.name(), " has no attribute `", name, "`");
  return *child;
}

// "a.b.weight" -> ("a.b", "weight")
std::pair<std::string, std::string> split_last(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

// Runs f on the module at a path; "" is the module itself.
template <typename F>
auto with_module(Module& module, const std::string& path, F f) {
  if (path.empty()) return f(module);
  return f(*find_submodule(module, path));
}

bool is_within(const std::string& path, const std::string& ancestor) {
  return path == ancestor || absl::StartsWith(path, ancestor + ".");
}

const std::shared_ptr<Sharder>* sharder_of(const ShardingPlan::Entry& entry) {
  return std::get_if<std::shared_ptr<Sharder>>(&entry);
}

void check_names(const ShardingPlan::Entries& entries, const char* where) {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries) {
    TORCH_CHECK_VALUE(names.insert(name).second, "[shard_module] '", name, "' is twice in ", where);
  }
}

void check_parameter_entry(Module& module, const std::string& path, const std::vector<std::string>& sharder_paths) {
  const auto [where, name] = split_last(path);
  for (const std::string& sharder : sharder_paths) {
    TORCH_CHECK(!is_within(where, sharder), "ShardingPlan is in-valid, trying to shard a parameter: ", name,
                ", but there's already a Sharder entry for module ", sharder,
                ", parameter sharding should not conflict with the submodule tree that a Sharder is working with!");
  }
  with_module(module, where, [&, name = name](Module& owner) {
    const bool is_there = owner.named_parameters(/*recurse=*/false).contains(name) ||
                          owner.named_buffers(/*recurse=*/false).contains(name);
    if (!is_there) raise<AttributeError>(owner.name(), " has no attribute `", name, "`");
  });
}

void check_sharder_entry(Module& module, const std::string& path) {
  find_submodule(module, path);
  const auto [where, name] = split_last(path);
  with_module(module, where, [&](Module& parent) {
    const bool has_own_list =
        parent.as<torch::nn::Sequential>() != nullptr || parent.as<torch::nn::ModuleList>() != nullptr;
    TORCH_CHECK_TYPE(!has_own_list, "[shard_module] '", path, "' is in a ", parent.name(),
                     ", which has a list of its own that cannot be changed: shard the ", parent.name(),
                     " as a whole, or use a ModuleDict");
  });
}

OutputHooks& hooks_of(Module& module, const std::string& path) {
  const auto find = [&](Module& m) {
    auto* hooks = dynamic_cast<OutputHooks*>(&m);
    TORCH_CHECK_TYPE(hooks != nullptr, "[shard_module] the output of '", path, "' cannot be changed: ", m.name(),
                     " has no hooks; make it with_output_hooks(module)");
    return hooks;
  };
  return *with_module(module, path, find);
}

void check_plan(Module& module, const ShardingPlan& plan) {
  check_names(plan.plan, "the plan");
  std::vector<std::string> sharder_paths;
  for (const auto& [path, entry] : plan.plan) {
    if (sharder_of(entry) == nullptr) continue;
    if (path.empty()) raise<KeyError>("Module path must not be empty for custom sharder!");
    sharder_paths.push_back(path);
  }
  for (const auto& [path, entry] : plan.plan) {
    const auto* sharder = sharder_of(entry);
    const bool is_null = sharder != nullptr ? *sharder == nullptr : !std::get<AnyShardingSpec>(entry).defined();
    TORCH_CHECK_TYPE(!is_null, "Only `ShardingSpec` and `Sharder` are supported to shard '", path, "'");
    if (sharder != nullptr) {
      check_sharder_entry(module, path);
    } else {
      check_parameter_entry(module, path, sharder_paths);
    }
  }
  if (!plan.output_plan) return;
  check_names(*plan.output_plan, "output_plan");
  for (const auto& [path, entry] : *plan.output_plan) {
    const auto* spec = std::get_if<AnyShardingSpec>(&entry);
    TORCH_CHECK_TYPE(spec != nullptr && spec->defined(), "Only `ShardingSpec` is supported as output_plan for '", path,
                     "'");
  }
}

// A module that a Sharder will replace need not have hooks: its replacement must, and is checked then.
bool comes_of_sharder(const ShardingPlan& plan, const std::string& path) {
  for (const auto& [sharded, entry] : plan.plan) {
    if (sharder_of(entry) != nullptr && is_within(path, sharded)) return true;
  }
  return false;
}

void check_outputs(Module& module, const ShardingPlan& plan) {
  const auto check = [&](const std::string& path) {
    if (!comes_of_sharder(plan, path)) hooks_of(module, path);
  };
  if (plan.output_plan) {
    for (const auto& [path, entry] : *plan.output_plan) check(path);
  }
  if (plan.return_local_tensor) {
    for (const std::string& path : *plan.return_local_tensor) check(path);
  }
}

void replace(Module& module, const std::string& path, Sharder& sharder) {
  const auto before = find_submodule(module, path);
  const auto after = sharder.shard(before);
  TORCH_CHECK_TYPE(after != nullptr, "[shard_module] the Sharder of '", path, "' gave no module");
  if (after == before) return;
  const auto [where, name] = split_last(path);
  with_module(module, where, [&, name = name](Module& parent) {
    if (auto* dict = parent.as<torch::nn::ModuleDict>()) {
      dict->update({{name, after}});
    } else {
      parent.replace_module(name, after);
    }
  });
}

}  // namespace

std::shared_ptr<Module> find_submodule(const Module& module, const std::string& path) {
  std::shared_ptr<Module> found;
  for (const auto name : absl::StrSplit(path, '.')) {
    found = child_of(found == nullptr ? module : *found, std::string(name));
  }
  return found;
}

void shard_module(Module& module, const ShardingPlan& plan, const ProcessGroup& group, int64_t src_rank) {
  check_plan(module, plan);
  check_outputs(module, plan);
  for (const auto& [path, entry] : plan.plan) {
    if (const auto* sharder = sharder_of(entry)) {
      replace(module, path, **sharder);
      continue;
    }
    const auto [where, name] = split_last(path);
    with_module(module, where, [&, name = name, &entry = entry](Module& owner) {
      shard_parameter(owner, name, std::get<AnyShardingSpec>(entry), group, src_rank);
    });
  }
  if (plan.output_plan) {
    for (const auto& [path, entry] : *plan.output_plan) {
      reshard_output(hooks_of(module, path), std::get<AnyShardingSpec>(entry));
    }
  }
  if (plan.return_local_tensor) {
    for (const std::string& path : *plan.return_local_tensor) collect_local_shard(hooks_of(module, path));
  }
}

}  // namespace dtensor::sharded
