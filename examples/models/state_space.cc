#include "examples/models/state_space.h"

#include "dtensor/distribute_module.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::Shard;

void shard_state_space(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto channels_first = over(mesh, "tp", Shard(0)), channels_last = over(mesh, "tp", Shard(1));
  if (module.as<StateSpace>()) {
    for (const char* parameter : {"mixing", "decay", "skip"}) shard_parameter(module, parameter, mesh, channels_first);
  }
  for (const char* by_rows : {"in", "gate", "step"}) {
    if (name == by_rows) shard_parameter(module, "weight", mesh, channels_first);
  }
  if (name == "step") shard_parameter(module, "bias", mesh, channels_first);
  for (const char* by_columns : {"select", "out"}) {
    if (name == by_columns) shard_parameter(module, "weight", mesh, channels_last);
  }
}

}  // namespace examples
