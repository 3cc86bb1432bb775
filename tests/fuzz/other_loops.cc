#include "tests/fuzz/other_loops.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "propagation/functional_form.h"
#include "tests/fuzz/disturb.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

constexpr int64_t kMostLoopElements = 2000, kVector = 64;

// ATen does not tag operators that only backward calls, nor the out= forms of many others.
bool is_elementwise(const c10::OperatorHandle& op) {
  static const auto* const untagged = new std::set<std::string>{"aten::hardshrink_backward",
                                                                "aten::softshrink_backward",
                                                                "aten::hardtanh_backward",
                                                                "aten::hardswish_backward",
                                                                "aten::elu_backward",
                                                                "aten::mish_backward",
                                                                "aten::log_sigmoid_backward",
                                                                "aten::hardsigmoid_backward",
                                                                "aten::hardswish",
                                                                "aten::hardswish_",
                                                                "aten::floor_divide",
                                                                "aten::floor_divide_",
                                                                "aten::leaky_relu"};
  if (op.hasTag(at::Tag::pointwise)) return true;
  auto [name, overload] = op.operator_name();
  if (untagged->count(name) > 0) return true;
  if (const auto& arguments = op.schema().arguments(); !arguments.empty() && arguments.back().is_out()) {
    const auto functional = functional_form(op);
    return functional && is_elementwise(*functional);
  }
  if (name.back() != '_') return false;
  name.pop_back();
  const auto functional = c10::Dispatcher::singleton().findSchema({name, overload});
  return functional && functional->hasTag(at::Tag::pointwise);
}

// An elementwise call on a list of numbers: the arguments' values for each element of the result.
class Rows {
 public:
  // nullopt: the call is not supported.
  static std::optional<Rows> of(const torch::jit::Stack& arguments) {
    Rows rows;
    for (const c10::IValue& a : arguments) {
      if (a.isList() && (a.isTensorList() || a.isOptionalTensorList())) return std::nullopt;
      if (!a.isTensor() || !a.toTensor().defined() || a.toTensor().dim() == 0) continue;
      if (a.toTensor()._is_zerotensor() || a.toTensor().layout() != at::kStrided) return std::nullopt;
      rows.sizes_ = at::infer_size(rows.sizes_, a.toTensor().sizes());
    }
    rows.count_ = c10::multiply_integers(rows.sizes_);
    if (rows.sizes_.empty() || rows.count_ == 0 || rows.count_ > kMostLoopElements) return std::nullopt;
    for (const c10::IValue& a : arguments) {
      if (!a.isTensor() || !a.toTensor().defined() || a.toTensor().dim() == 0) {
        rows.arguments_.push_back(a);
      } else {
        const at::Tensor all = a.toTensor().detach().resolve_conj().resolve_neg();
        rows.arguments_.emplace_back(all.expand(rows.sizes_).reshape({-1}).clone());
      }
    }
    return rows;
  }

  at::IntArrayRef sizes() const { return sizes_; }

  // The operator's results for all of them; nullopt: not one number each.
  std::optional<std::vector<at::Tensor>> run(const c10::OperatorHandle& op, Loops loops) const {
    if (loops == Loops::kVectors) return run_range(op, 0, count_, kVector);
    std::vector<std::vector<at::Tensor>> results;
    for (int64_t k = 0; k < count_; ++k) {
      auto one = run_range(op, k, 1, 1);
      if (!one) return std::nullopt;
      results.resize(one->size());
      for (size_t r = 0; r < one->size(); ++r) results[r].push_back((*one)[r]);
    }
    std::vector<at::Tensor> all;
    for (const auto& result : results) all.push_back(at::cat(result));
    return all;
  }

 private:
  // Of `count` of them from the `begin`-th on, each repeated.
  std::optional<std::vector<at::Tensor>> run_range(const c10::OperatorHandle& op, int64_t begin, int64_t count,
                                                   int64_t repeated) const {
    torch::jit::Stack stack;
    for (const c10::IValue& a : arguments_) {
      if (!a.isTensor() || !a.toTensor().defined() || a.toTensor().dim() == 0) {
        stack.push_back(a);
      } else {
        const at::Tensor some = a.toTensor().narrow(0, begin, count);
        stack.emplace_back(some.unsqueeze(1).expand({count, repeated}).reshape({-1}).clone());
      }
    }
    const torch::jit::Stack kept = stack;  // two out= arguments are dropped before they are returned
    op.callBoxed(stack);
    std::vector<at::Tensor> results;
    for (const c10::IValue& r : stack) {
      if (!r.isTensor() || !r.toTensor().defined() || r.toTensor().numel() != count * repeated) return std::nullopt;
      results.push_back(r.toTensor().reshape({count, repeated}).select(1, 0));
    }
    return results;
  }

  torch::jit::Stack arguments_;
  std::vector<int64_t> sizes_;
  int64_t count_ = 0;
};

void write(const torch::jit::Stack& results, const std::vector<at::Tensor>& values, at::IntArrayRef sizes) {
  for (size_t r = 0; r < values.size(); ++r) {
    if (results[r].toTensor().sizes() == sizes) results[r].toTensor().variable_data().copy_(values[r].reshape(sizes));
  }
}

AfterCall multiply_in_order(const torch::jit::Stack& arguments, bool smallest_first) {
  const at::Tensor factors = arguments[0].toTensor().detach().clone();
  const bool one_dim = arguments.size() > 1 && arguments[1].isInt() && arguments.size() > 3;  // and keepdim, dtype
  const int64_t dim = one_dim ? arguments[1].toInt() : 0;
  return [=](const torch::jit::Stack& results) {
    const at::Tensor& result = results[0].toTensor();
    if (!result.is_floating_point() && !result.is_complex()) return;  // which wrap
    try {
      at::Tensor all = (one_dim ? factors.movedim(dim, 0) : factors.reshape({-1})).to(result.scalar_type());
      all = all.gather(0, all.abs().argsort(/*stable=*/true, 0, /*descending=*/!smallest_first));
      at::Tensor product = at::ones(all.sizes().slice(1), all.options());
      for (int64_t k = 0; k < all.size(0); ++k) product = product.mul(all.select(0, k));
      result.variable_data().copy_(product.reshape(result.sizes()));
    } catch (const std::exception&) {  // no kernel for a dtype
    }
  };
}

// The effect of summing operators on magnitudes shows how large the addends of each result are.
bool adds_up(const std::string& op) {
  static const auto* const sums = new std::set<std::string>{
      "aten::add",     "aten::add_",   "aten::sub", "aten::sub_", "aten::rsub",  "aten::sum",
      "aten::mean",    "aten::cumsum", "aten::mm",  "aten::bmm",  "aten::addmm", "aten::addmv",
      "aten::baddbmm", "aten::mv",     "aten::dot", "aten::trace"};
  return sums->count(op) > 0;
}
bool is_spread(const std::string& op) {
  return op == "aten::var" || op == "aten::std" || op == "aten::var_mean" || op == "aten::std_mean";
}

// `sign`: of the result.
c10::IValue magnitude(const c10::IValue& value, int sign) {
  if (value.isTensor() && is_number(value.toTensor())) return value.toTensor().detach().abs().mul(sign);
  return value.isDouble() ? c10::IValue(std::abs(value.toDouble()) * sign) : value;
}

// The largest addends of each result.
at::Tensor addends(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const std::string& name = op.operator_name().name;
  if (is_spread(name)) {
    const at::Tensor largest = arguments[0].toTensor().detach().abs().max();
    return absl::StartsWith(name, "aten::var") ? largest.square() : largest;
  }
  const size_t subtracted = absl::StartsWith(name, "aten::sub") ? 1 : name == "aten::rsub" ? 0 : arguments.size();
  torch::jit::Stack magnitudes;
  for (size_t a = 0; a < arguments.size(); ++a) magnitudes.push_back(magnitude(arguments[a], a == subtracted ? -1 : 1));
  op.callBoxed(magnitudes);
  return magnitudes[0].toTensor();
}

AfterCall cancel(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const bool squared = absl::StartsWith(op.operator_name().name, "aten::var");
  return [=, from = addends(op, arguments)](const torch::jit::Stack& results) {
    const at::Tensor& result = results[0].toTensor();
    if (!is_number(result) || !from.defined()) return;
    const double digit = last_digit(result.scalar_type());
    const at::Tensor least = from.mul(squared ? digit * digit : digit);
    const at::Tensor values = result.detach();
    try {
      const at::Tensor rounding = values.abs().le(least).logical_and(least.isfinite());
      values.masked_fill_(rounding.logical_and(values.ne(0)), 0);
    } catch (const std::exception&) {  // several elements share memory
    }
  };
}

// Views did not compute their elements.
bool computes(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::all_of(returns.begin(), returns.end(),
                     [](const c10::Argument& r) { return r.alias_info() == nullptr || r.alias_info()->isWrite(); });
}

// Sets `half` in both halves of complex results that are not finite.
void set_halves(const torch::jit::Stack& results, double half) {
  for (const c10::IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().defined() || !result.toTensor().is_complex()) continue;
    if (result.toTensor()._is_zerotensor() || result.toTensor().layout() != at::kStrided) continue;
    try {
      const at::Tensor values = result.toTensor().variable_data();
      values.masked_fill_(values.isfinite().logical_not(), c10::complex<double>(half, half));
    } catch (const std::exception&) {  // several elements share memory
    }
  }
}

}  // namespace

BeforeCall in_other_loops(Loops loops) {
  return [loops](const c10::OperatorHandle& op, const torch::jit::Stack& arguments) -> AfterCall {
    if (loops == Loops::kSmallestFirst || loops == Loops::kLargestFirst) {
      if (op.operator_name().name != "aten::prod") return nullptr;
      return multiply_in_order(arguments, loops == Loops::kSmallestFirst);
    }
    if (loops == Loops::kNaNHalves || loops == Loops::kInfiniteHalves) {
      if (!computes(op)) return nullptr;
      const double half = loops == Loops::kNaNHalves ? NAN : INFINITY;
      return [half](const torch::jit::Stack& results) { set_halves(results, half); };
    }
    const std::string& name = op.operator_name().name;
    const bool sums = loops == Loops::kCancelled;
    if (sums ? !adds_up(name) && !is_spread(name) : !is_elementwise(op)) return nullptr;
    try {
      if (sums) return cancel(op, arguments);
      auto rows = Rows::of(arguments);
      if (!rows) return nullptr;
      return [op, loops, rows = *std::move(rows)](const torch::jit::Stack& results) {
        try {
          if (const auto values = rows.run(op, loops)) write(results, *values, rows.sizes());
        } catch (const std::exception&) {  // several elements share memory
        }
      };
    } catch (const std::exception&) {  // sizes that do not fit, as the operator will report
      return nullptr;
    }
  };
}

}  // namespace dtensor::fuzz
