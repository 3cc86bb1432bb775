#include "dtensor/dispatch/out_tensor.h"

#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string_view>

#include "absl/algorithm/container.h"
#include "comm/scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "propagation/functional_form.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// As in LibTorch, out= does not support gradients.
void check_needs_no_gradient(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (!c10::GradMode::is_enabled()) return;
  const auto needs_gradient = [](const c10::IValue& v) {
    return v.isTensor() && v.toTensor().defined() && v.toTensor().requires_grad();
  };
  for (size_t a = 0; a < args.size(); ++a) {
    const bool any = args[a].isList() ? absl::c_any_of(args[a].toListRef(), needs_gradient) : needs_gradient(args[a]);
    TORCH_CHECK(!any, info.name,
                ": functions with out= arguments do not support automatic differentiation, but argument '",
                info.op.schema().arguments()[a].name(),
                "' requires grad. Use the form that returns a new tensor, or detach() the argument.");
  }
}

// Only out= tensors are written, they are distributed, and there is a distributed input. (Factories only fill out=.)
bool computes_for_distributed(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  bool any = false, reads = false;
  for (size_t a = 0; a < args.size(); ++a) {
    reads |= !info.args[a].written && info.args[a].kind != OpInfo::Arg::Kind::kStatic;
    if (!info.args[a].written) continue;
    if (!info.args[a].out || !args[a].isTensor() || !is_dtensor(args[a].toTensor())) return false;
    any = true;
  }
  return any && reads;
}

void become(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op) {
  const CommCause cause{c10::toString(op.operator_name()), "out", current_scope().module_path, /*implicit=*/true};
  const at::Tensor reduced =
      redistribute_below_autograd(result.detach(), without_partials(spec_of(result)->placements()), cause);
  const at::Tensor own = reduced.to(out.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  replace_contents(out, spec_of(own), meta_for_read(own).locals);
}

// Error: `out` cannot hold the result.
void check_fits(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), op.operator_name(), ": a result of dtype ",
              result.scalar_type(), " cannot be cast to that of the out= argument, ", out.scalar_type());
  TORCH_CHECK(out.sizes() == result.sizes() || may_grow(out), op.operator_name(), ": the out= argument of shape ",
              out.sizes(), " cannot hold the result, of shape ", result.sizes(),
              ". Pass one of that shape, or one without elements.");
}

// REQUIRES: check_fits().
void put(at::Tensor out, const at::Tensor& result, const c10::OperatorHandle& op) {
  if (out.sizes() != result.sizes()) {
    if (is_dtensor(out) && is_dtensor(result)) return become(out, result, op);
    out.resize_(result.sizes());
  }
  out.copy_(result);
}

// ATen's reductions compute in the dtype of out= if no dtype is given.
bool computes_in_dtype_of_out(const OpInfo& info) {
  static constexpr std::string_view kOperators[] = {"aten::sum",  "aten::nansum", "aten::prod",
                                                    "aten::mean", "aten::cumsum", "aten::cumprod"};
  return absl::c_linear_search(kOperators, info.op.schema().name());
}

}  // namespace

bool may_grow(const at::Tensor& out) {
  return out.numel() == 0 && !(is_dtensor(out) && meta_without_sync(out).storage->observer);
}

at::Tensor write_out(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op) {
  if (!out.defined()) return result;
  check_fits(out, result, op);
  put(out, result, op);
  return out;
}

bool run_functional_form(const OpInfo& info, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  if (!computes_for_distributed(info, args)) return false;
  const auto functional = functional_form(info.op);
  if (!functional) return false;
  check_needs_no_gradient(info, args);
  std::vector<at::Tensor> outs;
  for (size_t a = 0; a < args.size(); ++a) {
    if (info.args[a].out) outs.push_back(args[a].toTensor());
  }
  Stack results;
  for (const auto& argument : functional->schema().arguments()) {
    const auto a = info.op.schema().argumentIndexWithName(argument.name());
    results.push_back(a ? args[*a] : *argument.default_value());
    if (argument.name() != "dtype") continue;
    if (!a || (results.back().isNone() && computes_in_dtype_of_out(info))) results.back() = outs.front().scalar_type();
  }
  functional->callBoxed(results);
  TORCH_INTERNAL_ASSERT(outs.size() == results.size(), info.name);
  for (size_t r = 0; r < outs.size(); ++r) check_fits(outs[r], results[r].toTensor(), info.op);
  for (size_t r = 0; r < outs.size(); ++r) put(outs[r], results[r].toTensor(), info.op);
  torch::jit::drop(stack, info.args.size());
  for (const at::Tensor& out : outs) stack.emplace_back(out);
  return true;
}

bool run_to_resize(const OpInfo& info, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  bool any_empty = false;
  for (size_t a = 0; a < args.size(); ++a) {
    any_empty |= info.args[a].out && args[a].isTensor() && args[a].toTensor().numel() == 0;
  }
  if (!any_empty || !run_functional_form(info, stack)) return false;
  count_otherwise();
  return true;
}

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
