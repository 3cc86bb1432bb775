// The figures of vendors' data sheets for a kind of cluster, and the cost model that follows from them: for a search of
// layouts on machines that one does not have. Where there is the machine, //tools/calibrate measures it.
//
//   const Cluster ours = load_cluster("cluster.json");  // known_clusters.h has some by name
//   const auto search = search_layouts(make_step, {.ranks = 64, .mesh_dims = {"dp", "tp"},
//                                                  .max_bytes = ours.memory_bytes, .cost_model = ours.cost_model()});
//
// All figures are of one rank, which has one GPU, or one socket of a cluster of CPUs. They are peaks, and those of
// products are of dense matrices, not the doubled ones for structured sparsity. `efficiency` is the part of them that
// the cost model takes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>

#include "plan/cost_model.h"

namespace dtensor {

struct Cluster {
  std::string name;            // "h100x8"
  std::string source;          // the data sheets, and what is not from them
  int64_t ranks_per_node = 1;  // consecutive ranks of a world
  int64_t memory_bytes = 0;
  double memory_bandwidth = 0;                       // bytes per second, read and written together
  std::map<c10::ScalarType, double> flops_by_dtype;  // per second; has at least float32
  // Of products of float32 tensors that are computed as TF32, after at::globalContext().setAllowTF32CuBLAS(true). 0:
  // the device has no TF32.
  double tf32_flops = 0;
  LinkCost within_node;  // bandwidth: in one direction, to all other ranks together
  LinkCost between_nodes;

  // Achievable parts of the peaks, greater than 0 and at most 1, and where they are from.
  struct Efficiency {
    double products = 1;
    double memory = 1;
    double links = 1;
    std::string reason;
    friend bool operator==(const Efficiency&, const Efficiency&) = default;
  } efficiency;

  // Peaks times efficiency. Products of dtypes without a figure have that of float32. Starting an operator takes no
  // time in it: set operator_latency to what `calibrate` measures on a like machine.
  // Errors (ValueError): `tf32` on a device without it; flops_by_dtype without float32.
  CostModel cost_model(bool tf32 = false) const;

  // What cluster_from_json() reads.
  std::string to_json() const;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// All fields but "tf32", "int8" and dtypes other than "float32" are required; the text of cluster("h100x8").to_json()
// is a file to start from. Errors (ValueError): the file cannot be read or is no JSON; an unknown or missing field; a
// value of another type, negative, 0 (latencies may be), or an efficiency greater than 1. Each names file and field.
Cluster load_cluster(const std::string& path);
Cluster cluster_from_json(const std::string& text, const std::string& name = "cluster");

}  // namespace dtensor
