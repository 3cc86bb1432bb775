#include "dtensor/redistribution/exchange_rows.h"

#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "dtensor/redistribution/internal/plain_call.h"
#include "dtensor/redistribution/internal/plain_collective.h"
#include "dtensor/redistribution/internal/plain_exchange.h"
#include "dtensor/redistribution/stand_in.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"

namespace dtensor::internal {
namespace {

// In a world without data: the event of the exchange, and a stand-in for what arrives.
RankTensors exchange_without_data(const PlainCall& call, const RankTensors& rows, const RowExchange& exchange) {
  const int64_t width = rows[0].size(1);
  CommCall comm = comm_call(call, rows, exchange.most_received * width * static_cast<int64_t>(rows[0].element_size()));
  call.mesh.world().communicator().exchange(comm, Collective::kAllToAll, {}, {}, {});
  const std::vector<int64_t>& received = exchange.received[0];
  const int64_t arrive = std::accumulate(received.begin(), received.end(), int64_t{0});
  return {make_stand_in(call.mesh, {arrive, width}, rows[0].scalar_type())};
}

RankTensors exchanged(const PlainCall& call, const RankTensors& rows, const RowExchange& exchange) {
  if (!call.mesh.world().has_data())
    return call.size() > 1 ? exchange_without_data(call, rows, exchange) : RankTensors{rows[0].clone()};
  if (call.size() > 1) {
    const auto most_received = [&](size_t, int64_t unit) { return unit * exchange.most_received; };
    return run(call, exchange_of_splits(exchange.sent, exchange.received, most_received), Collective::kAllToAll, rows);
  }
  const LocalGuard guard;
  RankTensors results;
  for (const at::Tensor& t : rows) results.push_back(t.clone());
  return results;
}

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
                      rank_of_part(exchange.mesh, i), " have the shape ", rows[i].sizes(), ": [", expected,
                      ", width] is expected");
    TORCH_CHECK_VALUE(rows[i].size(1) == rows[0].size(1) && rows[i].scalar_type() == rows[0].scalar_type(), "[",
                      exchange.cause.op, "] the rows of rank ", rank_of_part(exchange.mesh, i), " are ",
                      rows[i].scalar_type(), " ", rows[i].sizes(), ", those of rank ", rank_of_part(exchange.mesh, 0),
                      " ", rows[0].scalar_type(), " ", rows[0].sizes(),
                      ": width and dtype must be the same on all ranks");
  }
  const PlainCall call{exchange.mesh, exchange.mesh.names()[exchange.mesh_dim], exchange.cause};
  return differentiable(
      call, rows, [=](const RankTensors& inputs) { return exchanged(call, inputs, exchange); },
      [=](const RankTensors& grads) { return exchange_rows(grads, sent_back(exchange, exchange.cause)); }, reached_by);
}

}  // namespace dtensor::internal
