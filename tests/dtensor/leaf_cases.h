// A mesh, distributed leaves, and a count of their communication: shared by the tests of dispatch and of gradients.
#pragma once

#include <torch/types.h>
#include <torch/utils.h>

#include <vector>

#include "comm/scope.h"
#include "dtensor/redistribute.h"
#include "mesh/world.h"

namespace dtensor {

inline DeviceMesh mesh4() { return DeviceMesh(World::local(4), {4}, {"x"}); }

struct Counter : internal::CommListener {
  std::vector<CommEvent> events;
  void on_comm(const CommEvent& e, bool before) override {
    if (!before) events.push_back(e);
  }
};

inline at::Tensor leaf(const at::Tensor& t, const DeviceMesh& mesh, const Placements& placements) {
  return distribute_tensor(t.detach(), mesh, placements).requires_grad_();
}

inline bool same(const at::Tensor& distributed, const at::Tensor& plain) {
  return torch::allclose(full_tensor(distributed), plain, 1e-10, 1e-12);
}

}  // namespace dtensor
