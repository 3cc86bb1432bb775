#include "ops/network/recurrent_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

RecurrentState lstm_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const RecurrentState& state) {
  const Tensors gates = (from_input + from_hidden).chunk(4, -1);
  const at::Tensor c = gates[1].sigmoid() * state.c + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * c.tanh(), c};
}

RecurrentState gru_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const RecurrentState& state) {
  const Tensors i = from_input.chunk(3, -1), h = from_hidden.chunk(3, -1);
  const at::Tensor reset = (i[0] + h[0]).sigmoid(), update = (i[1] + h[1]).sigmoid(),
                   fresh = (i[2] + reset * h[2]).tanh();
  return {(state.h - fresh) * update + fresh, {}};
}

template <at::Tensor (*kActivation)(const at::Tensor&)>
RecurrentState simple_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const RecurrentState&) {
  return {kActivation(from_input + from_hidden), {}};
}

RecurrentState step(RecurrentCell cell, const RecurrentWeights& w, const at::Tensor& from_input,
                    const RecurrentState& state) {
  RecurrentState next = cell(from_input, at::linear(state.h, w.hidden, w.hidden_bias), state);
  if (w.projection.defined()) next.h = at::linear(next.h, w.projection);
  return next;
}

// The state in the split of the input's batch: from zeros or a replicated state, each rank takes its part. Otherwise
// the first step would compute the whole batch on every rank. `dim`: of the input's batch; that of the state is dim 0.
RecurrentState with_batch_of(const at::Tensor& input, int64_t dim, const RecurrentState& state,
                             const RecurrentWeights& w) {
  return state.map([&](const at::Tensor& t) {
    const bool can_move = is_dtensor(input) && is_dtensor(t) && !t.requires_grad();
    if (!can_move || spec_of(input)->mesh() != spec_of(t)->mesh()) return t;
    Placements to = spec_of(t)->placements();
    for (size_t m = 0; m < to.size(); ++m) {
      if (to[m].is_replicate() && spec_of(input)->placements()[m] == Shard(dim)) to[m] = Shard(0);
    }
    const CommCause cause{"recurrent", "hx", module_of_call({input, w.input, w.hidden}), /*implicit=*/true};
    return redistribute_below_autograd(t, to, cause);
  });
}

}  // namespace

RecurrentCell recurrent_cell(std::string_view op) {
  if (op == "aten::lstm") return lstm_cell;
  if (op == "aten::gru") return gru_cell;
  return op == "aten::rnn_tanh" ? simple_cell<at::tanh> : simple_cell<at::relu>;
}

Tensors sequences_running(const std::vector<int64_t>& sizes, const at::Tensor& input) {
  Tensors result(sizes.size());
  const DeviceMesh& mesh = spec_of(input)->mesh();
  LocalGuard guard;
  const at::Tensor sequences = at::arange(sizes.front(), input.options().dtype(at::kLong)).unsqueeze(1);
  for (size_t t = 0; t < sizes.size(); ++t) {
    if (sizes[t] < sizes.front()) result[t] = replicate_plain(sequences.lt(sizes[t]), mesh);
  }
  return result;
}

RecurrentOutput run_padded(RecurrentCell cell, const RecurrentWeights& w, const at::Tensor& input, RecurrentState state,
                           bool reverse, const Tensors& running) {
  const Tensors inputs = at::linear(input, w.input, w.input_bias).unbind(0);
  Tensors outputs(inputs.size());
  state = with_batch_of(input, 1, state, w);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const size_t t = reverse ? inputs.size() - 1 - k : k;
    RecurrentState next = step(cell, w, inputs[t], state);
    if (!running.empty() && running[t].defined()) {
      next.h = at::where(running[t], next.h, state.h);
      if (next.c.defined()) next.c = at::where(running[t], next.c, state.c);
    }
    state = std::move(next);
    outputs[t] = state.h;
  }
  return {at::stack(outputs, 0), state};
}

// States are removed at the end, where the shorter sequences stand, or in reverse added there.
RecurrentOutput run_packed(RecurrentCell cell, const RecurrentWeights& w, const at::Tensor& data,
                           const std::vector<int64_t>& sizes, const RecurrentState& first, bool reverse) {
  Tensors inputs = at::linear(data, w.input, w.input_bias).split_with_sizes(sizes, 0), outputs(sizes.size());
  const auto rows = [](int64_t begin, int64_t count) {
    return [=](const at::Tensor& t) { return t.narrow(0, begin, count); };
  };
  std::vector<RecurrentState> ended;
  int64_t batch = reverse ? sizes.back() : sizes.front();
  RecurrentState state = first.map(rows(0, batch));
  for (size_t k = 0; k < sizes.size(); ++k) {
    const size_t t = reverse ? sizes.size() - 1 - k : k;
    if (sizes[t] < batch) {
      ended.push_back(state.map(rows(sizes[t], batch - sizes[t])));
      state = state.map(rows(0, sizes[t]));
    } else if (sizes[t] > batch) {
      const RecurrentState more = first.map(rows(batch, sizes[t] - batch));
      state = {at::cat({state.h, more.h}), state.c.defined() ? at::cat({state.c, more.c}) : state.c};
    }
    batch = sizes[t];
    state = step(cell, w, inputs[t], state);
    outputs[t] = state.h;
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  Tensors h, c;
  for (const RecurrentState& s : ended) {
    h.push_back(s.h);
    c.push_back(s.c);
  }
  return {at::cat(outputs), {at::cat(h), state.c.defined() ? at::cat(c) : state.c}};
}

}  // namespace dtensor::internal
