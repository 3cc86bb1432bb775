// Operators that only move elements: views, slices, concatenations, and their backward. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "propagation/factor_rule.h"

namespace dtensor {

// For every dim of the output: the input's dim that it is, element for element, or kNoFactor. Input dims that are
// nowhere in the output are computed whole.
using OutputDims = std::vector<int>;

// Which kinds of Partial pass: those of addends (elements are added up), or all (one of the output is one of the input,
// or zero).
enum class Passing { kNone, kLinear, kAll };

// One tensor (the first; other inputs are not looked at) moved to `num_outputs` tensors with the same dims.
FactorRule movement(const OpCall& call, const OutputDims& output, int num_outputs = 1, Passing passing = Passing::kAll);

// Lets every kind of Partial through that `inputs` have in common.
void pass_all_partials(FactorRule& rule, const std::vector<int>& inputs);

// Of the first input.
int64_t ndim(const OpCall& call);

// The dim that argument `name` says, counted from the first one: of the first input with `extra` dims more.
int64_t dim_arg(const OpCall& call, const char* name, int64_t extra = 0);

// 0, 1, ..., n - 1.
OutputDims same_dims(int64_t n);

// The operator itself, with the size argument `name` replaced by the local shape of the (first) output.
std::function<void(const LocalCall&, torch::jit::Stack&)> with_local_sizes(const std::string& name);

// Index of an argument on the stack that OpRule::local gets.
size_t stack_index(const LocalCall& call, const std::string& name);

// Ends a local computation: leaves `result` on the stack, written to what the operator writes to, if it does.
void leave_result(const LocalCall& call, torch::jit::Stack& stack, at::Tensor result);

// Registration, by family.

}  // namespace dtensor
