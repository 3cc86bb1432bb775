#include "dtensor/analysis/model_arrangements.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
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

// Of dim 1 of all inputs that have it; the most that there can be, if none has.
int64_t length_of(const std::vector<at::Tensor>& inputs) {
  int64_t length = std::numeric_limits<int64_t>::max();
  for (const at::Tensor& t : inputs) {
    if (t.dim() > 1) length = std::min(length, t.size(1));
  }
  return length;
}

bool tries_pipelines(const SearchModuleLayoutsOptions& o) {
  return absl::c_any_of(o.stages, [](int64_t stages) { return stages != 1; });
}

int64_t stages_per_rank(const SearchModuleLayoutsOptions& o, const std::string& schedule) {
  return schedule == "interleaved 1F1B" ? o.stages_per_rank : 1;
}

// Of a pipeline of `stages` stages, `per_rank` of them on each pipeline rank.
void check_stages(const SearchModuleLayoutsOptions& o, int64_t stages, int64_t per_rank) {
  TORCH_CHECK_VALUE(stages <= o.layers, "[SearchModuleLayoutsOptions] stages has ", stages, ", and there are ",
                    o.layers, " layers; each stage needs one");
  TORCH_CHECK_VALUE(stages % per_rank == 0 && stages > per_rank, "[SearchModuleLayoutsOptions] stages has ", stages,
                    ", which ", per_rank, " stages_per_rank do not divide into two or more pipeline ranks");
  const int64_t parts = stages / per_rank, node = cost_model(make_one_rank_mesh(o).world())->ranks_per_node;
  TORCH_CHECK_VALUE(o.ranks % parts == 0, "[SearchModuleLayoutsOptions] ", o.ranks, " ranks cannot be divided into ",
                    parts, " pipeline ranks, for ", stages, " stages");
  const int64_t each = o.ranks / parts;
  TORCH_CHECK_VALUE(o.ranks <= node || each % node == 0 || node % each == 0, "[SearchModuleLayoutsOptions] with ",
                    stages, " stages a pipeline rank has ", each, " ranks, which are neither whole nodes of ", node,
                    " ranks nor divide one");
}

void check_pipelines(const SearchModuleLayoutsOptions& o) {
  TORCH_CHECK_VALUE(!o.stages.empty(), "[SearchModuleLayoutsOptions] stages has no numbers to try; {1} has");
  TORCH_CHECK_VALUE(o.stages_per_rank >= 1, "[SearchModuleLayoutsOptions] stages_per_rank is ", o.stages_per_rank,
                    "; it must be at least 1");
  for (const int64_t stages : o.stages) {
    TORCH_CHECK_VALUE(stages >= 1, "[SearchModuleLayoutsOptions] stages has ", stages, "; each must be at least 1");
  }
  if (!tries_pipelines(o)) return;
  TORCH_CHECK_VALUE(!o.schedules.empty(), "[SearchModuleLayoutsOptions] schedules has no names to try; {\"1F1B\"} has");
  TORCH_CHECK_VALUE(o.layers > 0,
                    "[SearchModuleLayoutsOptions] stages of a pipeline need `layers`, the number of repeated ",
                    "layers, and a make() that heeds ModelChoice::layers");
  TORCH_CHECK_VALUE(
      o.between_layers.defined() && o.between_layers.dim() > 0,
      "[SearchModuleLayoutsOptions] stages of a pipeline need `between_layers`, a tensor with the sizes of the "
      "activation that one layer gives to the next, of the whole batch; it may be on the device meta");
  for (const std::string& schedule : o.schedules) {
    const int64_t per_rank = stages_per_rank(o, schedule);
    make_pipeline_schedule(schedule, 1, per_rank, 1);  // error: no such name
    for (const int64_t stages : o.stages) {
      if (stages > 1) check_stages(o, stages, per_rank);
    }
  }
}

void check_sizes(const SearchModuleLayoutsOptions& o, const char* option, const std::vector<int64_t>& sizes,
                 const std::string& name) {
  TORCH_CHECK_VALUE(sizes.empty() || !name.empty(), "[SearchModuleLayoutsOptions] there are ", option,
                    " and the name of their mesh dim is empty");
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 1 && o.ranks % size == 0, "[SearchModuleLayoutsOptions] ", option, " has ", size,
                      ", which does not divide ", o.ranks, " ranks");
  }
}

void check_inner_dims(const SearchModuleLayoutsOptions& o, const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(o.experts.empty() || !o.expert_sizes.empty(),
                    "[SearchModuleLayoutsOptions] there are patterns of experts "
                    "and no expert_sizes to try; {1, 2, 4} has");
  check_sizes(o, "shard_sizes", o.shard_sizes, o.shard_dim);
  check_sizes(o, "expert_sizes", o.expert_sizes, o.expert_dim);
  check_sizes(o, "context_sizes", o.context_sizes, o.context_dim);
  const bool has_lengths = absl::c_any_of(inputs, [](const at::Tensor& t) { return t.dim() > 1; });
  TORCH_CHECK_VALUE(o.context_sizes.empty() || has_lengths,
                    "[SearchModuleLayoutsOptions] context_sizes shards inputs by ", "dim 1, and none of the ",
                    inputs.size(), " inputs has two dims");
}

// Of micro-batches of the tensors.
void check_micro_batches(const SearchModuleLayoutsOptions& o, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!o.micro_batches.empty(),
                    "[SearchModuleLayoutsOptions] micro_batches has no numbers to try; {1} has");
  for (const int64_t count : o.micro_batches) {
    TORCH_CHECK_VALUE(count >= 1, "[SearchModuleLayoutsOptions] micro_batches has ", count,
                      "; each must be at least 1");
    for (const at::Tensor& t : tensors) {
      TORCH_CHECK_VALUE(t.dim() == 0 || t.size(0) % count == 0, "[SearchModuleLayoutsOptions] an input of sizes ",
                        t.sizes(), " cannot be divided into ", count,
                        " micro-batches: choose numbers that divide its dim 0");
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
  TORCH_CHECK_VALUE(o.ranks >= 1, "[SearchModuleLayoutsOptions] ranks is ", o.ranks, "; it must be at least 1");
  TORCH_CHECK_VALUE(o.max_steps >= 1, "[SearchModuleLayoutsOptions] max_steps is ", o.max_steps,
                    "; it must be at least 1");
  TORCH_CHECK_VALUE(o.layers >= 0, "[SearchModuleLayoutsOptions] layers is ", o.layers, "; it must not be negative");
  check_settings("SearchModuleLayoutsOptions", search_mesh_dims(o), o.settings);
  check_inner_dims(o, inputs);
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
  std::vector<std::string> dims = {o.data_dim};
  if (!o.shard_sizes.empty()) dims.push_back(o.shard_dim);
  if (!o.expert_sizes.empty()) dims.push_back(o.expert_dim);
  if (!o.context_sizes.empty()) dims.push_back(o.context_dim);
  dims.push_back(o.tensor_dim);
  return dims;
}

std::string shard_dim_of(const SearchModuleLayoutsOptions& o) { return o.shard_sizes.empty() ? "" : o.shard_dim; }

int64_t dim_of_groups(const SearchModuleLayoutsOptions& o) { return o.shard_sizes.empty() ? 0 : 1; }

std::string context_dim_of(const SearchModuleLayoutsOptions& o) { return o.context_sizes.empty() ? "" : o.context_dim; }

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

int64_t context_size(const SearchModuleLayoutsOptions& o, const DeviceMesh& mesh) {
  return o.context_sizes.empty() ? 1 : mesh.size(o.context_dim);
}

int64_t ranks_of_rows(const SearchModuleLayoutsOptions& o, const DeviceMesh& mesh) {
  return mesh.size() / mesh.size(o.tensor_dim) / context_size(o, mesh);
}

namespace {

// Of the meshes to try, of so many ranks.
std::vector<std::vector<int64_t>> shapes_of(const SearchModuleLayoutsOptions& o, int64_t ranks) {
  const std::vector<std::string> dims = search_mesh_dims(o);
  std::vector<std::vector<int64_t>> shapes = mesh_shapes(ranks, dims.size());
  const auto keep = [&](const std::vector<int64_t>& sizes, size_t dim) {
    std::erase_if(shapes, [&](const auto& shape) { return !absl::c_linear_search(sizes, shape[dim]); });
  };
  if (!o.shard_sizes.empty()) keep(o.shard_sizes, 1);
  if (!o.expert_sizes.empty()) keep(o.expert_sizes, 1 + static_cast<size_t>(dim_of_groups(o)));
  if (!o.context_sizes.empty()) keep(o.context_sizes, dims.size() - 2);
  return shapes;
}

}  // namespace

std::vector<ModelArrangement> model_arrangements(const SearchModuleLayoutsOptions& o,
                                                 const std::vector<at::Tensor>& inputs) {
  const int64_t batch = batch_of(inputs), length = length_of(inputs);
  std::vector<ModelArrangement> all;
  bool allowed = false;
  for (const std::optional<PipelineSchedule>& pipeline : pipelines_of(o)) {
    for (const std::vector<int64_t>& shape : shapes_of(o, o.ranks / (pipeline ? pipeline->num_ranks : 1))) {
      const DeviceMesh mesh = make_search_mesh(o, shape);
      if (o.allows && !o.allows(mesh)) continue;
      allowed = true;
      if (context_size(o, mesh) > length) continue;  // ranks without columns
      for (int64_t n = 0; n < num_combinations(o.settings); ++n) {
        for (const int64_t count : o.micro_batches) {
          if (ranks_of_rows(o, mesh) > batch / count) continue;  // ranks without rows
          std::optional<PipelineSchedule> schedule = pipeline;
          if (!set_micro_batches(schedule, count)) continue;
          all.push_back({make_search_mesh(o, shape), combination(o.settings, n), count, schedule});
        }
      }
    }
  }
  TORCH_CHECK_VALUE(allowed, "[SearchModuleLayoutsOptions] ", o.allows ? "`allows` allows no mesh" : "there is no mesh",
                    " of ", o.ranks, " ranks", o.shard_sizes.empty() ? "" : " with a size of shard_sizes",
                    o.expert_sizes.empty() ? "" : " with a size of expert_sizes",
                    o.context_sizes.empty() ? "" : " with a size of context_sizes");
  TORCH_CHECK_VALUE(!all.empty(), "[SearchModuleLayoutsOptions] on each mesh that is allowed the data dim '",
                    o.data_dim, o.shard_sizes.empty() ? "'" : "' times '" + o.shard_dim + "'",
                    o.expert_sizes.empty() ? "" : " times '" + o.expert_dim + "'",
                    " is larger than a micro-batch of the ", batch, " rows of the inputs",
                    o.context_sizes.empty() ? "" : ", or '" + o.context_dim + "' than dim 1 of an input",
                    tries_pipelines(o) ? ", or no number of micro-batches is a multiple of the pipeline ranks" : "");
  return all;
}

ModelArrangement arrangement_of(const char* function, const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& o,
                                const std::vector<at::Tensor>& inputs) {
  const std::vector<std::string> dims = search_mesh_dims(o);
  const bool named = absl::c_equal(layouts.mesh, dims, [](const auto& a, const auto& name) { return a.first == name; });
  std::vector<int64_t> sizes;
  for (const auto& [name, size] : layouts.mesh) sizes.push_back(size);
  TORCH_CHECK_VALUE(layouts.experts == o.experts, "[", function, "] the layouts have the experts '",
                    absl::StrJoin(layouts.experts, "', '"), "', and the options '", absl::StrJoin(o.experts, "', '"),
                    "': give both the same patterns");
  const auto check_dim = [&](const char* field, const std::string& dim, const std::string& of_options,
                             const char* sizes) {
    TORCH_CHECK_VALUE(dim == of_options, "[", function, "] the layouts have the ", field, " '", dim,
                      "', and the options '", of_options, "'",
                      of_options.empty() ? c10::str(", as ", sizes, " is empty") : "", ": give both the same");
  };
  check_dim("context_dim", layouts.context_dim, context_dim_of(o), "context_sizes");
  check_dim("shard_dim", layouts.shard_dim, shard_dim_of(o), "shard_sizes");
  const std::string fault = pipeline_fault(layouts);
  TORCH_CHECK_VALUE(fault.empty(), "[", function, "] of the layouts ", fault);
  SearchModuleLayoutsOptions of_layouts = o;
  of_layouts.micro_batches = {layouts.micro_batches}, of_layouts.stages = {layouts.stages},
  of_layouts.schedules = {layouts.schedule};
  of_layouts.stages_per_rank = layouts.stages_per_rank;
  check_options(of_layouts, inputs);
  const int64_t pipeline = std::max<int64_t>(layouts.stages / layouts.stages_per_rank, 1);  // ranks of it
  const bool positive = absl::c_all_of(sizes, [](int64_t size) { return size >= 1; });
  TORCH_CHECK_VALUE(named && positive && absl::c_accumulate(sizes, pipeline, std::multiplies<int64_t>()) == o.ranks,
                    "[", function, "] the mesh of the layouts is '", numbers_text(layouts.mesh),
                    "'; expected the mesh dims '", absl::StrJoin(dims, "' and '"), "', in this order, of ",
                    o.ranks / pipeline, " ranks together");
  TORCH_CHECK_VALUE(
      absl::c_equal(layouts.settings, o.settings, [](const auto& a, const auto& b) { return a.first == b.first; }), "[",
      function, "] the layouts have the settings '", numbers_text(layouts.settings),
      "'; give one value for each of options.settings, in their order");
  const DeviceMesh mesh = make_search_mesh(o, sizes);
  const int64_t rows = batch_of(inputs) / layouts.micro_batches, columns = length_of(inputs);
  TORCH_CHECK_VALUE(ranks_of_rows(o, mesh) <= rows && context_size(o, mesh) <= columns, "[", function,
                    "] the layouts divide ", rows, " rows of a micro-batch among ", ranks_of_rows(o, mesh),
                    " ranks, and dim 1 of an input among ", context_size(o, mesh), "; some would have nothing");
  return {mesh, layouts.settings, layouts.micro_batches, schedule_of(layouts)};
}

}  // namespace internal

}  // namespace dtensor
