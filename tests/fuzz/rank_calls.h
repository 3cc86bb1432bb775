// What the ranks of a job would communicate, found without the job: each rank's run is one in a World::fake.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "observe/comm_debug_mode.h"

namespace dtensor::fuzz {

// The collectives that were counted, one per line.
inline std::string text_of_calls(const CommDebugMode& comm) {
  std::ostringstream text;
  for (const CommEvent& e : comm.events()) {
    text << to_string(e.collective) << ' ' << e.bytes << " bytes for " << e.cause.op << ' ' << e.cause.argument << '\n';
    if (e.layout_change) text << "  " << to_string(*e.layout_change) << '\n';
  }
  return text.str();
}

// A mesh of this shape for every rank of a world that consists of it alone; nothing but this rank exists.
inline std::vector<DeviceMesh> mesh_of_each_rank(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  std::vector<DeviceMesh> meshes;
  for (int64_t rank = 0; rank < size; ++rank) meshes.emplace_back(World::fake(size, rank), shape);
  return meshes;
}

}  // namespace dtensor::fuzz
