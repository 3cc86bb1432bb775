#include "dtensor/analysis/model_arrangements.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "absl/algorithm/container.h"
#include "dtensor/analysis/check_settings.h"
#include "dtensor/analysis/mesh_shapes.h"
#include "mesh/world.h"
#include "plan/cost_model.h"

namespace dtensor {

int64_t ModelChoice::setting(const std::string& name) const {
  return internal::setting_of(settings, name, "ModelChoice::setting");
}

namespace internal {
namespace {

// Rows of all inputs that have dims; the most that there can be, if none has.
int64_t batch_of(const std::vector<at::Tensor>& inputs) {
  int64_t rows = std::numeric_limits<int64_t>::max();
  for (const at::Tensor& t : inputs) {
    if (t.dim() > 0) rows = std::min(rows, t.size(0));
  }
  return rows;
}

bool tries_pipelines(const SearchModuleLayoutsOptions& o) {
  return absl::c_any_of(o.stages, [](int64_t stages) { return stages != 1; });
}

int64_t stages_per_rank(const SearchModuleLayoutsOptions& o, const std::string& schedule) {
  return schedule == "interleaved 1F1B" ? o.stages_per_rank : 1;
}

// Of a pipeline of `stages` stages, `per_rank` of them on each pipeline rank.
void check_stages(const SearchModuleLayoutsOptions& o, int64_t stages, int64_t per_rank) {
  TORCH_CHECK_VALUE(stages <= o.layers, "[search_module_layouts] stages has ", stages, ", and there are ", o.layers,
                    " layers; each stage needs one");
  TORCH_CHECK_VALUE(stages % per_rank == 0 && stages > per_rank, "[search_module_layouts] stages has ", stages,
                    ", which ", per_rank, " stages_per_rank do not divide into two or more pipeline ranks");
  const int64_t parts = stages / per_rank, node = cost_model(make_one_rank_mesh(o).world())->ranks_per_node;
  TORCH_CHECK_VALUE(o.ranks % parts == 0, "[search_module_layouts] ", o.ranks, " ranks cannot be divided into ", parts,
                    " pipeline ranks, for ", stages, " stages");
  const int64_t each = o.ranks / parts;
  TORCH_CHECK_VALUE(o.ranks <= node || each % node == 0 || node % each == 0, "[search_module_layouts] with ", stages,
                    " stages a pipeline rank has ", each, " ranks, which are neither whole nodes of ", node,
                    " ranks nor divide one");
}

void check_pipelines(const SearchModuleLayoutsOptions& o) {
  TORCH_CHECK_VALUE(!o.stages.empty(), "[search_module_layouts] stages has no numbers to try; {1} has");
  TORCH_CHECK_VALUE(o.stages_per_rank >= 1, "[search_module_layouts] stages_per_rank is ", o.stages_per_rank,
                    "; it must be at least 1");
  for (const int64_t stages : o.stages) {
    TORCH_CHECK_VALUE(stages >= 1, "[search_module_layouts] stages has ", stages, "; each must be at least 1");
  }
  if (!tries_pipelines(o)) return;
  TORCH_CHECK_VALUE(!o.schedules.empty(), "[search_module_layouts] schedules has no names to try; {\"1F1B\"} has");
  TORCH_CHECK_VALUE(o.layers > 0, "[search_module_layouts] stages of a pipeline need `layers`, the number of repeated ",
                    "layers, and a make() that heeds ModelChoice::layers");
  TORCH_CHECK_VALUE(
      o.between_layers.defined() && o.between_layers.dim() > 0,
      "[search_module_layouts] stages of a pipeline need `between_layers`, a tensor with the sizes of the "
      "activation that one layer gives to the next, of the whole batch; it may be on the device meta");
  for (const std::string& schedule : o.schedules) {
    const int64_t per_rank = stages_per_rank(o, schedule);
    make_pipeline_schedule(schedule, 1, per_rank, 1);  // error: no such name
    for (const int64_t stages : o.stages) {
      if (stages > 1) check_stages(o, stages, per_rank);
    }
  }
}

void check_experts(const SearchModuleLayoutsOptions& o) {
  TORCH_CHECK_VALUE(o.experts.empty() || !o.expert_sizes.empty(),
                    "[search_module_layouts] there are patterns of experts "
                    "and no expert_sizes to try; {1, 2, 4} has");
  for (const int64_t size : o.expert_sizes) {
    TORCH_CHECK_VALUE(size >= 1 && o.ranks % size == 0, "[search_module_layouts] expert_sizes has ", size,
                      ", which does not divide ", o.ranks, " ranks");
  }
}

// Of micro-batches of the tensors.
void check_micro_batches(const SearchModuleLayoutsOptions& o, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!o.micro_batches.empty(), "[search_module_layouts] micro_batches has no numbers to try; {1} has");
  for (const int64_t count : o.micro_batches) {
    TORCH_CHECK_VALUE(count >= 1, "[search_module_layouts] micro_batches has ", count, "; each must be at least 1");
    for (const at::Tensor& t : tensors) {
      TORCH_CHECK_VALUE(t.dim() == 0 || t.size(0) % count == 0, "[search_module_layouts] an input of sizes ", t.sizes(),
                        " cannot be divided into ", count, " micro-batches: choose numbers that divide its dim 0");
    }
  }
}

// No pipeline, and the pipelines of the options, of one micro-batch.
std::vector<std::optional<PipelineSchedule>> pipelines_of(const SearchModuleLayoutsOptions& o) {
  std::vector<std::optional<PipelineSchedule>> all;
  for (const int64_t stages : o.stages) {
    if (stages == 1) {
      all.emplace_back();
      continue;
    }
    for (const std::string& schedule : o.schedules) {
      const int64_t per_rank = stages_per_rank(o, schedule);
      all.push_back(make_pipeline_schedule(schedule, stages / per_rank, per_rank, stages / per_rank));
    }
  }
  return all;
}

// Changes the number of micro-batches. False: the schedule is none for that number.
bool set_micro_batches(std::optional<PipelineSchedule>& schedule, int64_t count) {
  if (!schedule) return true;
  const int64_t per_rank = schedule->num_stages / schedule->num_ranks;
  if (!pipeline_schedule_fault(schedule->name, schedule->num_ranks, per_rank, count).empty()) return false;
  schedule = make_pipeline_schedule(schedule->name, schedule->num_ranks, per_rank, count);
  return true;
}

}  // namespace

NamedNumbers mesh_sizes(const DeviceMesh& mesh) {
  NamedNumbers sizes;
  for (const std::string& name : mesh.names()) sizes.emplace_back(name, mesh.size(name));
  return sizes;
}

void check_options(const SearchModuleLayoutsOptions& o, const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(o.ranks >= 1, "[search_module_layouts] ranks is ", o.ranks, "; it must be at least 1");
  TORCH_CHECK_VALUE(o.max_steps >= 1, "[search_module_layouts] max_steps is ", o.max_steps, "; it must be at least 1");
  TORCH_CHECK_VALUE(o.layers >= 0, "[search_module_layouts] layers is ", o.layers, "; it must not be negative");
  check_settings("search_module_layouts", search_mesh_dims(o), o.settings);
  check_experts(o);
  check_micro_batches(o, inputs);
  check_pipelines(o);
  if (tries_pipelines(o)) check_micro_batches(o, {o.between_layers});
}

std::optional<PipelineSchedule> schedule_of(const ModuleLayouts& layouts) {
  if (layouts.stages == 1) return std::nullopt;
  return make_pipeline_schedule(layouts.schedule, layouts.stages / layouts.stages_per_rank, layouts.stages_per_rank,
                                layouts.micro_batches);
}

std::vector<std::string> search_mesh_dims(const SearchModuleLayoutsOptions& o) {
  if (o.expert_sizes.empty()) return {o.data_dim, o.tensor_dim};
  return {o.data_dim, o.expert_dim, o.tensor_dim};
}

DeviceMesh make_search_mesh(const SearchModuleLayoutsOptions& o, const std::vector<int64_t>& sizes) {
  int64_t ranks = 1;
  for (const int64_t size : sizes) ranks *= size;
  const World world = World::abstract(ranks, o.device_type);
  if (o.cost_model) set_cost_model(world, *o.cost_model);
  return DeviceMesh(world, sizes, search_mesh_dims(o));
}

DeviceMesh make_one_rank_mesh(const SearchModuleLayoutsOptions& o) {
  return make_search_mesh(o, std::vector<int64_t>(search_mesh_dims(o).size(), 1));
}

int64_t ranks_of_rows(const DeviceMesh& mesh) { return mesh.size() / mesh.size(mesh.ndim() - 1); }

namespace {

// Of the meshes to try, of so many ranks.
std::vector<std::vector<int64_t>> shapes_of(const SearchModuleLayoutsOptions& o, int64_t ranks) {
  std::vector<std::vector<int64_t>> shapes = mesh_shapes(ranks, search_mesh_dims(o).size());
  if (o.expert_sizes.empty()) return shapes;
  std::erase_if(shapes, [&](const auto& shape) { return !absl::c_linear_search(o.expert_sizes, shape[1]); });
  return shapes;
}

}  // namespace

std::vector<ModelArrangement> model_arrangements(const SearchModuleLayoutsOptions& o,
                                                 const std::vector<at::Tensor>& inputs) {
  const int64_t batch = batch_of(inputs);
  std::vector<ModelArrangement> all;
  bool allowed = false;
  for (const std::optional<PipelineSchedule>& pipeline : pipelines_of(o)) {
    for (const std::vector<int64_t>& shape : shapes_of(o, o.ranks / (pipeline ? pipeline->num_ranks : 1))) {
      const DeviceMesh mesh = make_search_mesh(o, shape);
      if (o.allows && !o.allows(mesh)) continue;
      allowed = true;
      for (int64_t n = 0; n < num_combinations(o.settings); ++n) {
        for (const int64_t count : o.micro_batches) {
          if (ranks_of_rows(mesh) > batch / count) continue;  // ranks without rows
          std::optional<PipelineSchedule> schedule = pipeline;
          if (!set_micro_batches(schedule, count)) continue;
          all.push_back({make_search_mesh(o, shape), combination(o.settings, n), count, schedule});
        }
      }
    }
  }
  TORCH_CHECK_VALUE(allowed, "[search_module_layouts] `allows` allows no mesh of ", o.ranks, " ranks",
                    o.expert_sizes.empty() ? "" : " with a size of expert_sizes");
  TORCH_CHECK_VALUE(!all.empty(), "[search_module_layouts] on each mesh that is allowed the data dim '", o.data_dim,
                    o.expert_sizes.empty() ? "'" : "' times '" + o.expert_dim + "'",
                    " is larger than a micro-batch of the ", batch, " rows of the inputs",
                    tries_pipelines(o) ? ", or no number of micro-batches is a multiple of the pipeline ranks" : "");
  return all;
}

}  // namespace internal

}  // namespace dtensor
