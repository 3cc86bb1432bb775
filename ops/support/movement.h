// Operators that only move elements: views, slices, concatenations, and their backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "propagation/factor_rule.h"

namespace dtensor::internal {

// For every dim of the output: the input dim whose elements it has, or kNoFactor. Input dims that the output lacks are
// needed whole.
using OutputDims = std::vector<int>;

// Which kinds of Partial pass: none, only sums and averages (elements are added up), or all (each output element is an
// input element, or zero).
enum class Passing { kNone, kLinear, kAll };

// One tensor (the first; other inputs are ignored) moved to `num_outputs` tensors with the same dims. Partials of no
// elements do not pass, since to reduce them costs nothing, unless the operator writes to them.
FactorRule movement(const OpCall& call, const OutputDims& output, int num_outputs = 1, Passing passing = Passing::kAll);

// A rule that may differ along mesh dims of one rank: there all elements are local, and no dim needs to be whole.
OpRule factor_op_by_ranks(std::function<FactorRule(const OpCall&, bool one_rank)> rule);

// Of an operator with one result: if that has no elements, the first input stays where it is, and the result is
// replicated. REQUIRES: without OpRule::local the operator gives the same empty result for any part of the input.
void takes_nothing_if_empty(OpRule& rule);

// Passes every kind of Partial that `inputs` have in common.
void pass_all_partials(FactorRule& rule, const std::vector<int>& inputs);

// Number of dims of the first input.
int64_t ndim(const OpCall& call);

// The dim in argument `name`, made non-negative for a tensor with `extra` dims more than the first input.
int64_t dim_arg(const OpCall& call, const char* name, int64_t extra = 0);

// 0, 1, ..., n - 1.
OutputDims same_dims(int64_t n);

// Calls the operator itself, with the size argument `name` replaced by the local shape of the (first) output.
std::function<void(const LocalCall&, torch::jit::Stack&)> with_local_sizes(const std::string& name);

// Index on the stack of an argument, for OpRule::local.
size_t stack_index(const LocalCall& call, const std::string& name);

// Whether padding by these numbers of places, negative ones cut off, adds any.
bool adds_places(const std::vector<int64_t>& pad);

// Ends a local computation: leaves `result` on the stack, copied into the written argument if the operator has one.
void leave_result(const LocalCall& call, torch::jit::Stack& stack, at::Tensor result);

}  // namespace dtensor::internal
