#include "examples/models/llama.h"

#include "dtensor/distribute_module.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::Shard;

void shard_llama(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  for (const char* by_rows : {"tokens", "head", "wq", "wk", "wv", "gate", "up"}) {
    if (name == by_rows) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(0)));
  }
  for (const char* by_columns : {"wo", "down"}) {
    if (name == by_columns) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(1)));
  }
}

}  // namespace examples
