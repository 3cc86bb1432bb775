#include "benchmarks/mlp_step.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"

namespace dtensor::benchmarks {

std::string name_of(const MlpSizes& s) {
  return absl::StrCat("an MLP, ", s.ranks, " ranks, ", s.tokens, " tokens, ", s.width, " x ", s.hidden);
}

MlpInputs make_mlp_inputs(const MlpSizes& s, int64_t ranks_of_process) {
  MlpInputs in;
  in.x = at::randn({s.tokens, s.width});
  for (int64_t r = 0; r < ranks_of_process; ++r) {
    in.up.push_back(at::randn({s.width, s.hidden / s.ranks}));
    in.down.push_back(at::randn({s.hidden / s.ranks, s.width}));
  }
  return in;
}

std::function<void()> our_mlp_step(const MlpInputs& in, const DeviceMesh& mesh) {
  const std::vector<at::Tensor> copies(in.up.size(), in.x);
  return [x = from_local(copies, mesh, {Replicate()}), up = from_local(in.up, mesh, {Shard(1)}).requires_grad_(),
          down = from_local(in.down, mesh, {Shard(0)}).requires_grad_()] {
    up.mutable_grad() = down.mutable_grad() = at::Tensor();
    const at::Tensor y = redistribute(x.mm(up).relu().mm(down), {Replicate()});
    y.backward(at::ones_like(y));
  };
}

}  // namespace dtensor::benchmarks
