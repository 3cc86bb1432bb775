// Recurrent networks: lstm, gru, rnn_tanh and rnn_relu, composed of products and elementwise operators, so that a split
// batch stays split, forward and backward. ATen's own code passes whole layers to fused kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/network/packed_rows.h"
#include "ops/network/packed_sequences.h"
#include "ops/support/arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/plain_numbers.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

struct Weights {
  at::Tensor input, hidden, input_bias, hidden_bias, projection;
};

// The state of a layer: h, and of an lstm c.
struct State {
  at::Tensor h, c;

  template <typename Fn>
  State map(const Fn& fn) const {
    return {fn(h), c.defined() ? fn(c) : c};
  }
};

// Computes the next state from the projected input, the projected hidden state, and the state.
using Cell = State (*)(const at::Tensor& from_input, const at::Tensor& from_hidden, const State& state);

State lstm_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const State& state) {
  const Tensors gates = (from_input + from_hidden).chunk(4, -1);
  const at::Tensor c = gates[1].sigmoid() * state.c + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * c.tanh(), c};
}

State gru_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const State& state) {
  const Tensors i = from_input.chunk(3, -1), h = from_hidden.chunk(3, -1);
  const at::Tensor reset = (i[0] + h[0]).sigmoid(), update = (i[1] + h[1]).sigmoid(),
                   fresh = (i[2] + reset * h[2]).tanh();
  return {(state.h - fresh) * update + fresh, {}};
}

template <at::Tensor (*kActivation)(const at::Tensor&)>
State simple_cell(const at::Tensor& from_input, const at::Tensor& from_hidden, const State&) {
  return {kActivation(from_input + from_hidden), {}};
}

State step(Cell cell, const Weights& w, const at::Tensor& from_input, const State& state) {
  State next = cell(from_input, at::linear(state.h, w.hidden, w.hidden_bias), state);
  if (w.projection.defined()) next.h = at::linear(next.h, w.projection);
  return next;
}

// The result of one direction of a layer: the outputs, in the order of the input, and the last state.
struct LayerResult {
  at::Tensor output;
  State last;
};

// The state in the split of the input's batch: from zeros or a replicated state, each rank takes its part. Otherwise
// the first step would compute the whole batch on every rank. `dim`: of the input's batch; that of the state is dim 0.
State with_batch_of(const at::Tensor& input, int64_t dim, const State& state) {
  return state.map([&](const at::Tensor& t) {
    const bool can_move = is_dtensor(input) && is_dtensor(t) && !t.requires_grad();
    if (!can_move || spec_of(input)->mesh() != spec_of(t)->mesh()) return t;
    Placements to = spec_of(t)->placements();
    for (size_t m = 0; m < to.size(); ++m) {
      if (to[m].is_replicate() && spec_of(input)->placements()[m] == Shard(dim)) to[m] = Shard(0);
    }
    return redistribute_below_autograd(t, to, {"recurrent", "hx", current_scope().module_path, /*implicit=*/true});
  });
}

// A layout for `weight` that is replicated along the mesh dims that split the batch of `input`, and unchanged along the
// others. nullopt: it has that layout already, is no tensor on the mesh of `input`, or no route stays within the memory
// limit.
std::optional<Placements> gathered_layout(const at::Tensor& weight, const at::Tensor& input, int64_t batch_dim) {
  if (!weight.defined() || !is_dtensor(weight) || !is_dtensor(input)) return std::nullopt;
  const SpecPtr& spec = spec_of(weight);
  if (spec->mesh() != spec_of(input)->mesh()) return std::nullopt;
  Placements to = spec->placements();
  for (size_t m = 0; m < to.size(); ++m) {
    if (to[m].is_sharded() && spec_of(input)->placements()[m].is_sharded_on(batch_dim)) to[m] = Replicate();
  }
  if (to == spec->placements() || !cached_plan_within(spec, to, current_dispatch_scope().limits)) return std::nullopt;
  return to;
}

// Every step uses the weights of its layer. Weights that are split along a mesh dim that also splits the batch are
// gathered once, in one collective; otherwise every step would move its state to the weights.
void gather_weights(c10::ArrayRef<Weights*> layer, const at::Tensor& input, int64_t batch_dim) {
  std::vector<at::Tensor*> split;
  std::vector<Layout> whole;
  for (Weights* w : layer) {
    for (at::Tensor* t : {&w->input, &w->hidden, &w->input_bias, &w->hidden_bias, &w->projection}) {
      auto to = gathered_layout(*t, input, batch_dim);
      if (!to) continue;
      split.push_back(t);
      whole.emplace_back(spec_of(input)->mesh(), *std::move(to));
    }
  }
  if (split.empty()) return;
  Tensors weights;
  for (const at::Tensor* t : split) weights.push_back(*t);
  const CommCause cause{"recurrent", "weights", current_scope().module_path, /*implicit=*/true};
  const Tensors gathered = redistribute_as(weights, whole, cause);
  for (size_t k = 0; k < split.size(); ++k) *split[k] = gathered[k];
}

// Per step, a mask [batch, 1] of the sequences that have it; undefined: all. An empty list: all, at every step.
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

// `input`: [length, batch, features]. A sequence that is not `running` keeps its state.
LayerResult run_padded(Cell cell, const Weights& w, const at::Tensor& input, State state, bool reverse,
                       const Tensors& running = {}) {
  const Tensors inputs = at::linear(input, w.input, w.input_bias).unbind(0);
  Tensors outputs(inputs.size());
  state = with_batch_of(input, 1, state);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const size_t t = reverse ? inputs.size() - 1 - k : k;
    State next = step(cell, w, inputs[t], state);
    if (!running.empty() && running[t].defined()) {
      next.h = at::where(running[t], next.h, state.h);
      if (next.c.defined()) next.c = at::where(running[t], next.c, state.c);
    }
    state = std::move(next);
    outputs[t] = state.h;
  }
  return {at::stack(outputs, 0), state};
}

// `data`: the first steps of all sequences, then the second ones, ...; `sizes`: how many of each. Longer sequences come
// first, so that states are removed at the end, or in reverse added there.
LayerResult run_packed(Cell cell, const Weights& w, const at::Tensor& data, const std::vector<int64_t>& sizes,
                       const State& first, bool reverse) {
  Tensors inputs = at::linear(data, w.input, w.input_bias).split_with_sizes(sizes, 0), outputs(sizes.size());
  const auto rows = [](int64_t begin, int64_t count) {
    return [=](const at::Tensor& t) { return t.narrow(0, begin, count); };
  };
  std::vector<State> ended;
  int64_t batch = reverse ? sizes.back() : sizes.front();
  State state = first.map(rows(0, batch));
  for (size_t k = 0; k < sizes.size(); ++k) {
    const size_t t = reverse ? sizes.size() - 1 - k : k;
    if (sizes[t] < batch) {
      ended.push_back(state.map(rows(sizes[t], batch - sizes[t])));
      state = state.map(rows(0, sizes[t]));
    } else if (sizes[t] > batch) {
      const State more = first.map(rows(batch, sizes[t] - batch));
      state = {at::cat({state.h, more.h}), state.c.defined() ? at::cat({state.c, more.c}) : state.c};
    }
    batch = sizes[t];
    state = step(cell, w, inputs[t], state);
    outputs[t] = state.h;
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  Tensors h, c;
  for (const State& s : ended) {
    h.push_back(s.h);
    c.push_back(s.c);
  }
  return {at::cat(outputs), {at::cat(h), state.c.defined() ? at::cat(c) : state.c}};
}

// ------------------------------------------------------------ a call

struct Network {
  Cell cell;
  bool lstm = false;
};

Network network_of(const c10::OperatorHandle& op) {
  const std::string_view name = op.schema().name();
  if (name == "aten::lstm") return {lstm_cell, true};
  if (name == "aten::gru") return {gru_cell};
  return {name == "aten::rnn_tanh" ? simple_cell<at::tanh> : simple_cell<at::relu>};
}

std::vector<Weights> weights_of(const Tensors& params, bool has_biases, bool projects, int64_t count,
                                const std::string& name) {
  const size_t each = (has_biases ? 4 : 2) + (projects ? 1 : 0);
  TORCH_CHECK(static_cast<int64_t>(params.size()) == count * static_cast<int64_t>(each), name, ": Expected ",
              count * static_cast<int64_t>(each), " elements in params, ", each, " for each of ", count,
              " layers and directions, but found ", params.size());
  std::vector<Weights> result;
  for (size_t p = 0; p < params.size(); p += each) {
    Weights w{params[p], params[p + 1], {}, {}, {}};
    if (has_biases) w.input_bias = params[p + 2], w.hidden_bias = params[p + 3];
    if (projects) w.projection = params[p + each - 1];
    result.push_back(std::move(w));
  }
  return result;
}

// lstm, gru, rnn_tanh, rnn_relu .input(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
// batch_first) and .data(data, batch_sizes, hx, params, ...).
void recurrent(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const Network network = network_of(op);
  const std::string name = c10::toString(op.operator_name());
  const bool packed = !args["data"].isNone(), batch_first = !packed && args["batch_first"].toBool();
  const bool train = args["train"].toBool();
  const double dropout = args["dropout"].toDouble();
  const int64_t layers = args["num_layers"].toInt(), directions = args["bidirectional"].toBool() ? 2 : 1;
  at::Tensor x = args.tensor(packed ? "data" : "input");
  std::vector<int64_t> sizes;
  at::Tensor batch_sizes;
  if (packed) {
    batch_sizes = plain_numbers(args.tensor("batch_sizes"), op, "batch_sizes");
    sizes = numbers_of_rows(batch_sizes);
  }
  const Tensors hx = args["hx"].isTensor() ? Tensors{args.tensor("hx")} : args["hx"].toTensorVector();
  TORCH_CHECK(hx.size() == (network.lstm ? 2 : 1), name, ": expects ",
              network.lstm ? "two hidden states" : "one hidden state", ", but got ", hx.size());
  for (const at::Tensor& h : hx) {
    TORCH_CHECK(h.dim() == 3 && h.size(0) == layers * directions, name, ": the hidden state must be [",
                layers * directions, ", batch, hidden size], but has shape ", h.sizes());
  }
  const bool projects = network.lstm && hx[0].size(2) != hx[1].size(2);
  auto weights =
      weights_of(args["params"].toTensorVector(), args["has_biases"].toBool(), projects, layers * directions, name);
  torch::jit::drop(stack, op.schema().arguments().size());

  const Tensors h = hx[0].unbind(0), c = network.lstm ? hx[1].unbind(0) : Tensors(h.size());
  Tensors last_h, last_c;
  if (batch_first) x = x.transpose(0, 1);
  TORCH_CHECK(packed ? x.dim() == 2 && !sizes.empty() : x.dim() == 3 && x.size(0) > 0, name,
              ": Expected sequence length to be larger than 0, and an input of ", packed ? 2 : 3,
              " dims, but got one of shape ", x.sizes());
  // Sequences of a sharded batch are computed padded, since rows of the packed form mix those of all ranks.
  const bool side_by_side = packed && splits_batch(x, batch_sizes);
  Tensors running;
  if (side_by_side) {
    x = pad_packed(x, batch_sizes, static_cast<int64_t>(sizes.size()), 0);
    running = sequences_running(sizes, x);
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    Tensors outputs;
    std::vector<Weights*> of_layer;
    for (int64_t d = 0; d < directions; ++d) of_layer.push_back(&weights[static_cast<size_t>(layer * directions + d)]);
    if (!packed || side_by_side) gather_weights(of_layer, x, /*batch_dim=*/1);
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto k = static_cast<size_t>(layer * directions + direction);
      const State first{h[k], c[k]};
      const LayerResult r = packed && !side_by_side
                                ? run_packed(network.cell, weights[k], x, sizes, first, direction == 1)
                                : run_padded(network.cell, weights[k], x, first, direction == 1, running);
      outputs.push_back(r.output);
      last_h.push_back(r.last.h);
      last_c.push_back(r.last.c);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && layer + 1 < layers) x = at::dropout(x, dropout, /*train=*/true);
  }
  if (side_by_side) x = pack_padded(x, batch_sizes);
  stack.emplace_back(batch_first ? x.transpose(0, 1) : x);
  stack.emplace_back(at::stack(last_h, 0));
  if (network.lstm) stack.emplace_back(at::stack(last_c, 0));
}

// ------------------------------------------------------------ one step, in a loop of the program

// lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell(input, hx, w_ih, w_hh, b_ih, b_hh): as gather_weights(), for all
// steps until the end of backward.
void cell(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor input = args.tensor("input");
  std::vector<const char*> names;
  std::vector<size_t> positions;
  Tensors weights;
  std::vector<Placements> whole;
  for (const char* name : {"w_ih", "w_hh", "b_ih", "b_hh"}) {
    const at::Tensor w = args[name].isTensor() ? args.tensor(name) : at::Tensor();
    auto to = input.dim() == 2 ? gathered_layout(w, input, /*batch_dim=*/0) : std::nullopt;
    if (!to) continue;
    names.push_back(name);
    positions.push_back(static_cast<size_t>(*op.schema().argumentIndexWithName(name)));
    weights.push_back(w);
    whole.push_back(*std::move(to));
  }
  if (!weights.empty()) {
    const Tensors gathered = gather_for_reuse(op_info(op), positions, weights, whole);
    for (size_t k = 0; k < names.size(); ++k) args.set(names[k], gathered[k]);
  }
  run_without_handler(op, stack);
}

// ------------------------------------------------------------ CUDA's cells

OutputMetas cell_metas(const OpCall& call) {
  const bool lstm = call.has_arg("cx");
  const at::Tensor state = meta_tensor(*call.input(lstm ? "cx" : "hx")).contiguous();
  const int64_t n = state.size(0), hidden = state.size(1);
  if (lstm) return metas_of({state, state, state.new_empty({n, 4 * hidden})});
  return metas_of({state, state.new_empty({n, 5 * hidden})});
}

OutputMetas cell_backward_metas(const OpCall& call) {
  const at::Tensor workspace = meta_tensor(*call.input("workspace"));
  const bool lstm = call.has_arg("cx"), has_bias = call.get_bool("has_bias");
  const int64_t n = workspace.size(0), hidden = workspace.size(1) / (lstm ? 4 : 5);
  const at::Tensor gates = workspace.new_empty({n, (lstm ? 4 : 3) * hidden}), state = workspace.new_empty({n, hidden});
  const at::Tensor bias = has_bias ? workspace.new_empty({gates.size(1)}) : at::Tensor();
  return lstm ? metas_of({gates, state, bias}) : metas_of({gates, gates, state, bias, bias});
}

const CoreDimsOp kCells[] = {
    {.op = "aten::_thnn_fused_lstm_cell", .equation = "nG,nG,nH,G,G->nH,nH,nG", .metas = cell_metas},
    {.op = "aten::_thnn_fused_lstm_cell_backward_impl",
     .equation = "nH,nH,nH,nH,nG->nG,nH,G",
     .metas = cell_backward_metas},
    {.op = "aten::_thnn_fused_gru_cell", .equation = "nG,nG,nH,G,G->nH,nW", .metas = cell_metas},
    {.op = "aten::_thnn_fused_gru_cell_backward", .equation = "nH,nW->nG,nG,nH,G,G", .metas = cell_backward_metas},
};

}  // namespace

const RuleFamily recurrent_rules("recurrent", [](RuleRegistry& registry) {
  for (const char* op : {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"}) {
    for (const char* overload : {".input", ".data"}) registry.add_handler(std::string(op) + overload, recurrent);
  }
  for (const char* op : {"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"})
    registry.add_handler(op, cell);
  for (const CoreDimsOp& op : kCells) add_core_dims(registry, op);
});

}  // namespace dtensor
