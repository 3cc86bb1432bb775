// One direction of a layer of a recurrent network, composed of products and elementwise operators, so that a split
// batch stays split. recurrent.cc makes networks of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace dtensor::internal {

// Biases and projection may be undefined.
struct RecurrentWeights {
  at::Tensor input, hidden, input_bias, hidden_bias, projection;
};

// The state of a layer: h, and of an lstm c, each [batch, features].
struct RecurrentState {
  at::Tensor h, c;

  template <typename Fn>
  RecurrentState map(const Fn& fn) const {
    return {fn(h), c.defined() ? fn(c) : c};
  }
};

// Computes the next state from the projected input, the projected hidden state, and the state.
using RecurrentCell = RecurrentState (*)(const at::Tensor& from_input, const at::Tensor& from_hidden,
                                         const RecurrentState& state);
// `op`: "aten::lstm", "aten::gru", "aten::rnn_tanh" or "aten::rnn_relu".
RecurrentCell recurrent_cell(std::string_view op);

// The outputs of all steps, in the order of the input, and the last state.
struct RecurrentOutput {
  at::Tensor output;
  RecurrentState last;
};

// Per step, a mask [batch, 1] of the sequences that have it; undefined: all have it. `sizes`: the number of sequences
// that have each step, not empty. `input`: a distributed tensor with the device and mesh of the masks.
std::vector<at::Tensor> sequences_running(const std::vector<int64_t>& sizes, const at::Tensor& input);

// `input`: [length, batch, features]. A sequence that is not `running` keeps its state; an empty list: all run, at
// every step.
RecurrentOutput run_padded(RecurrentCell cell, const RecurrentWeights& w, const at::Tensor& input, RecurrentState state,
                           bool reverse, const std::vector<at::Tensor>& running);

// `data`: the first steps of all sequences, then the second ones, ...; `sizes`: the number of rows of each step. Longer
// sequences come first.
RecurrentOutput run_packed(RecurrentCell cell, const RecurrentWeights& w, const at::Tensor& data,
                           const std::vector<int64_t>& sizes, const RecurrentState& first, bool reverse);

}  // namespace dtensor::internal
