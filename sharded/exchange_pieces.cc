#include "sharded/exchange_pieces.h"

#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/dispatch_key.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// State for the backward, as an object, since autograd's contexts store only IValues.
struct Way : torch::CustomClassHolder {
  PieceCounts how;
  std::string op;
  std::string module_path;  // where the forward ran
  c10::TensorOptions options;
};

PieceCounts reversed(const PieceCounts& how) {
  PieceCounts back = how;
  for (size_t s = 0; s < how.counts.size(); ++s) {
    for (size_t r = 0; r < how.counts.size(); ++r) back.counts[r][s] = how.counts[s][r];
  }
  return back;
}

CommCall call_for(const DeviceMesh& ranks, const std::string& op, c10::ScalarType dtype, int64_t elements) {
  CommCall call;
  call.group = &ranks.get_group(0);
  call.ranks = ranks.local_ranks();
  call.event.cause = {op, "", current_scope().module_path, /*implicit=*/true};
  call.event.dtype = dtype;
  call.event.bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  return call;
}

// Elements received by the rank that receives most from others.
int64_t most_received(const PieceCounts& how) {
  int64_t most = 0;
  for (size_t r = 0; r < how.counts.size(); ++r) {
    int64_t sum = 0;
    for (size_t s = 0; s < how.counts.size(); ++s) sum += s == r ? 0 : how.counts[s][r];
    most = std::max(most, sum);
  }
  return most;
}

RankPieces exchange(const RankPieces& inputs, const PieceCounts& how, const std::string& op) {
  if (inputs.empty()) return {};
  const DeviceMesh& ranks = how.ranks;
  CommCall call = call_for(ranks, op, inputs[0].at(0).scalar_type(), most_received(how));
  for (int64_t rank : ranks.local_ranks()) {
    const int64_t receiver = call.group->position_of[rank];
    auto& shapes = call.receive_shapes.emplace_back();
    for (const auto& sent : how.counts) shapes.push_back({sent[receiver]});
  }
  return ranks.world().communicator().all_to_all(call, inputs);
}

variable_list flat(const RankPieces& pieces) {
  variable_list result;
  for (const auto& of_rank : pieces) result.insert(result.end(), of_rank.begin(), of_rank.end());
  return result;
}

RankPieces per_rank(const variable_list& tensors, size_t pieces) {
  RankPieces result;
  for (size_t i = 0; i < tensors.size(); i += pieces) {
    result.emplace_back(tensors.begin() + static_cast<int64_t>(i), tensors.begin() + static_cast<int64_t>(i + pieces));
  }
  return result;
}

// The gradient of the i-th result, which was not used.
at::Tensor zeros_of_piece(const Way& way, size_t i) {
  const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);
  const size_t n = way.how.counts.size();
  const DeviceMesh& ranks = way.how.ranks;
  const int64_t receiver = ranks.local_rank(ranks.local_ranks()[i / n], 0);
  return at::zeros({way.how.counts[i % n][receiver]}, way.options);
}

struct ExchangeFn : Function<ExchangeFn> {
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, c10::intrusive_ptr<Way> way) {
    ctx->saved_data["way"] = c10::IValue::make_capsule(way);
    ctx->set_materialize_grads(false);  // LibTorch's zeros would be distributed in a MeshScope
    return flat(exchange(per_rank(inputs.vec(), way->how.counts.size()), way->how, way->op));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto way = c10::static_intrusive_pointer_cast<Way>(ctx->saved_data.at("way").toCapsule());
    const ScopeGuard scope([&](Scope& s) { s.module_path = way->module_path; });
    variable_list gradients;
    for (size_t i = 0; i < grads.size(); ++i) {
      gradients.push_back(grads[i].defined() ? grads[i].contiguous() : zeros_of_piece(*way, i));
    }
    variable_list result =
        flat(exchange_pieces(per_rank(gradients, way->how.counts.size()), reversed(way->how), way->op));
    result.emplace_back();
    return result;
  }
};

}  // namespace

RankPieces exchange_pieces(const RankPieces& inputs, const PieceCounts& how, const std::string& op) {
  auto way = c10::make_intrusive<Way>();
  way->how = how;
  way->op = op;
  way->module_path = current_scope().module_path;
  if (!inputs.empty()) way->options = inputs[0].at(0).options();
  const variable_list pieces = flat(inputs);
  return per_rank(ExchangeFn::apply(at::TensorList(pieces), std::move(way)), how.counts.size());
}

RankPieces gather_pieces(const RankTensors& inputs, const DeviceMesh& ranks, const std::vector<int64_t>& sizes,
                         const std::string& op) {
  if (inputs.empty()) return {};
  const int64_t smallest = *std::min_element(sizes.begin(), sizes.end());
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  CommCall call = call_for(ranks, op, inputs[0].scalar_type(), all - smallest);
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto& shapes = call.receive_shapes.emplace_back();
    for (int64_t size : sizes) shapes.push_back({size});
  }
  return ranks.world().communicator().all_gather(call, inputs);
}

}  // namespace dtensor::sharded
