// Cross entropy over the classes that one rank holds: what is computed for one row, the CPU kernels beside ATen's
// composite in float64, and the registered operators with autograd.
#include "ops/loss/cross_entropy_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "ops/kernels/cpu/cross_entropy.h"
#include "ops/kernels/cpu/exp_of.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/intra_op_threads.h"

using namespace dtensor;
using namespace dtensor::internal;
using Catch::Contains;

namespace {

using testing::kInf;

at::Tensor summaries_op(const CrossEntropyArguments& args) {
  const auto weight = args.weight.defined() ? std::optional<at::Tensor>(args.weight) : std::nullopt;
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("dtensor::cross_entropy_part", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t, int64_t,
                        int64_t, double)>()
      .call(args.logits, args.target, weight, args.part.offset, args.part.num_classes, args.part.ignore_index,
            args.part.label_smoothing);
}

// The arguments of three ranks that share the classes unevenly; the second has none.
std::vector<CrossEntropyArguments> parts_of(const CrossEntropyArguments& whole) {
  const int64_t classes = whole.part.num_classes, first = classes / 3;
  std::vector<CrossEntropyArguments> parts;
  for (const auto& [offset, size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, first}, {first, 0}, {first, classes - first}}) {
    CrossEntropyArguments args = whole;
    args.part.offset = offset;
    args.part.size = size;
    args.logits = whole.logits.narrow(1, offset, size);
    if (whole.has_probabilities()) args.target = whole.target.narrow(1, offset, size);
    if (whole.weight.defined()) args.weight = whole.weight.narrow(0, offset, size);
    parts.push_back(args);
  }
  return parts;
}

// What all ranks know of each row, in float64.
struct RowNumbers {
  at::Tensor max, sum, product, total, target_weight;

  at::Tensor losses() const { return total * sum.log() + (total * max - product); }
};

RowNumbers combined(const CrossEntropyArguments& whole) {
  std::vector<at::Tensor> summaries;
  for (const CrossEntropyArguments& part : parts_of(whole))
    summaries.push_back(cross_entropy_part(part).to(at::kDouble));
  const at::Tensor all = at::stack(summaries), each = all.sum(0);
  RowNumbers rows;
  rows.max = all.select(1, kMax).amax(0);
  rows.sum = ((all.select(1, kMax) - rows.max).exp() * all.select(1, kSum)).sum(0);
  rows.product = each[kProduct];
  rows.total = each.size(0) > kTotal ? each[kTotal] : whole.target.ne(whole.part.ignore_index).to(at::kDouble);
  rows.target_weight = each.size(0) > kTargetWeight ? each[kTargetWeight] : rows.total;
  return rows;
}

double tolerance(c10::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 2e-5; }
// Of the gradient, whose dtype is that of the logits.
double gradient_tolerance(c10::ScalarType dtype) {
  return dtype == at::kHalf ? 2e-3 : dtype == at::kBFloat16 ? 1e-2 : tolerance(dtype);
}

void check_part(const CrossEntropyArguments& whole, int64_t reduction) {
  const auto dtype = whole.logits.scalar_type();
  const bool probabilities = whole.has_probabilities();
  CAPTURE(dtype, whole.part.num_classes, probabilities, whole.weight.defined(), whole.part.label_smoothing, reduction);
  const at::Tensor logits = whole.logits.to(at::kDouble).requires_grad_();
  const auto weight = whole.weight.defined() ? std::optional<at::Tensor>(whole.weight.to(at::kDouble)) : std::nullopt;
  const at::Tensor expected =
      at::cross_entropy_loss(logits, probabilities ? whole.target.to(at::kDouble) : whole.target, weight, reduction,
                             whole.part.ignore_index, whole.part.label_smoothing);
  const at::Tensor seed = at::randn(expected.sizes(), at::kDouble);
  const at::Tensor gradient = torch::autograd::grad({expected}, {logits}, {seed})[0];

  const RowNumbers rows = combined(whole);
  at::Tensor loss = rows.losses(), of_row = seed;
  if (reduction != at::Reduction::None) loss = loss.sum();
  if (reduction == at::Reduction::Mean) {
    const at::Tensor divisor =
        probabilities ? at::full({}, whole.logits.size(0), at::kDouble) : rows.target_weight.sum();
    loss = loss / divisor;
    of_row = seed / divisor;
  }
  CHECK(at::allclose(loss, expected, tolerance(dtype), tolerance(dtype)));
  of_row = of_row.expand_as(rows.total);
  const auto computed = dtype == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> gradients;
  for (const CrossEntropyArguments& part : parts_of(whole)) {
    gradients.push_back(cross_entropy_part_backward(at::stack({of_row * rows.total / rows.sum, -of_row}).to(computed),
                                                    rows.max.to(computed), part));
    CHECK(gradients.back().scalar_type() == dtype);
  }
  const at::Tensor difference = (at::cat(gradients, 1).to(at::kDouble) - gradient).abs();
  CHECK(difference.max().item<double>() <= gradient_tolerance(dtype) * gradient.abs().max().item<double>());
}

}  // namespace

TEST_CASE("exp() in plain arithmetic equals the library's up to rounding") {
  for (double x : {0.0, -1e-9, -0.3465, -0.3466, -1.0, -30.5, -86.0, -700.0}) {
    CHECK(exp_of(x) == Approx(std::exp(x)).epsilon(1e-15));
    if (x > -87) CHECK(exp_of(static_cast<float>(x)) == Approx(std::exp(x)).epsilon(1e-5));
  }
  const at::Tensor x = at::linspace(-80, 0, 10001, at::kFloat);
  const float* values = x.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    REQUIRE(std::abs(exp_of(values[i]) / std::exp(static_cast<double>(values[i])) - 1) < 3e-7);
  CHECK(exp_of(-kInf) == 0);
  CHECK(exp_of(-std::numeric_limits<float>::infinity()) == 0);
  CHECK(exp_of(-1e30f) == 0);
  CHECK(std::isnan(exp_of(std::numeric_limits<double>::quiet_NaN())));
  CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("a target's class is that of the rank that has it") {
  const ClassPart part{4, 3, 10};
  CHECK(own_class(4, part) == 0);
  CHECK(own_class(6, part) == 2);
  for (int64_t other : {3, 7, -1, -100}) CHECK(own_class(other, part) == kNoClass);
  CHECK(own_class(4, {4, 0, 10}) == kNoClass);
  CHECK((is_class(0, part) && is_class(9, part) && !is_class(10, part) && !is_class(-1, part)));
}

TEST_CASE("sums of exponentials are merged relative to the larger maximum, and nothing adds nothing") {
  const ExpSum<double> a{3, 1.5}, b{5, 2}, none;
  const ExpSum<double> both = merged(a, b);
  CHECK(both.max == 5);
  CHECK(both.sum == Approx(1.5 * std::exp(-2.0) + 2));
  for (const auto& alone : {merged(a, none), merged(none, a)}) CHECK((alone.max == 3 && alone.sum == 1.5));
  CHECK((merged(none, none).max == -kInf && merged(none, none).sum == 0));
  CHECK(std::isnan(merged(a, ExpSum<double>{-kInf, std::numeric_limits<double>::quiet_NaN()}).sum));
}

TEST_CASE("losses and gradients of class parts equal ATen's in float64, for every dtype, target and reduction",
          "[kernel]") {
  at::manual_seed(0);
  for (auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t classes : {5, 40, 1030, 3000}) {
      const at::Tensor logits = at::randn({7, classes}).mul(4).to(dtype), weight = at::rand({classes}).to(dtype);
      at::Tensor target = at::randint(classes, {7}, at::kLong);
      target[2] = -100;
      const at::Tensor probabilities = at::rand({7, classes}).to(dtype);
      for (double smoothing : {0.0, 0.1}) {
        for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
          const ClassPart part{0, classes, classes, -100, smoothing};
          check_part({logits, target, {}, part}, reduction);
          check_part({logits, target, weight, part}, reduction);
          check_part({logits, probabilities, {}, part}, reduction);
          check_part({logits, probabilities, weight, part}, reduction);
        }
      }
    }
  }
}

TEST_CASE("logits and probabilities that are not contiguous are read by their strides", "[kernel]") {
  const ClassPart part{0, 30, 30, -100, 0.1};
  check_part({at::randn({30, 5}, at::kDouble).t(), at::randint(30, {5}, at::kLong), {}, part}, at::Reduction::None);
  check_part({at::randn({5, 30}, at::kDouble), at::rand({30, 5}, at::kDouble).t(), {}, part}, at::Reduction::None);
}

TEST_CASE("losses of rows with infinities and nan equal ATen's", "[kernel]") {
  at::Tensor x = at::randn({6, 40}, at::kDouble);
  x[0].slice(0, 0, 20).fill_(-kInf);  // all logits of the first ranks
  x[1].fill_(-kInf);
  x[2][35] = kInf;
  x[3][11] = std::numeric_limits<double>::quiet_NaN();
  x[4].fill_(-kInf)[39] = 1;
  x[5].fill_(1e15);  // the loss is log(40)
  const at::Tensor target = at::full({6}, 39, at::kLong);
  const RowNumbers rows = combined({x, target, {}, {0, 40, 40}});
  CHECK(at::allclose(rows.losses(), at::cross_entropy_loss(x, target, {}, at::Reduction::None), 1e-12, 1e-12,
                     /*equal_nan=*/true));
}

TEST_CASE("ignored rows have a sum of 1, other summaries and gradients of 0, whatever their logits are", "[kernel]") {
  const at::Tensor logits = at::full({2, 6}, kInf, at::kDouble), target = at::full({2}, 4, at::kLong);
  const CrossEntropyArguments args{logits, target, at::ones({6}, at::kDouble), {0, 6, 6, 4, 0.1}};
  const at::Tensor summaries = cross_entropy_part(args);
  CHECK(summaries[kSum].eq(1).all().item<bool>());
  CHECK(summaries.sum().item<double>() == 2);
  const at::Tensor max = at::ones({2}, at::kDouble);
  for (const double given : {1.0, std::numeric_limits<double>::quiet_NaN()}) {
    const at::Tensor grad = at::full({2, 2}, given, at::kDouble);
    CHECK(cross_entropy_part_backward(grad, max, args).eq(0).all().item<bool>());
    CHECK(differentiable_cross_entropy_part_backward(grad, max, args).eq(0).all().item<bool>());
  }
}

TEST_CASE("the gradient may be written over the logits", "[kernel]") {
  const at::Tensor target = at::randint(3000, {4}, at::kLong), weight, grad = at::randn({2, 4});
  for (double smoothing : {0.0, 0.1}) {
    const at::Tensor logits = at::randn({4, 2000});
    const ClassPart part{500, 2000, 3000, -100, smoothing};
    const at::Tensor max = logits.amax(1);
    const at::Tensor expected = cross_entropy_part_backward(grad, max, {logits, target, weight, part});
    cpu::cross_entropy_part_backward(grad, max, {logits, target, weight, part}, logits);
    CHECK(logits.equal(expected));
  }
}

TEST_CASE("summaries and gradients are bitwise equal for any number of threads", "[kernel]") {
  const at::Tensor logits = at::randn({300, 700}), target = at::randint(700, {300}, at::kLong);
  const CrossEntropyArguments args{logits, target, {}, {0, 700, 700, -100, 0.1}};
  const at::Tensor grad = at::randn({2, 300});
  const testing::IntraOpThreads one_thread(1);
  const at::Tensor one = cross_entropy_part(args), gradient = cross_entropy_part_backward(grad, one[0], args);
  const testing::IntraOpThreads four(4);
  CHECK(cross_entropy_part(args).equal(one));
  CHECK(cross_entropy_part_backward(grad, one[0], args).equal(gradient));
}

TEST_CASE("targets that are no class are index errors, forward and backward") {
  const at::Tensor logits = at::rand({2, 3});
  for (int64_t wrong : {-1, 10, 1000}) {
    const CrossEntropyArguments args{logits, at::tensor({int64_t{4}, wrong}, at::kLong), {}, {4, 3, 10}};
    CHECK_THROWS_AS(cross_entropy_part(args), c10::IndexError);
    CHECK_THROWS_WITH(cross_entropy_part_backward(at::ones({2, 2}), at::zeros({2}), args),
                      Contains("Target " + std::to_string(wrong) + " is out of bounds."));
  }
}

TEST_CASE("dtensor::cross_entropy_part has first and second derivatives that equal numerical ones") {
  const at::Tensor target = at::tensor({1, 7, -100}, at::kLong), weight = at::rand({5}, at::kDouble);
  const at::Tensor factors = at::randn({2, 3}, at::kDouble), direction = at::randn({3, 5}, at::kDouble);
  const auto value = [&](const at::Tensor& logits) {
    const at::Tensor summaries = summaries_op({logits, target, weight, {4, 5, 12, -100, 0.2}});
    return ((summaries[kMax] + summaries[kSum].log()) * factors[0] + summaries[kProduct] * factors[1]).sum();
  };
  const auto gradient_of = [&](const at::Tensor& logits, bool create_graph) {
    return torch::autograd::grad({value(logits)}, {logits}, {}, create_graph, create_graph)[0];
  };
  const at::Tensor logits = at::randn({3, 5}, at::kDouble).requires_grad_();
  const at::Tensor gradient = gradient_of(logits, true);
  CHECK(at::allclose(gradient, gradient_of(logits, false), 1e-12, 1e-12));
  const at::Tensor second = torch::autograd::grad({(gradient * direction).sum()}, {logits})[0];
  for (int64_t i = 0; i < 15; ++i) {
    constexpr double kStep = 1e-5;
    at::Tensor step = at::zeros({15}, at::kDouble);
    step[i] = kStep;
    const at::Tensor up = (logits.detach() + step.view({3, 5})).requires_grad_(),
                     down = (logits.detach() - step.view({3, 5})).requires_grad_();
    const double difference = (value(up) - value(down)).item<double>() / (2 * kStep);
    CHECK(gradient.view(-1)[i].item<double>() == Approx(difference).epsilon(1e-5).margin(1e-8));
    const at::Tensor change = (gradient_of(up, false) - gradient_of(down, false)) * direction;
    CHECK(second.view(-1)[i].item<double>() ==
          Approx(change.sum().item<double>() / (2 * kStep)).epsilon(1e-5).margin(1e-8));
  }
}

TEST_CASE("dtensor::cross_entropy_part on tensors without data has the sizes of the result") {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor logits = at::empty({3, 5}, meta.dtype(at::kBFloat16)),
                   target = at::empty({3}, meta.dtype(at::kLong));
  const at::Tensor out = summaries_op({logits, target, {}, {0, 5, 10}});
  CHECK((out.is_meta() && out.sizes() == at::IntArrayRef({3, 3}) && out.scalar_type() == at::kFloat));
  const at::Tensor weighted = summaries_op({logits, target, at::empty({5}, meta), {0, 5, 10, -100, 0.1}});
  CHECK(weighted.sizes() == at::IntArrayRef({5, 3}));
}

TEST_CASE("dtensor::cross_entropy_part says which argument is wrong") {
  const at::Tensor logits = at::rand({1, 4}), target = at::tensor({1}, at::kLong);
  CHECK_THROWS_WITH(summaries_op({logits, target, {}, {8, 4, 10}}),
                    Contains("classes [8, 12) are not all within the 10 classes"));
  CHECK_THROWS_WITH(summaries_op({logits[0], target, {}, {0, 4, 10}}), Contains("'logits' must be [rows, classes"));
  CHECK_THROWS_WITH(summaries_op({logits, at::tensor({1, 2}, at::kLong), {}, {0, 4, 10}}),
                    Contains("'target' must have one int64 per row"));
  CHECK_THROWS_WITH(summaries_op({logits, target, at::rand({3}), {0, 4, 10}}),
                    Contains("one floating-point number per class of this rank, 4"));
  CHECK_THROWS_WITH(summaries_op({logits, target, {}, {0, 4, 10, -100, 1.5}}), Contains("'label_smoothing'"));
  CHECK_THROWS_WITH(summaries_op({logits.to(at::kLong), target, {}, {0, 4, 10}}),
                    Contains("must be float, double, half or bfloat16"));
}
