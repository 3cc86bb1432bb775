#include "dtensor/dispatch/written_results.h"

#include "absl/algorithm/container.h"
#include "dtensor/dispatch/out_tensor.h"

namespace dtensor::internal {

using torch::jit::Stack;

WrittenResults::WrittenResults(const OpInfo& info, const Stack& stack) : info_(info) {
  if (absl::c_all_of(info.written_inputs, [](int a) { return a < 0; })) return;
  const size_t first = stack.size() - info.args.size();
  for (const int a : info.written_inputs) {
    const bool is_tensor = a >= 0 && stack[first + static_cast<size_t>(a)].isTensor();
    arguments_.push_back(is_tensor ? stack[first + static_cast<size_t>(a)].toTensor() : at::Tensor());
  }
}

void WrittenResults::settle(Stack& stack) const {
  if (arguments_.empty()) return;
  const size_t first = stack.size() - arguments_.size();
  const auto differs = [&](size_t r) {
    const c10::IValue& result = stack[first + r];
    return arguments_[r].defined() && result.isTensor() && result.toTensor().defined() &&
           !result.toTensor().is_same(arguments_[r]);
  };
  for (size_t r = 0; r < arguments_.size(); ++r) {
    if (differs(r)) check_fits(arguments_[r], stack[first + r].toTensor(), info_.op);
  }
  for (size_t r = 0; r < arguments_.size(); ++r) {
    if (differs(r)) stack[first + r] = write_out(arguments_[r], stack[first + r].toTensor(), info_.op);
  }
}

}  // namespace dtensor::internal
