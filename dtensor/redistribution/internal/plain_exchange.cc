#include "dtensor/redistribution/internal/plain_exchange.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/communicator.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

namespace {

Shape with_size(const at::Tensor& t, int64_t dim, int64_t size) {
  Shape shape(t.sizes().begin(), t.sizes().end());
  if (dim >= 0) shape[dim] = size;
  return shape;
}

Block block_along(const at::Tensor& t, int64_t dim, int64_t from, int64_t to, int64_t length) {
  const Shape origin(t.dim(), 0);
  Block block{origin, origin, with_size(t, dim, length)};
  if (dim >= 0) block.from[dim] = from, block.to[dim] = to;
  return block;
}

std::vector<Message> messages_of(const PlainCall& call, const PlainExchange& exchange, const RankTensors& tensors) {
  const auto& ranks = call.mesh.local_ranks();
  const RankSlots slots(ranks, call.mesh.world().size());
  std::vector<Message> messages;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t p = 0; p < call.size(); ++p) {
      const int64_t other = call.rank_at(i, p), slot = slots[other];
      if (const auto sent = exchange.sent(i, p)) {
        const auto arrives = slot < 0 ? sent : exchange.received(slot, call.position(i));
        TORCH_CHECK_VALUE(arrives && arrives->length == sent->length, "[", call.function(), "] rank ", ranks[i],
                          " sends ", sent->length, " rows to rank ", other, ", which expects ",
                          arrives ? arrives->length : 0);
        messages.push_back({ranks[i], other, 0, 0,
                            block_along(tensors[i], exchange.dim, sent->offset, arrives->offset, sent->length)});
      }
      if (slot >= 0) continue;  // is a sender here
      if (const auto arrives = exchange.received(i, p)) {
        messages.push_back(
            {other, ranks[i], 0, 0, block_along(tensors[i], exchange.dim, 0, arrives->offset, arrives->length)});
      }
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver) < std::tie(b.sender, b.receiver);
  });
  return messages;
}

// Of a range of length 1.
int64_t bytes_of_unit(const at::Tensor& t, int64_t dim) {
  int64_t bytes = static_cast<int64_t>(t.element_size());
  for (const int64_t size : with_size(t, dim, 1)) bytes *= size;
  return bytes;
}

}  // namespace

PlainExchange exchange_of_splits(std::vector<std::vector<int64_t>> sent, std::vector<std::vector<int64_t>> received,
                                 std::function<int64_t(size_t i, int64_t unit)> most_received) {
  const auto extent = [](const std::vector<int64_t>& sizes, int64_t position) {
    return Extent{start_of(sizes, position), sizes[position]};
  };
  return {0, [=, sent = std::move(sent)](size_t i, int64_t to) { return extent(sent[i], to); },
          [=](size_t i, int64_t from) { return extent(received[i], from); },
          [=](size_t i) { return start_of(received[i], static_cast<int64_t>(received[i].size())); },
          std::move(most_received)};
}

RankTensors run(const PlainCall& call, const PlainExchange& exchange, Collective c, const RankTensors& tensors,
                std::optional<ReduceOp> op) {
  const LocalGuard guard;
  const std::vector<Message> messages = messages_of(call, exchange, tensors);
  RankPieces inputs, outputs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    inputs.push_back({tensors[i]});
    outputs.emplace_back();
    if (const auto size = exchange.result_size(i)) {
      const Shape shape = with_size(tensors[i], exchange.dim, *size);
      outputs[i].push_back(at::empty({shape.data(), shape.size()}, tensors[i].options().requires_grad(false)));
    }
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i)
    bytes = std::max(bytes, exchange.most_received(i, bytes_of_unit(tensors[i], exchange.dim)));
  const CommCall comm = comm_call(call, tensors, bytes);
  auto& communicator = call.mesh.world().communicator();
  if (op) {
    communicator.reduce_scatter(comm, messages, inputs, outputs, *op);
  } else {
    communicator.exchange(comm, c, messages, inputs, outputs);
  }
  RankTensors results;
  for (const auto& of_rank : outputs) results.push_back(of_rank.empty() ? at::Tensor() : of_rank[0]);
  return results;
}

}  // namespace dtensor::internal
