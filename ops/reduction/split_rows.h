// What normalizations of rows that ranks share have in common: the elements stay where they are if that is cheaper than
// to bring whole rows to ranks. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/support/arguments.h"
#include "placement/placement.h"
#include "plan/spec.h"

namespace dtensor {

struct SplitRows {
  at::Tensor input;
  std::vector<int64_t> dims;    // of a row, ascending: ranks share its elements along some
  std::vector<int64_t> others;  // dims, ascending
  c10::ScalarType dtype;        // to compute in
  Placements weights;           // of weight and bias where each rank has those of its elements

  int64_t size() const;  // of a row
  // What it takes to add up `numbers` of each row over the ranks that share it; infinity where it exceeds the memory
  // limit.
  double seconds_to_add(int64_t numbers) const;
};

// nullopt: ranks have whole rows, or the rule tells what is wrong. `dims`: of a row; `weight_dim`: the dim of the input
// that the first one of weight and bias is along; `tensors`: the other arguments, undefined ones among them.
std::optional<SplitRows> split_rows(const at::Tensor& input, std::vector<int64_t> dims, int64_t weight_dim,
                                    int64_t weight_ndim, const std::vector<at::Tensor>& tensors);

// Does what stays in place take less time than to move the rows, or do only these exceed the memory limit? `own`: what
// it exchanges; `moving`: like the input, which is among them; `weights`: weight and bias.
bool pays_to_stay(const SplitRows& rows, double own, const std::vector<at::Tensor>& moving,
                  const std::vector<at::Tensor>& weights);

// An undefined tensor stays so. `what`: the argument's name.
at::Tensor brought(const at::Tensor& t, const Placements& to, const c10::OperatorHandle& op, const char* what);
// Nothing of it is Partial.
at::Tensor reduced(const at::Tensor& t, const c10::OperatorHandle& op, const char* what);
// As the CPU's kernels of layer and group norm have it: statistics of half types are in float beside float weights
// only.
c10::ScalarType stats_type(const SplitRows& rows, const std::vector<at::Tensor>& weights);
// The weight's type, of addends: each rank casts its own, as the kernels do.
at::Tensor cast_addends(const at::Tensor& t, c10::ScalarType dtype);

}  // namespace dtensor
