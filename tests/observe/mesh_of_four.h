// A mesh of four ranks in this process, and a tensor on it.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/factories.h"
#include "mesh/device_mesh.h"

namespace dtensor {

inline const DeviceMesh& mesh() {
  static const DeviceMesh m(World::local(4), {2, 2}, {"dp", "tp"});
  return m;
}

inline at::Tensor partial() { return full({8, 2}, 1.0, mesh(), {Replicate(), Partial()}); }

}  // namespace dtensor
