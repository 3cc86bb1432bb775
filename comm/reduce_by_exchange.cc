#include "comm/reduce_by_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "comm/block_copy.h"
#include "comm/reduce_in_order.h"

namespace dtensor::internal {

ExchangeStep reduce_scatter_by_exchange(const RankGroups& group, int64_t rank, absl::Span<const Message> messages,
                                        const RankPieces& inputs, const RankPieces& outputs, ReduceOp op) {
  ExchangeStep step{{messages.begin(), messages.end()}, inputs, RankPieces(1), {}};
  Pieces& addends = step.outputs[0];
  std::vector<std::vector<at::Tensor>> of_place;  // per place in the output, its addends in the order of the group
  std::vector<at::Tensor> sums;                   // these places
  absl::flat_hash_map<int64_t, size_t> next;      // per sender, which place comes next
  std::vector<size_t> order(messages.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return group.position_of[messages[a].sender] < group.position_of[messages[b].sender];
  });
  for (size_t i : order) {
    Message& m = step.messages[i];  // to others it stays as it is
    if (m.receiver != rank) continue;
    const at::Tensor& out = outputs[0][m.output];
    const size_t place = next[m.sender]++;
    if (place == sums.size()) {
      sums.push_back(block_view(out, m.block.to, m.block.sizes));
      of_place.emplace_back();
    }
    m.output = static_cast<int64_t>(addends.size());
    m.block.to.assign(m.block.sizes.size(), 0);
    addends.push_back(at::empty(c10::IntArrayRef(m.block.sizes.data(), m.block.sizes.size()), out.options()));
    of_place[place].push_back(addends.back());
  }
  step.then = [sums = std::move(sums), of_place = std::move(of_place), op] {
    for (size_t p = 0; p < sums.size(); ++p) {
      reduce_in_order({sums[p]}, of_place[p], op);
    }
  };
  return step;
}

namespace {

// Every member's sums, one per result, go to all others. The member's own ones are views of its results already.
ExchangeStep exchange_of_sums(absl::Span<const int64_t> members, int64_t position,
                              const std::vector<at::Tensor>& results, Pieces sums) {
  const auto n = static_cast<int64_t>(members.size());
  const int64_t rank = members[position];
  ExchangeStep step{{}, {std::move(sums)}, RankPieces(1), [] {}};
  for (size_t k = 0; k < results.size(); ++k) {
    const auto tensor = static_cast<int64_t>(k);
    step.outputs[0].push_back(results[k].view({-1}));
    const int64_t numel = results[k].numel();
    const IndexRange mine = chunk(numel, n, position);
    for (int64_t p = 0; p < n; ++p) {
      if (p == position) continue;
      const IndexRange part = chunk(numel, n, p);
      if (mine.size > 0) step.messages.push_back({rank, members[p], tensor, tensor, {{0}, {mine.begin}, {mine.size}}});
      if (part.size > 0) step.messages.push_back({members[p], rank, tensor, tensor, {{0}, {part.begin}, {part.size}}});
    }
  }
  return step;
}

}  // namespace

AllReduceSteps all_reduce_by_exchange(absl::Span<const int64_t> members, int64_t position,
                                      const std::vector<at::Tensor>& inputs, ReduceOp op, bool inputs_stay) {
  const auto n = static_cast<int64_t>(members.size());
  const int64_t rank = members[position];
  AllReduceSteps plan;
  int64_t bytes = 0;
  ExchangeStep first{{}, RankPieces(1), RankPieces(1), {}};
  for (const at::Tensor& t : inputs) {
    bytes += static_cast<int64_t>(t.nbytes());
    first.inputs[0].push_back(t.contiguous().view({-1}));
    plan.results.push_back(at::empty(t.sizes(), t.options()));
  }
  const bool small = bytes * n <= kSmallAllReduceBytes;
  const auto part_of = [&](const at::Tensor& t, int64_t p) {
    return small ? IndexRange{0, t.numel()} : chunk(t.numel(), n, p);
  };

  Pieces addends;  // per tensor, of every member
  Pieces sums;     // of this rank's parts, where they are in the results
  Pieces& outputs = first.outputs[0];
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto tensor = static_cast<int64_t>(k);
    const at::Tensor& t = first.inputs[0][k];
    const IndexRange mine = part_of(t, position);
    for (int64_t p = 0; p < n; ++p) {
      const IndexRange part = part_of(t, p);
      if (part.size > 0 && p != position) {
        first.messages.push_back({rank, members[p], tensor, 0, {{part.begin}, {0}, {part.size}}});
      }
      if (p == position && inputs_stay) {
        addends.push_back(t.narrow(0, mine.begin, mine.size));
        continue;
      }
      addends.push_back(at::empty({mine.size}, t.options()));
      if (mine.size == 0) continue;
      const auto to_me = static_cast<int64_t>(outputs.size());
      outputs.push_back(addends.back());
      first.messages.push_back({members[p], rank, tensor, to_me, {{mine.begin}, {0}, {mine.size}}});
    }
    sums.push_back(plan.results[k].view({-1}).narrow(0, mine.begin, mine.size));
  }
  first.then = [sums, addends = std::move(addends), n, op] {
    for (size_t k = 0; k < sums.size(); ++k) {
      reduce_in_order({sums[k]}, absl::MakeConstSpan(addends).subspan(k * n, n), op);
    }
  };
  plan.steps.push_back(std::move(first));
  if (small) return plan;

  plan.steps.push_back(exchange_of_sums(members, position, plan.results, std::move(sums)));
  return plan;
}

int64_t all_reduce_by_exchange_bytes(at::ScalarType dtype, ReduceOp op, int64_t bytes, int64_t group_size) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const bool small = bytes * group_size <= kSmallAllReduceBytes;
  // For the first rank's sum, which has the largest part: the addends of the others, the messages, which the backend's
  // thread may release late, and the memory of reduce_in_order(). The second exchange needs less, as the addends are
  // freed.
  const int64_t part = small ? bytes : chunk(bytes / item, group_size, 0).size * item;
  const int64_t sent = small ? (group_size - 1) * bytes : bytes - part, received = (group_size - 1) * part;
  const int64_t reducing = part / item * reduce_in_order_bytes(dtype, op);
  return received + sent + received + reducing;
}

int64_t reduction_scratch_bytes(CommBackend backend, Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                                int64_t group_size) {
  const int64_t numel = bytes / static_cast<int64_t>(c10::elementSize(dtype));
  if (c == Collective::kReduceScatter) return numel * reduce_in_order_bytes(dtype, op);
  const Reduction form = reduction_by(backend, c, dtype, op);
  return form.carrier == Carrier::kInOrder ? all_reduce_by_exchange_bytes(dtype, op, bytes, group_size)
                                           : numel * carrier_bytes(form);
}

}  // namespace dtensor::internal
