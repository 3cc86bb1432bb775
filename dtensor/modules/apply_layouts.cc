#include "dtensor/apply_layouts.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/fully_shard.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/parallel/module_classes.h"
#include "dtensor/parallel/path_patterns.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/tensor/representation.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

std::string LayoutMemory::to_string() const {
  return absl::StrCat("parameters ", bytes_text(parameters), ", gradients ", bytes_text(gradients),
                      ", optimizer states ", bytes_text(optimizer_states),
                      gathered > 0 ? absl::StrCat(", gathered parameters ", bytes_text(gathered)) : "",
                      ", activations and other ", bytes_text(activations));
}

std::string ModuleLayouts::name() const {
  std::string text = numbers_text(mesh);
  if (stages > 1) absl::StrAppend(&text, " stages=", stages);
  if (stages_per_rank > 1) absl::StrAppend(&text, " stages_per_rank=", stages_per_rank);
  if (!schedule.empty()) absl::StrAppend(&text, " ", schedule);
  if (!settings.empty()) absl::StrAppend(&text, " ", numbers_text(settings));
  if (micro_batches != 1) absl::StrAppend(&text, " micro_batches=", micro_batches);
  if (!groups.empty()) absl::StrAppend(&text, " fully_shard(", patterns_text(groups), ")");
  if (overlap) absl::StrAppend(&text, " overlap");
  return text;
}

std::string internal::mesh_fault(const ModuleLayouts& layouts) {
  const size_t for_sequences = layouts.context_dim.empty() ? 0 : 1, for_groups = layouts.shard_dim.empty() ? 0 : 1;
  const size_t dims = layouts.mesh.size(), least = 2 + for_groups + for_sequences;
  const bool for_experts = dims == least + 1;
  if (dims != least && !for_experts) {
    return absl::StrCat("'mesh' has ", dims, " dims; expected the data dim and the tensor dim, and between them ",
                        for_groups > 0 ? "'shard_dim', " : "", "one for experts if there is any",
                        for_sequences > 0 ? ", and 'context_dim'" : "");
  }
  if (for_groups > 0 && layouts.mesh[1].first != layouts.shard_dim) {
    return absl::StrCat("'shard_dim' is '", layouts.shard_dim, "', and the mesh dim after the data dim '",
                        layouts.mesh[1].first, "'; expected the same");
  }
  if (for_sequences > 0 && layouts.mesh[dims - 2].first != layouts.context_dim) {
    return absl::StrCat("'context_dim' is '", layouts.context_dim, "', and the mesh dim before the tensor dim '",
                        layouts.mesh[dims - 2].first, "'; expected the same");
  }
  if (!layouts.experts.empty() && !for_experts) {
    return absl::StrCat("'experts' has '", patterns_text(layouts.experts), "', and 'mesh' no dim for them after '",
                        layouts.mesh[for_groups].first, "'");
  }
  return "";
}

namespace {

using ModulesByPath = std::map<std::string, torch::nn::Module*>;

// Of the module's deepest path: 0 for the root, 2 for "blocks.0".
int64_t depth_of(const ModulesByPath& modules, const torch::nn::Module* module) {
  int64_t depth = 0;
  for (const auto& [path, m] : modules) {
    if (m == module && !path.empty()) depth = std::max<int64_t>(depth, 1 + absl::c_count(path, '.'));
  }
  return depth;
}

// Whether fully_shard() has something to do.
bool has_parameters_without_group(const torch::nn::Module& module) {
  return absl::c_any_of(module.parameters(), [](const at::Tensor& p) {
    return p.defined() && p.dim() > 0 && !(is_dtensor(p) && internal::leaf_group_of(p));
  });
}

// Those at the matches of the patterns, a module at several paths once. `matches`: of one pattern. Error (ValueError):
// a pattern matches nothing.
template <typename Matches>
std::vector<torch::nn::Module*> modules_at(const ModulesByPath& modules, const std::vector<std::string>& patterns,
                                           const char* what, const Matches& matches) {
  std::vector<torch::nn::Module*> found;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> paths = matches(pattern);
    TORCH_CHECK_VALUE(!paths.empty(), "[apply_layouts] the pattern '", pattern, "' of ", what, " matches no module");
    for (const std::string& path : paths) {
      if (!absl::c_linear_search(found, modules.at(path))) found.push_back(modules.at(path));
    }
  }
  return found;
}

// Each own parameter of the modules is sharded by dim 0. Error (ValueError): a module has none.
ParallelPlan plan_of_experts(const std::vector<std::string>& patterns, const ModulesByPath& modules) {
  ParallelPlan plan;
  for (const auto& [path, module] : modules) {
    if (!absl::c_any_of(patterns, [&, &at = path](const auto& p) { return pattern_matches(p, at); })) continue;
    std::vector<ParameterPlacement> own;
    for (const auto& p : module->named_parameters(/*recurse=*/false)) own.push_back({p.key(), Shard(0)});
    TORCH_CHECK_VALUE(!own.empty(), "[apply_layouts] '", path, "', a ", module->name(),
                      ", which a pattern of experts matches, has no parameters of its own");
    plan.entries.push_back({pattern_of_path(path), ParameterStyle(std::move(own))});
  }
  return plan;
}

}  // namespace

void apply_layouts(torch::nn::Module& module, const DeviceMesh& mesh, const ModuleLayouts& layouts) {
  const std::string fault = mesh_fault(layouts);
  TORCH_CHECK_VALUE(fault.empty(), "[apply_layouts] of the layouts ", fault);
  ModulesByPath modules;
  std::vector<std::string> paths;
  module.apply(
      [&](const std::string& path, torch::nn::Module& m) {
        modules.emplace(path, &m);
        paths.push_back(path);
      },
      std::string());
  const auto groups = modules_at(modules, layouts.groups, "a group",
                                 [&](const std::string& pattern) { return outermost_matches(pattern, paths); });
  const auto experts = modules_at(modules, layouts.experts, "experts", [&](const std::string& pattern) {
    std::vector<std::string> matches;
    absl::c_copy_if(paths, std::back_inserter(matches), [&](const auto& p) { return pattern_matches(pattern, p); });
    return matches;
  });
  const ParallelPlan of_experts = plan_of_experts(layouts.experts, modules);
  const size_t dim_of_groups = layouts.shard_dim.empty() ? 0 : 1;
  if (!experts.empty())
    parallelize_module(module, mesh, of_experts, {.mesh_dim = layouts.mesh[dim_of_groups + 1].first});
  parallelize_module(module, mesh, layouts.styles, {.mesh_dim = layouts.mesh.back().first});
  // A module comes before those around it, whose group gets what is left.
  std::vector<torch::nn::Module*> in_groups;
  if (!groups.empty()) in_groups = experts;
  absl::c_copy_if(groups, std::back_inserter(in_groups),
                  [&](torch::nn::Module* m) { return !absl::c_linear_search(experts, m); });
  absl::c_stable_sort(in_groups, [&](const torch::nn::Module* a, const torch::nn::Module* b) {
    return depth_of(modules, a) > depth_of(modules, b);
  });
  for (torch::nn::Module* m : in_groups) {
    if (!has_parameters_without_group(*m)) continue;
    const int64_t dim = absl::c_linear_search(experts, m) ? 1 : 0;
    fully_shard(*m, mesh, {.mesh_dim = layouts.mesh[dim_of_groups].first, .prefetch = layouts.overlap, .dim = dim});
  }
  if (layouts.overlap) {
    GradientBucketOptions buckets = gradient_buckets(mesh.world());
    buckets.overlap = true;
    set_gradient_buckets(mesh.world(), buckets);
  }
}

}  // namespace dtensor
