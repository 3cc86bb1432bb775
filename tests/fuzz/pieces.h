// What random pieces of models are made of.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"

namespace dtensor::fuzz {

using torch::Tensor;

// Makes the same tensors and choices each time from one seed, distributed or plain.
class Pieces {
 public:
  Pieces(uint64_t seed, const DeviceMesh& mesh, bool distributed)
      : random_(seed), mesh_(mesh), distributed_(distributed) {}

  int64_t number(int64_t least, int64_t most) { return least + static_cast<int64_t>(random_() % (most - least + 1)); }
  bool coin() { return number(0, 1) == 1; }

  // Numbers between -1 and 1, laid out as `placements` where tensors are distributed.
  Tensor tensor(std::vector<int64_t> sizes, const Placements& placements) {
    const double shift = static_cast<double>(number(0, 1000));
    const Tensor t = (torch::arange(c10::multiply_integers(sizes), torch::kDouble) * 0.7 + shift).sin().view(sizes);
    return distributed_ ? distribute_tensor(t, mesh_, placements) : t;
  }
  Tensor parameter(std::vector<int64_t> sizes, const Placements& placements) {
    return tensor(std::move(sizes), placements).requires_grad_();
  }

  // Replicated, or sharded over one of the dims, along each mesh dim.
  Placements placements(int64_t ndim) {
    Placements result;
    for (int64_t d = 0; d < mesh_.ndim(); ++d) {
      const int64_t dim = number(0, ndim);
      result.push_back(dim == ndim ? Replicate() : Shard(dim));
    }
    return result;
  }
  Placements all(const Placement& p) const { return Placements(static_cast<size_t>(mesh_.ndim()), p); }

  std::mt19937_64& random() { return random_; }
  const DeviceMesh& mesh() const { return mesh_; }
  bool distributed() const { return distributed_; }

 private:
  std::mt19937_64 random_;
  DeviceMesh mesh_;
  bool distributed_;
};

}  // namespace dtensor::fuzz
