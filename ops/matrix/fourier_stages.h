// The plan of a Fourier transform over several dims of which some are sharded: dim by dim, with the sharding moved to
// other dims in between, if that moves less than the rule's way.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/support/arguments.h"
#include "plan/spec.h"

namespace dtensor::internal {

using FourierDims = std::vector<int64_t>;

// A transform of some of the dims, and the layout in which it is computed.
struct FourierStage {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;     // except the tensor
  std::optional<Placements> layout;  // nullopt: the tensor's present layout
};

struct FourierStages {
  std::vector<FourierStage> stages;
  Shape strides;  // of the result of the whole transform
};

// The dims from 0, if there are several and one of them is split. nullopt: the rule's way is best, or the arguments are
// invalid.
std::optional<FourierDims> dims_to_part(const at::Tensor& self, const Arguments& args);

// The stages of a call of aten::_fft_c2c, _fft_r2c or _fft_c2r, remembered by operator, rules, spec, limits and
// arguments. Without stages: the rule's way moves less.
std::shared_ptr<const FourierStages> decide_stages(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                                   const at::Tensor& self, const FourierDims& dims);

}  // namespace dtensor::internal
