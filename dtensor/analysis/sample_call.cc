#include "dtensor/analysis/sample_call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

c10::OperatorHandle find_operator(const std::string& text) {
  const size_t dot = text.find('.', text.find("::") == text.npos ? 0 : text.find("::"));
  const std::string name = text.substr(0, dot), overload = dot == text.npos ? "" : text.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK_VALUE(op.has_value(), "[verify_rule] there is no operator '", text,
                    "': say it as \"namespace::name.overload\", \"aten::add.Tensor\"");
  return *op;
}

// The local value of a Partial for one coordinate along a mesh dim, derived from the tensor's values.
at::Tensor addend(const at::Tensor& value, ReduceOp op, int64_t size, int64_t coordinate, uint64_t seed) {
  const auto noise = [&](int64_t of) {
    at::Generator generator = at::detail::createCPUGenerator(absl::HashOf(seed, of));
    const at::Tensor z = at::empty(value.sizes(), at::kDouble).uniform_(-1, 1, generator);
    return z.mul(8).round().div(8).to(value.options());  // few digits: equal values stay equal in sums
  };
  const int64_t holder = static_cast<int64_t>(seed % static_cast<uint64_t>(size));
  const bool holds = coordinate == holder;
  at::Tensor rest;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: {
      if (!holds) return noise(coordinate);
      rest = op == ReduceOp::kAvg ? value * static_cast<double>(size) : value.clone();
      for (int64_t c = 0; c < size; ++c) {
        if (c != holder) rest = rest - noise(c);
      }
      return rest;
    }
    case ReduceOp::kMax:
      return holds ? value : value - noise(coordinate).abs();
    case ReduceOp::kMin:
      return holds ? value : value + noise(coordinate).abs();
    case ReduceOp::kProduct: {
      const auto factor = [&](int64_t c) { return at::full_like(value, c % 2 == 0 ? -2 : 0.5); };
      if (!holds) return factor(coordinate);
      rest = value.clone();
      for (int64_t c = 0; c < size; ++c) {
        if (c != holder) rest = rest / factor(c);
      }
      return rest;
    }
    case ReduceOp::kNorm2:
      return holds ? value : value * 0;
  }
  return value;
}

Tensors copies(const Tensors& tensors, bool gradients) {
  Tensors result;
  for (const at::Tensor& t : tensors) {
    result.push_back(t.detach().clone());
    if (gradients && (t.is_floating_point() || t.is_complex())) result.back().requires_grad_();
  }
  return result;
}

Tensors leaves_of(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& t : tensors) {
    if (t.requires_grad()) leaves.push_back(t);
  }
  return leaves;
}

Tensors gradients_of(const Tensors& results, const Tensors& seeds, const Tensors& inputs) {
  Tensors roots, given;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!seeds[k].defined()) continue;
    roots.push_back(results[k]);
    given.push_back(is_dtensor(results[k]) ? distribute_tensor(seeds[k], spec_of(results[k])->mesh()) : seeds[k]);
  }
  if (roots.empty()) return {};
  return torch::autograd::grad(roots, leaves_of(inputs), given, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace

SampleCall::SampleCall(const std::string& op, std::vector<c10::IValue> args) : op_(find_operator(op)) {
  try {
    op_.schema().checkAndNormalizeInputs(args);
  } catch (const std::exception& e) {
    TORCH_CHECK_VALUE(false, "[verify_rule] the arguments do not fit ", op_.schema(), ": ", e.what());
  }
  for (const c10::IValue& value : args) {
    args_.push_back(with_tensors(value, [&](const at::Tensor& t) {
      TORCH_CHECK_VALUE(!is_dtensor(t), "[verify_rule] ", name(), ": give plain tensors, not distributed ones");
      tensors_.push_back(t.detach());
      return t;
    }));
  }
}

std::vector<c10::IValue> SampleCall::arguments(const std::vector<at::Tensor>& tensors) const {
  size_t next = 0;
  std::vector<c10::IValue> result;
  for (const c10::IValue& value : args_) {
    result.push_back(with_tensors(value, [&](const at::Tensor&) { return tensors.at(next++); }));
  }
  return result;
}

SampleCall::Results SampleCall::run(const std::vector<at::Tensor>& tensors) const {
  Stack stack = arguments(tensors);
  op_.callBoxed(stack);
  Results results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      results.tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) results.tensors.push_back(t);
    } else {
      results.numbers.push_back(value);
    }
  }
  return results;
}

ExpectedResults::ExpectedResults(const SampleCall& call, bool gradients, uint64_t seed) {
  Tensors inputs = copies(call.tensors(), gradients && !call.writes());
  at::Generator generator = at::detail::createCPUGenerator(seed);
  try {
    results_ = call.run(inputs);
  } catch (const std::exception& e) {
    TORCH_CHECK_VALUE(false, "[verify_rule] plain LibTorch does not take the arguments of ", call.name(), ": ",
                      e.what());
  }
  for (const at::Tensor& r : results_.tensors) {
    const bool wants = r.defined() && r.requires_grad();
    const auto on_cpu = r.defined() ? r.options().requires_grad(false).device(at::kCPU) : at::TensorOptions();
    seeds_.push_back(wants ? at::randn(r.sizes(), generator, on_cpu).to(r.device()) : at::Tensor());
  }
  try {
    gradients_ = gradients_of(results_.tensors, seeds_, inputs);
  } catch (const std::exception&) {
    gradients_.clear();  // it has none
  }
}

bool ExpectedResults::has_gradients() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](const at::Tensor& t) { return t.defined(); });
}

std::string ExpectedResults::wrong_result(const SampleCall::Results& actual, double tolerance) const {
  if (actual.tensors.size() != results_.tensors.size())
    return absl::StrCat(actual.tensors.size(), " tensors come out, not ", results_.tensors.size());
  for (size_t k = 0; k < results_.tensors.size(); ++k) {
    const std::string text = difference_of(actual.tensors[k], results_.tensors[k], tolerance);
    if (!text.empty()) return absl::StrCat("result ", k, " ", text);
  }
  for (size_t k = 0; k < results_.numbers.size(); ++k) {
    const c10::IValue &a = actual.numbers.at(k), &b = results_.numbers[k];
    const bool same = a.isDouble() && b.isDouble()
                          ? std::abs(a.toDouble() - b.toDouble()) <= tolerance * (1 + std::abs(b.toDouble()))
                          : c10::str(a) == c10::str(b);
    if (!same) return c10::str("gives ", a, ", should give ", b);
  }
  return "";
}

std::string ExpectedResults::wrong_gradient(const SampleCall::Results& actual, const Tensors& inputs,
                                            double tolerance) const {
  if (gradients_.empty()) return "";
  const Tensors gradients = gradients_of(actual.tensors, seeds_, inputs);
  for (size_t k = 0; k < gradients.size(); ++k) {
    const at::Tensor &a = gradients[k], &b = gradients_[k];
    if (a.defined() != b.defined()) continue;  // undefined, or zeros
    const std::string text = difference_of(a, b, tolerance);
    if (!text.empty()) return absl::StrCat("gradient ", k, " ", text);
  }
  return "";
}

at::Tensor laid_out(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements, uint64_t seed) {
  const c10::AutoGradMode no_grad(false);
  const Placements cut = without_partials(placements);
  if (cut == placements) return distribute_tensor(full.detach().clone(), mesh, placements, std::nullopt);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
    at::Tensor own = full.detach();
    const auto coordinate = mesh.local_coordinate(static_cast<int64_t>(i));
    uint64_t own_seed = seed;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!placements[m].is_partial()) continue;
      own_seed = absl::HashOf(own_seed, m);
      own = addend(own, placements[m].reduce_op(), mesh.size(m), coordinate[m], own_seed);
      own_seed = absl::HashOf(own_seed, coordinate[m]);
    }
    parts.push_back(DTensor(distribute_tensor(own.clone(), mesh, cut, std::nullopt)).local(static_cast<int64_t>(i)));
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  return from_local(parts, mesh, placements, options);
}

std::string difference_of(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (actual.defined() != expected.defined()) return actual.defined() ? "should be undefined" : "is undefined";
  if (!expected.defined()) return "";
  if (actual.sizes() != expected.sizes())
    return c10::str("has the shape ", actual.sizes(), ", should have ", expected.sizes());
  if (actual.scalar_type() != expected.scalar_type())
    return c10::str("has the dtype ", actual.scalar_type(), ", should have ", expected.scalar_type());
  const c10::AutoGradMode no_grad(false);
  const auto wide = [](const at::Tensor& t) { return t.to(t.is_complex() ? at::kComplexDouble : at::kDouble); };
  const at::Tensor want = wide(expected.detach());
  const at::Tensor finite = want.numel() == 0 ? want : want.abs().nan_to_num(0, 0, 0);
  const double scale = want.numel() == 0 ? 0 : finite.max().item<double>();
  const double epsilon = c10::elementSize(c10::toRealValueType(expected.scalar_type())) >= 8 ? 1 : 1e5;
  const at::Tensor known = want.isfinite();
  const auto wrong = [&](const at::Tensor& t) {
    if (t.sizes() != want.sizes()) return true;
    const at::Tensor own = wide(t);
    // Addends of an infinity may be nan.
    const at::Tensor both = known.logical_or(own.isfinite());
    const at::Tensor zero = at::zeros({}, want.options());
    return !at::allclose(at::where(both, own, zero), at::where(both, want, zero), 0, tolerance * epsilon * (1 + scale));
  };
  if (!is_dtensor(actual)) return wrong(actual) ? c10::str("is ", actual, ", should be ", expected) : "";
  const DTensor layout(actual.detach());
  const at::Tensor whole = full_tensor(actual.detach());
  if (wrong(whole))
    return c10::str("laid out ", to_string(layout.placements()), " is ", whole, ", should be ", expected);
  const bool replicated = std::all_of(layout.placements().begin(), layout.placements().end(),
                                      [](const Placement& p) { return p.is_replicate(); });
  for (size_t i = 0; replicated && i < layout.mesh().local_ranks().size(); ++i) {
    if (wrong(layout.local(static_cast<int64_t>(i))))
      return c10::str("differs on rank ", layout.mesh().local_ranks()[i], " from others");
  }
  return "";
}

}  // namespace dtensor::internal
