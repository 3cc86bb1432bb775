#include "dtensor/parallelize_module.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "dtensor/dispatch/style_kernels.h"
#include "dtensor/distribute_module.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/modules/module_layouts.h"
#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel/mesh_dim_option.h"
#include "dtensor/parallel/mixed_precision_option.h"
#include "dtensor/parallel/path_patterns.h"
#include "dtensor/parallel/style_of_module.h"
#include "dtensor/tensor/module_traits.h"

namespace dtensor {
using namespace internal;

namespace {

// A path of a module, which may have several, and the plan's entry that matches one of them, or null.
struct PlannedModule {
  std::string path;
  torch::nn::Module* module = nullptr;
  const ParallelPlan::Entry* entry = nullptr;
  StyleOfModule style;
};

std::vector<PlannedModule> modules_of(torch::nn::Module& module) {
  std::vector<PlannedModule> modules;
  module.apply(
      [&](const std::string& path, torch::nn::Module& m) {
        modules.push_back({path, &m, nullptr, {}});
      },
      std::string());
  return modules;
}

void give_style(const ParallelPlan::Entry& entry, PlannedModule& m) {
  TORCH_CHECK_VALUE(m.entry == nullptr || m.entry->style == entry.style, "[parallelize_module] '", m.path,
                    "' matches two patterns with different styles: '", m.entry->pattern, "', ",
                    m.entry->style.to_string(), ", and '", entry.pattern, "', ", entry.style.to_string());
  m.entry = &entry;
}

void match(const ParallelPlan::Entry& entry, std::vector<PlannedModule>& modules) {
  bool matched = false;
  std::vector<std::string> paths;
  for (const PlannedModule& m : modules) {
    paths.push_back(m.path);
    if (!pattern_matches(entry.pattern, m.path)) continue;
    matched = true;
    for (PlannedModule& same : modules) {
      if (same.module == m.module) give_style(entry, same);
    }
  }
  if (matched) return;
  const std::vector<std::string> nearest = nearest_paths(entry.pattern, paths, 3);
  TORCH_CHECK_VALUE(false, "[parallelize_module] the pattern '", entry.pattern, "' matches no module",
                    nearest.empty() ? "; the module has no submodules, and \"\" is the module itself"
                                    : "; the nearest are '" + absl::StrJoin(nearest, "', '") + "'");
}

// Parameters that are one tensor, or share their memory.
const void* tie_of(const at::Tensor& t) {
  if (is_dtensor(t)) return meta_without_sync(t).storage.get();
  if (!t.has_storage() || t.is_meta() || t.numel() == 0) return t.unsafeGetTensorImpl();
  return t.const_data_ptr();
}

// A parameter of a module that matches.
struct PlannedParameter {
  const PlannedModule* module;
  std::string name;
  std::optional<Placement> placement;  // nullopt: as it is
};

// Error: one tensor, a parameter of two modules, cannot follow the styles of both.
void check_tie(const PlannedParameter& a, const PlannedParameter& b) {
  const StyleOfModule &of_a = a.module->style, &of_b = b.module->style;
  const bool one_layout = !a.placement || !b.placement || a.placement == b.placement;
  const bool one_style = of_a.is_table != of_b.is_table || (of_a.input == of_b.input && of_a.output == of_b.output);
  TORCH_CHECK_VALUE(one_layout && one_style, "[parallelize_module] '", a.module->path, ".", a.name, "' and '",
                    b.module->path, ".", b.name, "' are one tensor, but ", a.module->entry->style.to_string(), " and ",
                    b.module->entry->style.to_string(),
                    " give it, or its operators, different layouts: choose styles that agree");
}

void check_ties(const std::vector<PlannedModule>& modules) {
  absl::flat_hash_map<const void*, std::vector<PlannedParameter>> users;
  for (const PlannedModule& m : modules) {
    if (m.entry == nullptr) continue;
    for (const auto& p : m.module->named_parameters(/*recurse=*/false)) {
      if (!p.value().defined()) continue;
      PlannedParameter user{&m, p.key(), std::nullopt};
      for (const ParameterPlacement& placed : m.style.parameters) {
        if (placed.name == p.key()) user.placement = placed.placement;
      }
      std::vector<PlannedParameter>& others = users[tie_of(p.value())];
      for (const PlannedParameter& other : others) check_tie(other, user);
      others.push_back(std::move(user));
    }
  }
}

// Error: a parameter of the module's own has a layout on another mesh, so that no operator would follow the style.
void check_mesh(const PlannedModule& m, const DeviceMesh& mesh) {
  for (const auto& p : m.module->named_parameters(/*recurse=*/false)) {
    if (!has_decided_layout(p.value())) continue;
    const Spec& spec = *spec_of(p.value());
    TORCH_CHECK_VALUE(spec.mesh().with_data() == mesh.with_data(), "[parallelize_module] '",
                      m.path.empty() ? p.key() : m.path + "." + p.key(), "' is ", spec.to_string(), ", not on ",
                      mesh.to_string(), ": give the mesh of the parameters, or redistribute them first");
  }
}

void plan_modules(std::vector<PlannedModule>& modules, const DeviceMesh& mesh, const ParallelPlan& plan) {
  for (const ParallelPlan::Entry& entry : plan.entries) match(entry, modules);
  for (PlannedModule& m : modules) {
    if (m.entry == nullptr) continue;
    const std::string fault = fault_of(m.entry->style);
    TORCH_CHECK_VALUE(fault.empty(), "[parallelize_module] the entry of '", m.entry->pattern, "': ", fault);
    m.style = style_of_module(m.entry->style, *m.module, m.path);
    check_mesh(m, mesh);
    const auto present = own_style(*m.module);
    TORCH_CHECK_VALUE(!present || !present->given(), "[parallelize_module] '", m.path, "' has a style already, ",
                      present->style.to_string(), ": say all styles of a module in one call");
  }
  check_ties(modules);
}

// Without an entry: a style that only observes, for explain_module().
std::shared_ptr<ModuleStyle> applied_to(const PlannedModule& m, const DeviceMesh& mesh, int64_t mesh_dim) {
  auto style = std::make_shared<ModuleStyle>();
  style->module = m.module;
  for (const at::Tensor& t : m.module->parameters(/*recurse=*/false)) style->tensors.push_back(t.unsafeGetTensorImpl());
  style->path = m.path;
  style->mesh = mesh.with_data().idle();
  style->mesh_dim = mesh_dim;
  style->is_table = is_embedding(*m.module);
  if (m.entry == nullptr) return style;
  style->style = m.entry->style;
  style->input = m.style.input;
  style->output = m.style.output;
  style->parameters = m.style.parameters;
  return style;
}

void apply_style(const PlannedModule& m, const DeviceMesh& mesh, int64_t mesh_dim) {
  const auto former = own_style(*m.module);  // it only observed, or is that of another path of the module
  if (m.entry == nullptr && former) return;
  const auto style = applied_to(m, mesh, mesh_dim);
  for (const at::Tensor& t : m.module->parameters(/*recurse=*/false)) {
    if (!is_dtensor(t)) continue;
    auto& present = meta_without_sync(t).storage->parameter.make().style;
    std::vector<std::shared_ptr<ModuleStyle>> styles;
    if (present) styles = present->modules();
    std::erase_if(styles, [&](const auto& s) { return s == former; });
    styles.push_back(style);
    present = std::make_shared<AppliedStyle>(std::move(styles));
  }
}

void check_mixed_precision(const torch::nn::Module& module, const MixedPrecision& given) {
  check_dtypes(given, "parallelize_module");
  if (!gives_any(given)) return;
  for (const auto& p : module.named_parameters()) {
    const at::Tensor& t = p.value();
    if (is_dtensor(t) && leaf_group_of(t)) check_agrees(given, p.key(), t, "parallelize_module");
  }
}

void give_mixed_precision(const torch::nn::Module& module, const MixedPrecision& given) {
  for (const at::Tensor& t : module.parameters()) {
    if (!is_dtensor(t) || gives_any(mixed_precision_of(t))) continue;
    change_module_traits(t, [&](ModuleTraits& traits) { traits.mixed_precision = given; });
  }
}

// The placements of the module's own parameters on the mesh dim.
std::vector<ParameterPlacement> present_placements(const torch::nn::Module& module, const std::string& path,
                                                   const DeviceMesh& mesh, int64_t mesh_dim) {
  std::vector<ParameterPlacement> placements;
  for (const auto& p : module.named_parameters(/*recurse=*/false)) {
    if (!is_dtensor(p.value())) continue;
    const Spec& spec = *spec_of(p.value());
    TORCH_CHECK_VALUE(spec.mesh() == mesh, "[plan_of_module] '", path, ".", p.key(), "' is ", spec.to_string(),
                      ", not on ", mesh.to_string());
    placements.push_back({p.key(), spec.placements()[mesh_dim]});
  }
  return placements;
}

// The style with which a new module gets the layouts of this one; nullopt: none, it is replicated.
std::optional<ParallelStyle> style_in_plan(const torch::nn::Module& module, const std::string& path,
                                           const DeviceMesh& mesh, int64_t mesh_dim) {
  std::vector<ParameterPlacement> present = present_placements(module, path, mesh, mesh_dim);
  const auto applied = present_style(module, path);
  const bool given = applied && applied->given() && applied->mesh_dim == mesh_dim;
  const auto lies_as_given = [&](const ParameterPlacement& p) {
    const auto& placements = applied->parameters;
    const auto is_p = [&](const ParameterPlacement& s) { return s.name == p.name; };
    const auto it = std::find_if(placements.begin(), placements.end(), is_p);
    return it == placements.end() ? p.placement.is_replicate() : it->placement == p.placement;
  };
  if (given && std::all_of(present.begin(), present.end(), lies_as_given)) return applied->style;
  std::erase_if(present, [](const ParameterPlacement& p) { return p.placement.is_replicate(); });
  if (!given && present.empty()) return std::nullopt;
  return ParameterStyle(std::move(present), given ? StyleLayouts{applied->input, applied->output} : StyleLayouts());
}

}  // namespace

void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  const int64_t mesh_dim = mesh_dim_option(mesh, options.mesh_dim, "parallelize_module");
  std::vector<PlannedModule> modules = modules_of(module);
  plan_modules(modules, mesh, plan);
  check_mixed_precision(module, options.mixed_precision);
  distribute_rest_of_module(module, mesh, [&](const std::string& path, torch::nn::Module& m, const DeviceMesh&) {
    const auto is_m = [&](const PlannedModule& p) { return p.module == &m && p.path == path; };
    const auto planned = std::find_if(modules.begin(), modules.end(), is_m);
    for (const ParameterPlacement& p : planned->style.parameters) {
      shard_parameter_over(m, path, p.name, mesh, mesh_dim, p.placement);
    }
  });
  register_style_kernels();
  for (const PlannedModule& m : modules) apply_style(m, mesh, mesh_dim);
  if (gives_any(options.mixed_precision)) give_mixed_precision(module, options.mixed_precision);
}

ParallelPlan plan_of_module(const torch::nn::Module& module, const DeviceMesh& mesh,
                            const ParallelizeOptions& options) {
  const int64_t mesh_dim = mesh_dim_option(mesh, options.mesh_dim, "plan_of_module");
  ParallelPlan plan;
  module.apply(
      [&](const std::string& path, const torch::nn::Module& m) {
        if (auto style = style_in_plan(m, path, mesh, mesh_dim)) {
          plan.entries.push_back({pattern_of_path(path), *std::move(style)});
        }
      },
      std::string());
  return plan;
}

}  // namespace dtensor
