// The constant parts of printed programs. @NAMES@ are replaced.
#pragma once

namespace dtensor::fuzz {

inline constexpr char kPrelude[] = R"(// Found by tests/fuzz: @WHAT@
// @MESSAGE@
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "dtensor/dtensor.h"
using namespace dtensor;

const DeviceMesh mesh(World::local(@RANKS@), @MESH@);
using Named = std::vector<std::pair<std::string, at::Tensor>>;
int wrong = 0;

void say(const std::string& what) {
  ++wrong;
  std::cout << what << "\n";
}

at::Tensor moved(const at::Tensor& t, const Placements& to) {
  const at::Tensor result = is_dtensor(t) ? redistribute(t, to) : t;
  return result.is_same(t) ? t.clone() : result;
}

// Compares the value of every owned rank if the tensor is replicated, and the whole.
void compare(const std::string& name, const at::Tensor& actual, at::Tensor expected) {
  if (!actual.defined() && !expected.defined()) return;
  if (!actual.defined()) return expected.ne(0).any().item<bool>() ? say(name + " is undefined") : void();
  if (!expected.defined()) expected = torch::zeros(actual.sizes(), actual.scalar_type());
  if (!is_dtensor(actual)) return say(name + " is a plain tensor");
  if (actual.scalar_type() != expected.scalar_type()) return say(name + " has another dtype");
  if (actual.sizes() != expected.sizes()) return say(name + " has other sizes");
  if (actual.requires_grad() != expected.requires_grad()) say(name + ": requires_grad differs");
  const DTensor layout(actual.detach());
  std::vector<at::Tensor> values = {full_tensor(actual.detach())};
  bool replicated = true;
  for (const Placement& p : layout.placements()) replicated = replicated && p.is_replicate();
  for (int64_t i = 0; replicated && i < mesh.size(); ++i) values.push_back(layout.local(i));
  const auto all = [](const at::Tensor& t) { return t.is_complex() ? t.to(torch::kComplexDouble) : t.to(torch::kDouble); };
  const at::Tensor want = all(expected.detach());
  for (const at::Tensor& value : values) {
    const double scale = want.numel() == 0 ? 0 : want.abs().nan_to_num(0, 0, 0).max().item<double>();
    if (torch::allclose(all(value), want, 0, @TOLERANCE@ * (1 + scale), /*equal_nan=*/true)) continue;
    std::cout << value << "\nshould be\n" << expected << "\n";
    return say(name + " is wrong");
  }
}

)";

inline constexpr char kNoGradients[] = R"(void add_gradients(Named&, const std::vector<at::Tensor>&) {}

)";

inline constexpr char kGradients[] = R"(at::Tensor weights(const at::Tensor& output, int number) {
  at::Tensor w = torch::arange(output.numel(), torch::kDouble).mul(0.7).add(number).cos().view(output.sizes());
  w = output.is_complex() ? torch::complex(w, w.mul(2).sin()).to(output.scalar_type()) : w.to(output.scalar_type());
  return is_dtensor(output) ? distribute_tensor(w, mesh, @SEEDS@) : w;
}

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> used, seeds;
  for (size_t k = 0; k < roots.size(); ++k) {
    if (!roots[k].defined() || !roots[k].requires_grad()) continue;
    used.push_back(roots[k]);
    seeds.push_back(weights(roots[k], static_cast<int>(k)));
  }
  if (used.empty()) return std::vector<at::Tensor>(leaves.size());
  return torch::autograd::grad(used, leaves, seeds, /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
}

// Gradients of a fixed linear function of everything with respect to the leaves, and of such a function of those.
void add_gradients(Named& all, const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> roots, targets;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad()) targets.push_back(leaf);
  }
  for (const auto& [name, t] : all) {
    const bool differentiable = t.defined() && (t.is_floating_point() || t.is_complex());
    if (differentiable && t.requires_grad() && !t.is_leaf()) roots.push_back(t);
  }
  for (int order = 1; order <= @ORDER@ && !roots.empty() && !targets.empty(); ++order) {
    roots = gradients(roots, targets);
    for (size_t k = 0; k < roots.size(); ++k) {
      all.emplace_back("gradient " + std::to_string(k) + " of order " + std::to_string(order), roots[k]);
    }
  }
}

)";

inline constexpr char kStepsBegin[] =
    R"(Named program(const std::vector<at::Tensor>& leaves, std::vector<double>& numbers) {
  Named all;
)";

inline constexpr char kStepsEnd[] = R"(  (void)numbers;
  add_gradients(all, leaves);
  return all;
}

)";

inline constexpr char kMain[] = R"(int main() {
  const std::vector<at::Tensor> plain = {
@PLAIN@  };
  const std::vector<at::Tensor> distributed = {
@DISTRIBUTED@  };
@SCOPE@  std::vector<double> expected_numbers, actual_numbers;
  const Named expected = program(plain, expected_numbers);
  try {
    const Named actual = program(distributed, actual_numbers);
    for (size_t k = 0; k < expected.size(); ++k) {
      if (k < actual.size()) compare(expected[k].first, actual[k].second, expected[k].second);
    }
    if (actual.size() != expected.size()) say("another number of gradients");
    for (size_t k = 0; k < expected_numbers.size(); ++k) {
      const double e = expected_numbers[k], a = actual_numbers.at(k);
      const bool same = std::isnan(e) ? std::isnan(a) : e == a || std::abs(e - a) < 1e-4 * (1 + std::abs(e));
      if (!same) say("a number differs");
    }
  } catch (const c10::Error& e) {
    say(std::string("refused: ") + e.what_without_backtrace());
  }
  return wrong > 0;
}
)";

}  // namespace dtensor::fuzz
