// One collective on plain tensors whose results are ranges of the tensors of its group, or sums of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/collective.h"
#include "comm/rank_tensors.h"
#include "dtensor/redistribution/internal/plain_call.h"
#include "placement/placement.h"

namespace dtensor::internal {

// What a rank sends to a position or receives from it: a range of its tensor along the dim of the exchange.
struct Extent {
  int64_t offset = 0, length = 0;
};

struct PlainExchange {
  int64_t dim = 0;  // of the ranges; -1: tensors travel as a whole, which is a range of length 1
  // Of the i-th owned rank, for a position of its group; nullopt: nothing.
  std::function<std::optional<Extent>(size_t i, int64_t position)> sent, received;
  // Length of the i-th result; nullopt: it is undefined.
  std::function<std::optional<int64_t>(size_t i)> result_size;
  // Bytes that a rank of the group of the i-th owned rank receives from others, of the one that receives most, if a
  // range of length 1 has `unit` bytes: for the event, which is the same on all ranks of the group.
  std::function<int64_t(size_t i, int64_t unit)> most_received;
};

// Along the first dim: the i-th owned rank sends ranges of the sizes sent[i], one per position and one behind the
// other, and gets such ranges of the sizes received[i].
PlainExchange exchange_of_splits(std::vector<std::vector<int64_t>> sent, std::vector<std::vector<int64_t>> received,
                                 std::function<int64_t(size_t i, int64_t unit)> most_received);

// Below autograd. `op`: what arrives is reduced, in a reduce_scatter. Error (ValueError), before anything is sent: an
// owned rank sends more or less than another one expects.
RankTensors run(const PlainCall& call, const PlainExchange& exchange, Collective c, const RankTensors& tensors,
                std::optional<ReduceOp> op = std::nullopt);

}  // namespace dtensor::internal
