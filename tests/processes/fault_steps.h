// The steps of jobs in which a fault occurs: collectives of four kinds in turn, with known results.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"

namespace dtensor::testing {

class FaultSteps {
 public:
  explicit FaultSteps(const World& world) : mesh_(world, {world.size()}, {"tp"}) {}

  // The collective that is the k-th of this world, from 1: all_reduce, all_gather, reduce_scatter, all_to_all, and
  // again. False: its result is wrong.
  bool run(int64_t k) const {
    const int64_t n = mesh_.size(), rank = mesh_.local_ranks()[0];
    const double own = static_cast<double>(rank + 1), sum = static_cast<double>(n * (n + 1) / 2);
    const auto ranks = at::arange(1, n + 1, at::kFloat);
    switch (k % 4) {
      case 1:
        return gives(at::full({4}, own), {4}, Partial(), Replicate(), at::full({4}, sum));
      case 2:
        return gives(at::full({2}, own), {2 * n}, Shard(0), Replicate(), ranks.repeat_interleave(2));
      case 3:
        return gives(at::full({2 * n}, own), {2 * n}, Partial(), Shard(0), at::full({2}, sum));
      default:
        return gives(at::full({1, n}, own), {n, n}, Shard(0), Shard(1), ranks.view({n, 1}));
    }
  }

 private:
  bool gives(const at::Tensor& part, std::vector<int64_t> shape, Placement from, Placement to,
             const at::Tensor& expected) const {
    FromLocalOptions options;
    options.shape = std::move(shape);
    const auto x = from_local({part}, mesh_, {from}, options);
    return at::equal(to_local(redistribute(x, {to}))[0], expected);
  }

  const DeviceMesh mesh_;
};

}  // namespace dtensor::testing
