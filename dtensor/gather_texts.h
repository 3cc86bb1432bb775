// A text from every process of a world to all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// All ranks of the world in a row; undefined if this process has them all, or there is no world, so that there is no
// other process.
DeviceMesh ranks_of(const World& world);

// The `mine` of every process, in the order of the ranks. Texts may differ in length. `ranks` has one dim, and its
// processes call together; undefined: this process is alone. `op`: the caller, for reports; the collectives count as
// explicit ones of that name.
std::vector<std::string> gather_texts(const DeviceMesh& ranks, const std::string& mine, std::string_view op);

}  // namespace dtensor::internal
