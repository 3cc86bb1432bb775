#include "dtensor/analysis/model_arrangements.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

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
  check_settings("search_module_layouts", {o.data_dim, o.tensor_dim}, o.settings);
  TORCH_CHECK_VALUE(!o.micro_batches.empty(), "[search_module_layouts] micro_batches has no numbers to try; {1} has");
  for (const int64_t count : o.micro_batches) {
    TORCH_CHECK_VALUE(count >= 1, "[search_module_layouts] micro_batches has ", count, "; each must be at least 1");
    for (const at::Tensor& t : inputs) {
      TORCH_CHECK_VALUE(t.dim() == 0 || t.size(0) % count == 0, "[search_module_layouts] an input of sizes ", t.sizes(),
                        " cannot be divided into ", count, " micro-batches: choose numbers that divide its dim 0");
    }
  }
}

DeviceMesh make_search_mesh(const SearchModuleLayoutsOptions& o, int64_t data_size, int64_t tensor_size) {
  const World world = World::abstract(data_size * tensor_size, o.device_type);
  if (o.cost_model) set_cost_model(world, *o.cost_model);
  return DeviceMesh(world, {data_size, tensor_size}, {o.data_dim, o.tensor_dim});
}

std::vector<ModelArrangement> model_arrangements(const SearchModuleLayoutsOptions& o,
                                                 const std::vector<at::Tensor>& inputs) {
  const int64_t batch = batch_of(inputs);
  std::vector<ModelArrangement> all;
  bool allowed = false;
  for (const std::vector<int64_t>& shape : mesh_shapes(o.ranks, 2)) {
    if (o.allows && !o.allows(make_search_mesh(o, shape[0], shape[1]))) continue;
    allowed = true;
    for (int64_t n = 0; n < num_combinations(o.settings); ++n) {
      for (const int64_t count : o.micro_batches) {
        if (shape[0] > batch / count) continue;  // ranks without rows
        all.push_back({make_search_mesh(o, shape[0], shape[1]), combination(o.settings, n), count});
      }
    }
  }
  TORCH_CHECK_VALUE(allowed, "[search_module_layouts] `allows` allows no mesh of ", o.ranks, " ranks");
  TORCH_CHECK_VALUE(!all.empty(), "[search_module_layouts] on each mesh that is allowed the data dim '", o.data_dim,
                    "' is larger than a micro-batch of the ", batch, " rows of the inputs");
  return all;
}

}  // namespace internal

}  // namespace dtensor
