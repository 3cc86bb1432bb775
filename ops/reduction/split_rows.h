// Code shared by normalizations of rows that are sharded: the elements stay in place if that is cheaper than gathering
// whole rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/support/arguments.h"
#include "placement/placement.h"
#include "plan/spec.h"

namespace dtensor::internal {

struct SplitRows {
  at::Tensor input;
  std::vector<int64_t> dims;    // dims of a row, ascending; some are sharded
  std::vector<int64_t> others;  // the other dims, ascending
  c10::ScalarType dtype;        // dtype to compute in
  Placements weights;           // layout of weight and bias in which each rank has those of its elements

  int64_t size() const;  // elements of a row
  // Time to add up `numbers` values per row over the ranks that share it; infinity where it exceeds the memory limit.
  double seconds_to_add(int64_t numbers) const;
};

// nullopt: ranks have whole rows, or the arguments are wrong and the rule reports it. `dims`: of a row; `weight_dim`:
// the dim of the input that the first dim of weight and bias corresponds to; `tensors`: the other arguments, undefined
// ones among them.
std::optional<SplitRows> split_rows(const at::Tensor& input, std::vector<int64_t> dims, int64_t weight_dim,
                                    int64_t weight_ndim, const std::vector<at::Tensor>& tensors);

// Whether computing in place takes less time than moving the rows, or moving them exceeds the memory limit. `own`: time
// of its own exchanges; `moving`: tensors laid out like the input, which is among them; `weights`: weight and bias.
bool pays_to_stay(const SplitRows& rows, double own, const std::vector<at::Tensor>& moving,
                  const std::vector<at::Tensor>& weights);

// Redistributes `t`; an undefined tensor stays undefined. `what`: the argument's name. `parameters`: of the call, for
// reports that name its module.
at::Tensor brought(const at::Tensor& t, const Placements& to, const c10::OperatorHandle& op, const char* what,
                   c10::ArrayRef<at::Tensor> parameters = {});
// Redistributes `t` so that nothing is Partial.
at::Tensor reduced(const at::Tensor& t, const c10::OperatorHandle& op, const char* what,
                   c10::ArrayRef<at::Tensor> parameters = {});
// As in the CPU kernels of layer and group norm: statistics of half types are in float only with float weights.
c10::ScalarType stats_type(const SplitRows& rows, const std::vector<at::Tensor>& weights);
// Casts addends to the weight's type: each rank casts its own, as the kernels do.
at::Tensor cast_addends(const at::Tensor& t, c10::ScalarType dtype);

}  // namespace dtensor::internal
