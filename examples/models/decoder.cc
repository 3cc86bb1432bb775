#include "examples/models/decoder.h"

#include <array>
#include <utility>

#include "dtensor/distribute_module.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::Placement;
using dtensor::Shard;
using dtensor::StridedShard;

void shard_decoder(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  const std::array<std::pair<const char*, Placement>, 6> by_rows = {{{"q", Shard(0)},
                                                                     {"k", Shard(0)},
                                                                     {"v", Shard(0)},
                                                                     {"up", Shard(0)},
                                                                     {"qkv", StridedShard(0, 3)},
                                                                     {"gate_up", StridedShard(0, 2)}}};
  for (const auto& [layer, placement] : by_rows) {
    if (name != layer) continue;
    shard_parameter(module, "weight", mesh, over(mesh, "tp", placement));
    shard_parameter(module, "bias", mesh, over(mesh, "tp", placement));
  }
  for (const char* by_columns : {"out", "down"}) {
    if (name == by_columns) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(1)));
  }
}

}  // namespace examples
