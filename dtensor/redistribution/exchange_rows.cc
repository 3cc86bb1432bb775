#include "dtensor/redistribution/exchange_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/comm_call.h"
#include "comm/communicator.h"
#include "dtensor/redistribution/internal/plain_gradients.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

RankTensors exchanged(at::TensorList rows, const RowExchange& exchange) {
  LocalGuard guard;
  const Group& group = exchange.mesh.get_group(exchange.mesh_dim);
  RankTensors results;
  if (group.size == 1) {
    for (const at::Tensor& t : rows) results.push_back(t.clone());
    return results;
  }
  const int64_t width = rows[0].size(1);
  CommCall call;
  call.group = &group;
  call.ranks = exchange.mesh.local_ranks();
  call.event.cause = exchange.cause;
  call.event.dtype = rows[0].scalar_type();
  call.event.bytes = exchange.most_received * width * static_cast<int64_t>(rows[0].element_size());
  RankPieces pieces;
  for (size_t i = 0; i < rows.size(); ++i) {
    pieces.push_back(rows[i].contiguous().split_with_sizes(exchange.sent[i], 0));
    auto& shapes = call.receive_shapes.emplace_back();
    for (const int64_t count : exchange.received[i]) shapes.push_back(Shape{count, width});
  }
  for (const auto& received : exchange.mesh.world().communicator().all_to_all(call, pieces))
    results.push_back(at::cat(received));
  return results;
}

// As many as the i-th rank of this process received.
at::Tensor zero_rows(AutogradContext* ctx, const RowExchange& exchange, size_t i) {
  LocalGuard guard;
  const auto& received = exchange.received[i];
  const int64_t count = std::accumulate(received.begin(), received.end(), int64_t{0});
  const c10::Device device = exchange.mesh.world().device(exchange.mesh.local_ranks()[i]);
  const auto dtype = static_cast<at::ScalarType>(ctx->saved_data.at("dtype").toInt());
  return at::zeros({count, ctx->saved_data.at("width").toInt()}, at::TensorOptions(device).dtype(dtype));
}

struct ExchangeRowsFn : Function<ExchangeRowsFn> {
  // `tensors`: the rows of each rank, then `reached_by`.
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, RowExchange exchange) {
    ctx->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    ctx->saved_data["width"] = tensors[0].size(1);
    ctx->saved_data["dtype"] = tensors[0].scalar_type();
    ctx->set_materialize_grads(false);  // in a MeshScope, autograd's zeros would be distributed
    const size_t ranks = exchange.sent.size();
    variable_list results = exchanged(tensors.slice(0, ranks), exchange);
    save_for_backward(ctx, std::move(exchange));
    return results;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto exchange = saved_for_backward<RowExchange>(ctx);
    make_plain(grads, exchange.mesh, "exchange_rows");
    for (size_t i = 0; i < grads.size(); ++i) {
      // Of rows that were not used. Other ranks may have used theirs, so that zeros are sent.
      if (!grads[i].defined()) grads[i] = zero_rows(ctx, exchange, i);
    }
    variable_list result = exchange_rows(grads, sent_back(exchange, exchange.cause));
    result.resize(static_cast<size_t>(ctx->saved_data.at("tensors").toInt()) + 1);
    return result;
  }
};

}  // namespace

RowExchange sent_back(RowExchange exchange, CommCause cause) {
  std::swap(exchange.sent, exchange.received);
  std::swap(exchange.most_sent, exchange.most_received);
  exchange.cause = std::move(cause);
  return exchange;
}

std::vector<at::Tensor> exchange_rows(const std::vector<at::Tensor>& rows, const RowExchange& exchange,
                                      const std::vector<at::Tensor>& reached_by) {
  TORCH_CHECK_VALUE(rows.size() == exchange.sent.size(), "[", exchange.cause.op, "] ", rows.size(),
                    " tensors of rows, but this process owns ", exchange.sent.size(), " ranks of ",
                    exchange.mesh.to_string(), ": give one per rank of mesh.local_ranks()");
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t expected = std::accumulate(exchange.sent[i].begin(), exchange.sent[i].end(), int64_t{0});
    TORCH_CHECK_VALUE(rows[i].dim() == 2 && rows[i].size(0) == expected, "[", exchange.cause.op, "] the rows of rank ",
                      exchange.mesh.local_ranks()[i], " have the shape ", rows[i].sizes(), ": [", expected,
                      ", width] is expected");
    TORCH_CHECK_VALUE(rows[i].size(1) == rows[0].size(1) && rows[i].scalar_type() == rows[0].scalar_type(), "[",
                      exchange.cause.op, "] the rows of rank ", exchange.mesh.local_ranks()[i], " are ",
                      rows[i].scalar_type(), " ", rows[i].sizes(), ", those of rank ", exchange.mesh.local_ranks()[0],
                      " ", rows[0].scalar_type(), " ", rows[0].sizes(),
                      ": width and dtype must be the same on all ranks");
  }
  std::vector<at::Tensor> tensors = rows;
  tensors.insert(tensors.end(), reached_by.begin(), reached_by.end());
  return ExchangeRowsFn::apply(at::TensorList(tensors), exchange);
}

}  // namespace dtensor::internal
