// Recurrent networks: lstm, gru, rnn_tanh and rnn_relu, composed of the layers of recurrent_layer.h, so that a split
// batch stays split, forward and backward. ATen's own code passes whole layers to fused kernels.
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/network/packed_rows.h"
#include "ops/network/packed_sequences.h"
#include "ops/network/recurrent_layer.h"
#include "ops/support/arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/plain_numbers.h"
#include "plan/redistribution_cost.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

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
  if (to == spec->placements() || !std::isfinite(seconds_to_move(spec, to, current_dispatch_scope().hints.limits)))
    return std::nullopt;
  return to;
}

// Every step uses the weights of its layer. Weights that are split along a mesh dim that also splits the batch are
// gathered once, in one collective; otherwise every step would move its state to the weights.
void gather_weights(c10::ArrayRef<RecurrentWeights*> layer, const at::Tensor& input, int64_t batch_dim) {
  std::vector<at::Tensor*> split;
  std::vector<Layout> whole;
  for (RecurrentWeights* w : layer) {
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
  const CommCause cause{"recurrent", "weights", module_of_call(weights), /*implicit=*/true};
  const Tensors gathered = redistribute_as(weights, whole, cause);
  for (size_t k = 0; k < split.size(); ++k) *split[k] = gathered[k];
}

// ------------------------------------------------------------ a call

std::vector<RecurrentWeights> weights_of(const Tensors& params, bool has_biases, bool projects, int64_t count,
                                         const std::string& name) {
  const size_t each = (has_biases ? 4 : 2) + (projects ? 1 : 0);
  TORCH_CHECK(static_cast<int64_t>(params.size()) == count * static_cast<int64_t>(each), name, ": Expected ",
              count * static_cast<int64_t>(each), " elements in params, ", each, " for each of ", count,
              " layers and directions, but found ", params.size());
  std::vector<RecurrentWeights> result;
  for (size_t p = 0; p < params.size(); p += each) {
    RecurrentWeights w{params[p], params[p + 1], {}, {}, {}};
    if (has_biases) w.input_bias = params[p + 2], w.hidden_bias = params[p + 3];
    if (projects) w.projection = params[p + each - 1];
    result.push_back(std::move(w));
  }
  return result;
}

// The arguments of lstm, gru, rnn_tanh, rnn_relu .input(input, hx, params, has_biases, num_layers, dropout, train,
// bidirectional, batch_first) and .data(data, batch_sizes, hx, params, ...).
struct NetworkCall {
  std::string name;
  bool lstm = false, packed = false, batch_first = false;
  double dropout = 0;  // between layers
  int64_t layers = 1, directions = 1;
  at::Tensor input;            // or the rows of packed sequences
  at::Tensor batch_sizes;      // of packed sequences
  std::vector<int64_t> sizes;  // their values
  Tensors hx;
  std::vector<RecurrentWeights> weights;  // of each layer's directions
};

NetworkCall network_call(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  NetworkCall call;
  call.name = c10::toString(op.operator_name());
  call.lstm = op.schema().name() == "aten::lstm";
  call.packed = !args["data"].isNone();
  call.batch_first = !call.packed && args["batch_first"].toBool();
  if (args["train"].toBool()) call.dropout = args["dropout"].toDouble();
  call.layers = args["num_layers"].toInt();
  call.directions = args["bidirectional"].toBool() ? 2 : 1;
  call.input = args.tensor(call.packed ? "data" : "input");
  if (call.packed) {
    call.batch_sizes = plain_numbers(args.tensor("batch_sizes"), op, "batch_sizes");
    call.sizes = numbers_of_rows(call.batch_sizes);
  }
  const int64_t states = call.layers * call.directions;
  const Tensors& hx = call.hx = args["hx"].isTensor() ? Tensors{args.tensor("hx")} : args["hx"].toTensorVector();
  TORCH_CHECK(hx.size() == (call.lstm ? 2 : 1), call.name, ": expects ",
              call.lstm ? "two hidden states" : "one hidden state", ", but got ", hx.size());
  for (const at::Tensor& h : hx) {
    TORCH_CHECK(h.dim() == 3 && h.size(0) == states, call.name, ": the hidden state must be [", states,
                ", batch, hidden size], but has shape ", h.sizes());
  }
  const bool projects = call.lstm && hx[0].size(2) != hx[1].size(2);
  call.weights = weights_of(args["params"].toTensorVector(), args["has_biases"].toBool(), projects, states, call.name);
  return call;
}

void recurrent(const c10::OperatorHandle& op, Stack& stack) {
  NetworkCall call = network_call(op, stack);
  torch::jit::drop(stack, op.schema().arguments().size());
  const RecurrentCell cell = recurrent_cell(op.schema().name());
  const Tensors h = call.hx[0].unbind(0), c = call.lstm ? call.hx[1].unbind(0) : Tensors(h.size());
  Tensors last_h, last_c;
  at::Tensor x = std::move(call.input);
  if (call.batch_first) x = x.transpose(0, 1);
  TORCH_CHECK(call.packed ? x.dim() == 2 && !call.sizes.empty() : x.dim() == 3 && x.size(0) > 0, call.name,
              ": Expected sequence length to be larger than 0, and an input of ", call.packed ? 2 : 3,
              " dims, but got one of shape ", x.sizes());
  // Sequences of a sharded batch are computed padded, since rows of the packed form mix those of all ranks.
  const bool side_by_side = call.packed && splits_batch(x, call.batch_sizes);
  const bool by_rows = call.packed && !side_by_side;
  Tensors running;
  if (side_by_side) {
    x = pad_packed(x, call.batch_sizes, static_cast<int64_t>(call.sizes.size()), 0);
    running = sequences_running(call.sizes, x);
  }
  for (int64_t layer = 0; layer < call.layers; ++layer) {
    Tensors outputs;
    const auto first_of_layer = static_cast<size_t>(layer * call.directions);
    std::vector<RecurrentWeights*> of_layer;
    for (int64_t d = 0; d < call.directions; ++d)
      of_layer.push_back(&call.weights[first_of_layer + static_cast<size_t>(d)]);
    if (!by_rows) gather_weights(of_layer, x, /*batch_dim=*/1);
    for (int64_t direction = 0; direction < call.directions; ++direction) {
      const size_t k = first_of_layer + static_cast<size_t>(direction);
      const RecurrentState first{h[k], c[k]};
      const RecurrentOutput r = by_rows ? run_packed(cell, call.weights[k], x, call.sizes, first, direction == 1)
                                        : run_padded(cell, call.weights[k], x, first, direction == 1, running);
      outputs.push_back(r.output);
      last_h.push_back(r.last.h);
      last_c.push_back(r.last.c);
    }
    x = call.directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (call.dropout != 0 && layer + 1 < call.layers) x = at::dropout(x, call.dropout, /*train=*/true);
  }
  if (side_by_side) x = pack_padded(x, call.batch_sizes);
  stack.emplace_back(call.batch_first ? x.transpose(0, 1) : x);
  stack.emplace_back(at::stack(last_h, 0));
  if (call.lstm) stack.emplace_back(at::stack(last_c, 0));
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

}  // namespace dtensor::internal
