// Which meshes, settings and numbers of micro-batches a search of a model's layouts tries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/layout_settings.h"
#include "dtensor/pipeline_schedule.h"
#include "dtensor/search_module_layouts_options.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

struct ModelArrangement {
  // The data dim, those of groups, experts and sequences if the options have them, and the tensor dim, of an abstract
  // world of its own with the options' cost model; of one pipeline rank.
  DeviceMesh mesh;
  NamedNumbers settings = {};
  int64_t micro_batches = 1;
  std::optional<PipelineSchedule> schedule = std::nullopt;  // nullopt: no pipeline

  int64_t stages() const { return schedule ? schedule->num_stages : 1; }
  int64_t stages_per_rank() const { return schedule ? schedule->num_stages / schedule->num_ranks : 1; }
  // That the slowest pipeline rank has of `all` repeated layers.
  int64_t layers_of_rank(int64_t all) const { return (all + stages() - 1) / stages() * stages_per_rank(); }
};

NamedNumbers mesh_sizes(const DeviceMesh& mesh);

// Errors (ValueError): see search_module_layouts().
void check_options(const SearchModuleLayoutsOptions& options, const std::vector<at::Tensor>& inputs);
// The names of the mesh dims.
std::vector<std::string> search_mesh_dims(const SearchModuleLayoutsOptions& options);
// ModuleLayouts::context_dim and shard_dim of what the search tries.
std::string context_dim_of(const SearchModuleLayoutsOptions& options);
std::string shard_dim_of(const SearchModuleLayoutsOptions& options);
// The mesh dim that groups of fully_shard() are sharded over.
int64_t dim_of_groups(const SearchModuleLayoutsOptions& options);
// Of an abstract world of its own with the options' cost model. `sizes`: one for each of these dims.
DeviceMesh make_search_mesh(const SearchModuleLayoutsOptions& options, const std::vector<int64_t>& sizes);
DeviceMesh make_one_rank_mesh(const SearchModuleLayoutsOptions& options);
// Of the mesh dim for sequences; 1: the options have none.
int64_t context_size(const SearchModuleLayoutsOptions& options, const DeviceMesh& mesh);
// How many ranks of the mesh have different rows of the inputs: all but those along the tensor dim and the one for
// sequences.
int64_t ranks_of_rows(const SearchModuleLayoutsOptions& options, const DeviceMesh& mesh);
// That of the layouts; nullopt: they have no pipeline. REQUIRES: check_options() of options with these alone.
std::optional<PipelineSchedule> schedule_of(const ModuleLayouts& layouts);
// That of the layouts, on the options' ranks. Error (ValueError): options as of search_module_layouts(); layouts that
// are not of these ranks, mesh dims, settings and experts. `function`: for the text.
ModelArrangement arrangement_of(const char* function, const ModuleLayouts& layouts,
                                const SearchModuleLayoutsOptions& options, const std::vector<at::Tensor>& inputs);
// All that the options allow. REQUIRES: check_options(). Error (ValueError): none.
std::vector<ModelArrangement> model_arrangements(const SearchModuleLayoutsOptions& options,
                                                 const std::vector<at::Tensor>& inputs);

}  // namespace dtensor::internal
