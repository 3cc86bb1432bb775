#include "dtensor/apply_layouts.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/fully_shard.h"
#include "dtensor/parallel/module_classes.h"
#include "dtensor/parallelize_module.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

std::string LayoutMemory::to_string() const {
  return absl::StrCat("parameters ", bytes_text(parameters), ", gradients ", bytes_text(gradients),
                      ", optimizer states ", bytes_text(optimizer_states), ", activations and other ",
                      bytes_text(activations));
}

std::string ModuleLayouts::name() const {
  std::string text = numbers_text(mesh);
  if (stages > 1) absl::StrAppend(&text, " stages=", stages);
  if (stages_per_rank > 1) absl::StrAppend(&text, " stages_per_rank=", stages_per_rank);
  if (!schedule.empty()) absl::StrAppend(&text, " ", schedule);
  if (!settings.empty()) absl::StrAppend(&text, " ", numbers_text(settings));
  if (micro_batches != 1) absl::StrAppend(&text, " micro_batches=", micro_batches);
  if (groups.empty()) return text;
  return absl::StrCat(text, " fully_shard(", patterns_text(groups), ")");
}

void apply_layouts(torch::nn::Module& module, const DeviceMesh& mesh, const ModuleLayouts& layouts) {
  TORCH_CHECK_VALUE(layouts.mesh.size() == 2, "[apply_layouts] the layouts have ", layouts.mesh.size(),
                    " mesh dims, not two: the data dim and the tensor dim");
  std::map<std::string, torch::nn::Module*> modules;
  std::vector<std::string> paths;
  module.apply(
      [&](const std::string& path, torch::nn::Module& m) {
        modules.emplace(path, &m);
        paths.push_back(path);
      },
      std::string());
  std::vector<torch::nn::Module*> groups;  // a module at several paths once
  for (const std::string& pattern : layouts.groups) {
    const std::vector<std::string> matches = outermost_matches(pattern, paths);
    TORCH_CHECK_VALUE(!matches.empty(), "[apply_layouts] the pattern '", pattern, "' of a group matches no module");
    for (const std::string& path : matches) {
      if (!absl::c_linear_search(groups, modules.at(path))) groups.push_back(modules.at(path));
    }
  }
  parallelize_module(module, mesh, layouts.styles, {.mesh_dim = layouts.mesh[1].first});
  for (torch::nn::Module* group : groups) fully_shard(*group, mesh, {.mesh_dim = layouts.mesh[0].first});
}

}  // namespace dtensor
