// Which meshes, settings and numbers of micro-batches a search of a model's layouts tries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/layout_settings.h"
#include "dtensor/search_module_layouts_options.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

struct ModelArrangement {
  DeviceMesh mesh;  // the data dim and the tensor dim, of an abstract world of its own with the options' cost model
  NamedNumbers settings = {};
  int64_t micro_batches = 1;
};

NamedNumbers mesh_sizes(const DeviceMesh& mesh);

// Errors (ValueError): see search_module_layouts().
void check_options(const SearchModuleLayoutsOptions& options, const std::vector<at::Tensor>& inputs);
// Of an abstract world of data_size * tensor_size ranks with the options' cost model.
DeviceMesh make_search_mesh(const SearchModuleLayoutsOptions& options, int64_t data_size, int64_t tensor_size);
// All that the options allow. REQUIRES: check_options(). Error (ValueError): none.
std::vector<ModelArrangement> model_arrangements(const SearchModuleLayoutsOptions& options,
                                                 const std::vector<at::Tensor>& inputs);

}  // namespace dtensor::internal
