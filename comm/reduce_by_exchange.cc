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
// exchange can receive into them (ByteExchange).
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

// Whether the messages of the only tensor are adjacent only together with the member's message to itself, which lies
// between those to others. Then that message is exchanged, too, so that the exchange needs no buffer (ByteExchange).
bool own_lies_between(const Pieces& tensors, int64_t position, int64_t group_size) {
  return tensors.size() == 1 && position > 0 && position + 1 < group_size;
}

// An addend of a reduce_scatter for this rank.
struct Addend {
  Message message;
  size_t place;         // in the output
  at::Tensor in_place;  // the rank's own, where it is; else undefined, and it is exchanged
};

}  // namespace

ExchangeStep reduce_scatter_by_exchange(const RankGroups& group, int64_t rank, absl::Span<const Message> messages,
                                        const RankPieces& inputs, const RankPieces& outputs, ReduceOp op,
                                        bool inputs_stay) {
  const bool own_in_place = inputs_stay && !own_lies_between(inputs[0], group.position_of[rank], group.size);
  ExchangeStep step{{}, inputs, RankPieces(1), {}};
  std::vector<Addend> addends;
  for (const Message& m : messages) {
    if (m.receiver == rank) {
      addends.push_back({m, 0, {}});
    } else {
      step.messages.push_back(m);
    }
  }
  std::stable_sort(addends.begin(), addends.end(), [&](const Addend& a, const Addend& b) {
    return group.position_of[a.message.sender] < group.position_of[b.message.sender];
  });

  std::vector<at::Tensor> sums;               // the places in the outputs
  std::vector<at::Tensor> like;               // per addend that is exchanged
  absl::flat_hash_map<int64_t, size_t> next;  // per sender, which place comes next
  for (Addend& a : addends) {
    const Message& m = a.message;
    a.place = next[m.sender]++;
    if (a.place == sums.size()) sums.push_back(block_view(outputs[0][m.output], m.block.to, m.block.sizes));
    const at::Tensor* const own = own_in_place && m.sender == rank ? &inputs[0][m.input] : nullptr;
    if (own != nullptr && dense_block_on(*own, m.block.from, m.block.sizes, own->device()) != nullptr) {
      a.in_place = block_view(*own, m.block.from, m.block.sizes);
    } else {
      like.push_back(sums[a.place]);
    }
  }

  Pieces& exchanged = step.outputs[0] = new_addends(like);
  std::vector<std::vector<at::Tensor>> of_place(sums.size());  // the addends of each in the order of the group
  int64_t to_me = 0;
  for (Addend& a : addends) {
    if (a.in_place.defined()) {
      of_place[a.place].push_back(std::move(a.in_place));
      continue;
    }
    of_place[a.place].push_back(exchanged[to_me]);
    Message& m = step.messages.emplace_back(std::move(a.message));
    m.output = to_me++;
    m.block.to.assign(m.block.sizes.size(), 0);
  }
  step.then = [sums = std::move(sums), of_place = std::move(of_place), op] {
    for (size_t p = 0; p < sums.size(); ++p) reduce_in_order({sums[p]}, of_place[p], op);
  };
  return step;
}

namespace {

// Which part of each tensor each member of an all_reduce reduces.
struct Shares {
  absl::Span<const int64_t> members;
  int64_t position;  // of this member
  bool in_one_step;  // every member reduces all, and gets the addends of all for it

  int64_t count() const { return static_cast<int64_t>(members.size()); }
  int64_t rank() const { return members[position]; }
  IndexRange of(int64_t p, int64_t numel) const {
    return in_one_step ? IndexRange{0, numel} : chunk(numel, count(), p);
  }
  IndexRange mine(int64_t numel) const { return of(position, numel); }
};

// Every member's addends go to the members that reduce them. `sums`: where this one writes its sums, one per input.
ExchangeStep exchange_of_addends(const Shares& shares, Pieces inputs, const Pieces& sums, ReduceOp op,
                                 bool own_in_place) {
  const int64_t rank = shares.rank();
  ExchangeStep step{{}, RankPieces(1), RankPieces(1), {}};
  std::vector<at::Tensor> like;                                 // per addend that is exchanged
  std::vector<std::vector<int64_t>> addends_of(inputs.size());  // per tensor and member: which of these; -1: in place
  for (int64_t p = 0; p < shares.count(); ++p) {
    const bool in_place = p == shares.position && own_in_place;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto tensor = static_cast<int64_t>(k), to_me = static_cast<int64_t>(like.size());
      addends_of[k].push_back(in_place ? -1 : to_me);
      if (in_place) continue;
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
  for (size_t k = 0; k < inputs.size(); ++k) {
    const IndexRange mine = shares.mine(inputs[k].numel());
    for (const int64_t i : addends_of[k])
      addends[k].push_back(i < 0 ? inputs[k].narrow(0, mine.begin, mine.size) : step.outputs[0][i]);
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
  const bool with_own = !shares.in_one_step && own_lies_between(flat, position, n);
  plan.steps.push_back(exchange_of_addends(shares, std::move(flat), sums, op, inputs_stay && !with_own));
  if (!shares.in_one_step) plan.steps.push_back(exchange_of_sums(shares, plan.results, std::move(sums), with_own));
  return plan;
}

int64_t all_reduce_by_exchange_bytes(at::ScalarType dtype, ReduceOp op, int64_t bytes, int64_t group_size) {
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const bool small = bytes * group_size <= kSmallAllReduceBytes;
  // A part for each other member three times: the addends, the messages received, and the messages sent, all of which
  // the backend's thread may release late; and the memory of reduce_in_order(). The first member's part is the largest.
  // One contiguous tensor needs less, or no messages, in the first exchange. But several tensors need them in both, and
  // one tensor between more than two members in the second, while the addends may not be released yet.
  const int64_t part = small ? bytes : chunk(bytes / item, group_size, 0).size * item;
  const int64_t of_others = (group_size - 1) * part;
  const int64_t reducing = part / item * reduce_in_order_bytes(dtype, op);
  return 3 * of_others + reducing;
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
