#include "comm/reduce_by_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "comm/block_copy.h"
#include "comm/reduce_in_order.h"

namespace dtensor::internal {

namespace {

// Tensors of these sizes and options, without values. Those of one dtype lie one right after the other, so that an
// exchange can receive them where they are.
Pieces new_addends(absl::Span<const at::Tensor> like) {
  int64_t total = 0;
  bool is_one_dtype = true;
  for (const at::Tensor& t : like) {
    total += t.numel();
    is_one_dtype &= t.dtype() == like[0].dtype();
  }
  const at::Tensor all = is_one_dtype && !like.empty() ? at::empty({total}, like[0].options()) : at::Tensor();
  Pieces addends;
  int64_t offset = 0;
  for (const at::Tensor& t : like) {
    addends.push_back(all.defined() ? all.narrow(0, offset, t.numel()).view(t.sizes())
                                    : at::empty(t.sizes(), t.options()));
    offset += t.numel();
  }
  return addends;
}

// Whether a member's own part of the only tensor lies between those of others. Then it is exchanged with them, so that
// the tensor is sent from where it is (PackedExchange).
bool goes_with_others(const Pieces& tensors, int64_t position, int64_t group_size) {
  return tensors.size() == 1 && position > 0 && position + 1 < group_size;
}

}  // namespace

ExchangeStep reduce_scatter_by_exchange(const RankGroups& group, int64_t rank, absl::Span<const Message> messages,
                                        const RankPieces& inputs, const RankPieces& outputs, ReduceOp op,
                                        bool inputs_stay) {
  const bool own_in_place = inputs_stay && !goes_with_others(inputs[0], group.position_of[rank], group.size);
  ExchangeStep step{{}, inputs, RankPieces(1), {}};
  std::vector<Message> received;
  for (const Message& m : messages) (m.receiver == rank ? received : step.messages).push_back(m);
  std::stable_sort(received.begin(), received.end(), [&](const Message& a, const Message& b) {
    return group.position_of[a.sender] < group.position_of[b.sender];
  });

  std::vector<at::Tensor> sums;               // the places in the outputs
  std::vector<size_t> place_of;               // per message
  std::vector<at::Tensor> in_place;           // per message, the addend where it is, or undefined
  std::vector<at::Tensor> like;               // per other message, its place
  absl::flat_hash_map<int64_t, size_t> next;  // per sender, which place comes next
  for (const Message& m : received) {
    const size_t place = place_of.emplace_back(next[m.sender]++);
    if (place == sums.size()) sums.push_back(block_view(outputs[0][m.output], m.block.to, m.block.sizes));
    at::Tensor& own = in_place.emplace_back();
    if (own_in_place && m.sender == rank && dense_offset(inputs[0][m.input], m.block.from, m.block.sizes)) {
      own = block_view(inputs[0][m.input], m.block.from, m.block.sizes);
    } else {
      like.push_back(sums[place]);
    }
  }

  Pieces& addends = step.outputs[0] = new_addends(like);
  std::vector<std::vector<at::Tensor>> of_place(sums.size());  // the addends of each in the order of the group
  int64_t to_me = 0;
  for (size_t i = 0; i < received.size(); ++i) {
    if (in_place[i].defined()) {
      of_place[place_of[i]].push_back(in_place[i]);
      continue;
    }
    of_place[place_of[i]].push_back(addends[to_me]);
    Message& m = step.messages.emplace_back(std::move(received[i]));
    m.output = to_me++;
    m.block.to.assign(m.block.sizes.size(), 0);
  }
  step.then = [sums = std::move(sums), of_place = std::move(of_place), op] {
    for (size_t p = 0; p < sums.size(); ++p) reduce_in_order({sums[p]}, of_place[p], op);
  };
  return step;
}

namespace {

// How the members of an all_reduce share it out.
struct Shares {
  absl::Span<const int64_t> members;
  int64_t position;  // of this member
  bool in_one_step;  // every member reduces all, and gets the addends of all for it

  int64_t count() const { return static_cast<int64_t>(members.size()); }
  int64_t rank() const { return members[position]; }
  // What the member at `p` reduces of a tensor of `numel` elements.
  IndexRange of(int64_t p, int64_t numel) const {
    return in_one_step ? IndexRange{0, numel} : chunk(numel, count(), p);
  }
  IndexRange mine(int64_t numel) const { return of(position, numel); }
};

// Every member's addends go to the members that reduce them. `sums`: where this one writes its sums, one per input.
ExchangeStep exchange_of_addends(const Shares& shares, Pieces inputs, const Pieces& sums, ReduceOp op,
                                 bool own_in_place) {
  const int64_t n = shares.count(), rank = shares.rank();
  ExchangeStep step{{}, RankPieces(1), RankPieces(1), {}};
  std::vector<at::Tensor> like;  // per addend that is exchanged, by position, then by tensor
  for (int64_t p = 0; p < n; ++p) {
    if (p == shares.position && own_in_place) continue;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto tensor = static_cast<int64_t>(k), to_me = static_cast<int64_t>(like.size());
      const IndexRange mine = shares.mine(inputs[k].numel()), part = shares.of(p, inputs[k].numel());
      like.push_back(sums[k]);
      if (part.size > 0 && p != shares.position)
        step.messages.push_back({rank, shares.members[p], tensor, 0, {{part.begin}, {0}, {part.size}}});
      if (mine.size > 0)
        step.messages.push_back({shares.members[p], rank, tensor, to_me, {{mine.begin}, {0}, {mine.size}}});
    }
  }
  step.outputs[0] = new_addends(like);
  std::vector<std::vector<at::Tensor>> addends(inputs.size());  // per tensor, in the order of the group
  size_t next = 0;
  for (int64_t p = 0; p < n; ++p) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      const IndexRange mine = shares.mine(inputs[k].numel());
      addends[k].push_back(p == shares.position && own_in_place ? inputs[k].narrow(0, mine.begin, mine.size)
                                                                : step.outputs[0][next++]);
    }
  }
  step.inputs[0] = std::move(inputs);
  step.then = [sums, addends = std::move(addends), op] {
    for (size_t k = 0; k < sums.size(); ++k) reduce_in_order({sums[k]}, addends[k], op);
  };
  return step;
}

// Every member's sums, one per result, go to all others. `sums` are views of the member's parts of `results`; with
// `with_own` they go to the member itself, too.
ExchangeStep exchange_of_sums(const Shares& shares, const std::vector<at::Tensor>& results, Pieces sums,
                              bool with_own) {
  const int64_t rank = shares.rank();
  ExchangeStep step{{}, {std::move(sums)}, RankPieces(1), [] {}};
  for (const at::Tensor& result : results) step.outputs[0].push_back(result.view({-1}));
  for (int64_t p = 0; p < shares.count(); ++p) {
    if (p == shares.position && !with_own) continue;
    for (size_t k = 0; k < results.size(); ++k) {
      const auto tensor = static_cast<int64_t>(k);
      const IndexRange mine = shares.mine(results[k].numel()), part = shares.of(p, results[k].numel());
      if (mine.size > 0)
        step.messages.push_back({rank, shares.members[p], tensor, tensor, {{0}, {mine.begin}, {mine.size}}});
      if (part.size > 0 && p != shares.position)
        step.messages.push_back({shares.members[p], rank, tensor, tensor, {{0}, {part.begin}, {part.size}}});
    }
  }
  return step;
}

}  // namespace

AllReduceSteps all_reduce_by_exchange(absl::Span<const int64_t> members, int64_t position,
                                      const std::vector<at::Tensor>& inputs, ReduceOp op, bool inputs_stay) {
  const auto n = static_cast<int64_t>(members.size());
  AllReduceSteps plan;
  int64_t bytes = 0;
  for (const at::Tensor& t : inputs) bytes += static_cast<int64_t>(t.nbytes());
  const Shares shares{members, position, bytes * n <= kSmallAllReduceBytes};
  Pieces flat, sums;
  for (const at::Tensor& t : inputs) {
    flat.push_back(t.contiguous().view({-1}));
    const at::Tensor& result = plan.results.emplace_back(at::empty(t.sizes(), t.options()));
    const IndexRange mine = shares.mine(t.numel());
    sums.push_back(result.view({-1}).narrow(0, mine.begin, mine.size));
  }
  const bool with_own = !shares.in_one_step && goes_with_others(flat, position, n);
  plan.steps.push_back(exchange_of_addends(shares, std::move(flat), sums, op, inputs_stay && !with_own));
  if (!shares.in_one_step) plan.steps.push_back(exchange_of_sums(shares, plan.results, std::move(sums), with_own));
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
