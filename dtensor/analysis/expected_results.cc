#include "dtensor/analysis/expected_results.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

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
    seeds_.push_back(wants ? at::randn(r.sizes(), generator, r.options().requires_grad(false)) : at::Tensor());
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

}  // namespace dtensor::internal
