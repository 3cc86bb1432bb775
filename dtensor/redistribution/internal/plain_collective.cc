#include "dtensor/redistribution/internal/plain_collective.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dtensor/redistribution/internal/plain_gradients.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PlainBackward {
  PlainCall call;
  PlainCollective backward;
  std::vector<std::pair<std::vector<int64_t>, at::TensorOptions>> results;  // sizes and options
  size_t inputs = 0;                                                        // of forward, `reached_by` included
};

struct PlainCollectiveFn : torch::autograd::Function<PlainCollectiveFn> {
  // `tensors`: one per rank of this process, then those of `reached_by`.
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, const PlainCall& call,
                               const PlainCollective& forward, const PlainCollective& backward) {
    const at::TensorList own = tensors.slice(0, call.mesh.local_ranks().size());
    const RankTensors results = forward(RankTensors(own.begin(), own.end()));
    PlainBackward back{call, backward, {}, tensors.size()};
    for (const at::Tensor& t : results) back.results.emplace_back(t.sizes().vec(), t.options());
    save_for_backward(ctx, std::move(back));
    ctx->set_materialize_grads(false);  // would make distributed zeros in a MeshScope
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto back = saved_for_backward<PlainBackward>(ctx);
    make_plain(grads, back.call.mesh, back.call.function().c_str());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) continue;
      const LocalGuard guard;
      grads[i] = at::zeros(back.results[i].first, back.results[i].second);
    }
    variable_list result = back.backward(grads);
    result.resize(back.inputs + 3);
    return result;
  }
};

}  // namespace

RankTensors differentiable(const PlainCall& call, const RankTensors& tensors, const PlainCollective& forward,
                           const PlainCollective& backward, const RankTensors& reached_by) {
  if (tensors.empty()) return forward(tensors);
  RankTensors inputs = tensors;
  inputs.insert(inputs.end(), reached_by.begin(), reached_by.end());
  return PlainCollectiveFn::apply(at::TensorList(inputs), call, forward, backward);
}

}  // namespace dtensor::internal
