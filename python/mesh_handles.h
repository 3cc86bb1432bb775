// Meshes named by numbers, for callers that cannot hold a C++ object: the operators of dtensor_ops.cc.
//
//   const int64_t handle = add_mesh(DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}));
//   mesh_of(handle, "distribute");             // the same mesh
//
// Handles count up from 1 and stay valid until the process ends. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

int64_t add_mesh(DeviceMesh mesh);

// How many handles were given out.
int64_t num_meshes();

// The handle of a mesh, the one that it was given first; a new one for a mesh that has none.
int64_t handle_of(const DeviceMesh& mesh);

// Error (c10::ValueError): there is no such handle; the text begins with `caller`.
DeviceMesh mesh_of(int64_t handle, std::string_view caller);

}  // namespace dtensor::internal
