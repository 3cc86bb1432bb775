// Clusters by name: nodes of 8 A100 SXM of 80 GB ("a100x8"), H100 SXM ("h100x8"), H200 SXM ("h200x8"), B200 ("b200x8")
// or MI300X ("mi300xx8"), and of two EPYC 9654 ("epyc9654x2"). They are part of the library, so that programs need no
// files.
//
//   const Cluster h100 = cluster("h100x8");
//   const auto search = search_layouts(make_step, {.ranks = 64, .mesh_dims = {"dp", "tp"},
//                                                  .max_bytes = h100.memory_bytes, .cost_model = h100.cost_model()});
#pragma once

#include <string>
#include <vector>

#include "plan/cluster.h"

namespace dtensor {

// One of cluster_names(). Error (ValueError): no such name; the text lists them.
Cluster cluster(const std::string& name);
std::vector<std::string> cluster_names();

}  // namespace dtensor
