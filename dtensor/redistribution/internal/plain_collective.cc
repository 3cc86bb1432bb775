#include "dtensor/redistribution/internal/plain_collective.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dtensor/redistribution/internal/plain_gradients.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/stand_in.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"

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
  // `tensors`: `count` that travel, then those of `reached_by`.
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, size_t count, const PlainCall& call,
                               const PlainCollective& forward, const PlainCollective& backward) {
    const at::TensorList own = tensors.slice(0, count);
    const RankTensors results = forward(RankTensors(own.begin(), own.end()));
    PlainBackward back{call, backward, {}, tensors.size()};
    for (const at::Tensor& t : results) back.results.emplace_back(t.sizes().vec(), t.options());
    save_for_backward(ctx, std::move(back));
    ctx->set_materialize_grads(false);  // would make distributed zeros in a MeshScope
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto back = saved_for_backward<PlainBackward>(ctx);
    const bool has_data = back.call.mesh.world().has_data();
    if (has_data) make_plain(grads, back.call.mesh, back.call.function().c_str());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) continue;
      const auto& [sizes, options] = back.results[i];
      const LocalGuard guard;
      grads[i] = has_data ? at::zeros(sizes, options)
                          : make_stand_in(back.call.mesh, sizes, c10::typeMetaToScalarType(options.dtype()));
    }
    variable_list result = back.backward(grads);
    result.resize(back.inputs + 4);
    return result;
  }
};

}  // namespace

RankTensors differentiable(const PlainCall& call, const RankTensors& tensors, const PlainCollective& forward,
                           const PlainCollective& backward, const RankTensors& reached_by) {
  if (tensors.empty()) return forward(tensors);
  RankTensors inputs = tensors;
  inputs.insert(inputs.end(), reached_by.begin(), reached_by.end());
  return PlainCollectiveFn::apply(at::TensorList(inputs), tensors.size(), call, forward, backward);
}

}  // namespace dtensor::internal
