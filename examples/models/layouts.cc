#include "examples/models/layouts.h"

#include <torch/nn/module.h>

#include "dtensor/distribute_module.h"

namespace examples {

void shard_fully(const std::string&, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const dtensor::Placements by_rows(static_cast<size_t>(mesh.ndim()), dtensor::Shard(0));
  for (const auto& p : module.named_parameters(/*recurse=*/false)) shard_parameter(module, p.key(), mesh, by_rows);
}

}  // namespace examples
