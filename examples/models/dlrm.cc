#include "examples/models/dlrm.h"

#include "dtensor/distribute_module.h"
#include "dtensor/parallel_style.h"

namespace examples {
namespace {

void shard_tables(torch::nn::Module& module, const dtensor::DeviceMesh& mesh, int64_t dim) {
  if (!module.as<torch::nn::Embedding>()) return;
  shard_parameter(module, "weight", mesh, dtensor::Placements(static_cast<size_t>(mesh.ndim()), dtensor::Shard(dim)));
}

}  // namespace

void shard_tables_by_rows(const std::string&, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  shard_tables(module, mesh, 0);
}

void shard_tables_by_columns(const std::string&, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  shard_tables(module, mesh, 1);
}

dtensor::ParallelPlan styles_of_tables_by_rows() {
  return {{"tables.*", dtensor::ParameterStyle({{"weight", dtensor::Shard(0)}})}};
}

dtensor::ParallelPlan styles_of_tables_by_columns() {
  return {{"tables.*", dtensor::ParameterStyle({{"weight", dtensor::Shard(1)}})}};
}

}  // namespace examples
