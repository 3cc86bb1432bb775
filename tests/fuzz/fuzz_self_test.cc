// The fuzzer itself: it finds planted bugs, shrinks them, and prints whole programs.
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <cmath>

#include "dtensor/from_local.h"
#include "dtensor/tensor/representation.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "tests/fuzz/generate.h"
#include "tests/fuzz/print_cpp.h"
#include "tests/fuzz/shrink.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::fuzz {
namespace {

at::Tensor square(const at::Tensor& self) { return self * self; }
at::Tensor floor_of(const at::Tensor& self) { return self.floor(); }
at::Tensor sqrt_of(const at::Tensor& self) { return self.sqrt(); }

// As vectorized loops may differ from their scalar tails.
at::Tensor where_it_lies(const at::Tensor& self) { return self.numel() % 4 == 0 ? self + 1 : self + 2; }
at::Tensor wrong_gradient(const at::Tensor& self) { return self * (is_dtensor(self) ? self.detach() : self); }
at::Tensor refuse(const at::Tensor&) { TORCH_CHECK(false, "refused for no reason"); }

// Operators whose rules wrongly square, floor or take roots addend by addend, and one without a rule.
TORCH_LIBRARY(fuzz_test, m) {
  m.def("floor_of_sum(Tensor self) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("square_of_sum(Tensor self) -> Tensor", {at::Tag::pointwise});
  m.def("sqrt_of_sum(Tensor self) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("without_rule(Tensor self) -> Tensor");
  m.def("where_it_lies(Tensor self) -> Tensor", {at::Tag::pointwise});
  m.def("in_other_memory(Tensor self) -> Tensor");
  m.def("refused(Tensor self) -> Tensor");
  m.def("wrong_gradient(Tensor self) -> Tensor", wrong_gradient);
}
TORCH_LIBRARY_IMPL(fuzz_test, CompositeExplicitAutograd, m) {
  m.impl("square_of_sum", square);
  m.impl("floor_of_sum", floor_of);
  m.impl("sqrt_of_sum", sqrt_of);
  m.impl("without_rule", square);
  m.impl("where_it_lies", where_it_lies);
  m.impl("in_other_memory", [](const at::Tensor& self) { return self.clone(); });
  m.impl("refused", square);
}
TORCH_LIBRARY_IMPL(fuzz_test, Fake, m) { m.impl("refused", refuse); }

void plant_wrong_rule() {
  OpRule rule;
  rule.per_dim = [](const OpCall&, int64_t) {
    return std::vector<DimStrategy>{
        {{Partial()}, {Partial()}}, {{Replicate()}, {Replicate()}}, {{Shard(0)}, {Shard(0)}}};
  };
  rule.metas = [](const OpCall& call) {
    OutputMetas metas;
    metas.tensors.push_back(call.inputs[0]->meta());
    metas.counts = {-1};
    return metas;
  };
  RuleRegistry::instance().add("fuzz_test::square_of_sum", rule);
  RuleRegistry::instance().add("fuzz_test::floor_of_sum", rule);
  RuleRegistry::instance().add("fuzz_test::sqrt_of_sum", rule);
  rule.metas = [](const OpCall& call) {
    TensorMeta meta = call.inputs[0]->meta();
    meta.strides = row_major_strides(meta.sizes);
    return OutputMetas{{meta}, {-1}, {}};
  };
  RuleRegistry::instance().add("fuzz_test::in_other_memory", rule);
}

Leaf leaf(int id, std::vector<int64_t> sizes, Placements placements) {
  Leaf l;
  l.id = id;
  l.sizes = std::move(sizes);
  int64_t count = 1;
  for (int64_t n : l.sizes) count *= n;
  for (int64_t k = 0; k < count; ++k) l.values.push_back(static_cast<double>(k) * 0.25 - 2);
  l.placements = std::move(placements);
  l.addends = 7;
  return l;
}

// A long program with one call of `op` on a Partial tensor.
Program long_program(const std::string& op) {
  Program p;
  p.mesh = {2, 3};
  p.order = 2;
  p.leaves = {leaf(0, {5, 4}, {Shard(0), Partial()}), leaf(1, {5, 4}, {Replicate(), Shard(1)}),
              leaf(2, {4}, {Partial(), Partial()})};
  p.leaves[1].requires_grad = true;
  p.steps = {{"aten::mul.Scalar", {TensorRef{0}, int64_t{3}}, 1000, {}},
             {"aten::transpose.int", {TensorRef{1}, int64_t{0}, int64_t{1}}, 1032, {}},
             {"aten::add.Tensor", {TensorRef{1000}, TensorRef{2}, int64_t{1}}, 1064, {}},
             {"aten::sin", {TensorRef{1032}}, 1096, {}},
             {op, {TensorRef{1000}}, 1128, {}},
             {"aten::exp", {TensorRef{1096}}, 1160, {}}};
  return p;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("fuzz: a wrong rule is found and shrunk") {
  plant_wrong_rule();
  const Program program = long_program("fuzz_test::square_of_sum");
  const Outcome outcome = run(program);
  REQUIRE(outcome.kind == Kind::kWrong);
  CHECK(outcome.op == "fuzz_test::square_of_sum");
  CHECK(outcome.step == 4);
  const Shrunk small = shrink(program, outcome, 20);
  CHECK(small.program.steps.size() == 1);
  CHECK(small.program.leaves.size() == 1);
  CHECK(small.program.leaves[0].values.size() == 1);
  CHECK(small.program.mesh == std::vector<int64_t>{2});
  CHECK(small.program.order == 0);
  CHECK(same_finding(small.outcome, outcome));
  CHECK(run(small.program).message == small.outcome.message);
}

TEST_CASE("fuzz: an operator without a rule is a documented refusal") {
  CHECK(run(long_program("fuzz_test::without_rule")).kind == Kind::kDocumented);
}

TEST_CASE("fuzz: a correct program passes, with gradients of both orders") {
  Program program = long_program("aten::cos");
  const Outcome outcome = run(program);
  CHECK(outcome.kind == Kind::kPass);
  CHECK(outcome.compared > 20);
}

// One call of each operator in a row, on one leaf.
Program row(Leaf first, const std::vector<Step>& steps, std::vector<int64_t> mesh = {2}) {
  Program p;
  p.mesh = std::move(mesh);
  p.leaves = {std::move(first)};
  p.steps = steps;
  return p;
}

TEST_CASE("fuzz: exact addends excuse no difference") {
  plant_wrong_rule();
  const auto program = row(leaf(0, {5, 4}, {Partial()}), {{"fuzz_test::floor_of_sum", {TensorRef{0}}, 1000, {}}});
  CHECK(run(program).kind == Kind::kWrong);
}

TEST_CASE("fuzz: averages of a group are exact in any order of mesh dims") {
  for (const Placements& placements : std::vector<Placements>{{Partial(ReduceOp::kAvg), Partial()},
                                                              {Partial(), Partial(ReduceOp::kAvg)},
                                                              {Partial(ReduceOp::kAvg), Partial(ReduceOp::kAvg)}}) {
    const auto program = row(leaf(0, {5, 4}, placements), {{"aten::floor", {TensorRef{0}}, 1000, {}}}, {3, 3});
    CHECK(run(program).kind == Kind::kPass);
  }
}

TEST_CASE("fuzz: every dtype has every allowed kind of Partial") {
  for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
    for (const auto dtype : {c10::ScalarType::ComplexHalf, c10::ScalarType::Half, c10::ScalarType::ComplexDouble}) {
      Leaf x = leaf(0, {2}, {Partial(op)});
      x.dtype = dtype;
      x.values.assign(c10::isComplexType(dtype) ? 4 : 2, 0.5);
      CHECK(run(row(x, {{"aten::alias", {TensorRef{0}}, 1000, {}}})).kind == Kind::kPass);
    }
  }
}

TEST_CASE("fuzz: the sign of a zero sum of addends is not a finding") {
  Leaf zeros = leaf(0, {2}, {Partial()});
  zeros.values = {0, 0};
  auto program = row(zeros, {{"aten::mul_.Scalar", {TensorRef{0}, int64_t{-1}}, 1000, {}},
                             {"aten::signbit", {TensorRef{0}}, 1032, {}}});
  CHECK(run(program).kind == Kind::kUnstable);
  program.leaves[0].placements = {Replicate()};
  CHECK(run(program).kind == Kind::kPass);
  // Also if written through a conjugate, and viewed as bits.
  zeros.dtype = c10::ScalarType::ComplexDouble;
  zeros.values = {1, 2, 3, 4};
  program = row(zeros, {{"aten::conj", {TensorRef{0}}, 1000, {}},
                        {"aten::view.dtype", {TensorRef{0}, c10::ScalarType::Long}, 1032, {}},
                        {"aten::zero_", {TensorRef{1000}}, 1064, {}}});
  CHECK(run(program).kind == Kind::kUnstable);
}

TEST_CASE("fuzz: addends that cancel may leave their rounding, not more") {
  Leaf cancelling = leaf(0, {6}, {Partial()});
  cancelling.values = {0, 0, 0, 0, 0, 0};
  const auto scaled = [&](const char* op) {
    return row(cancelling, {{"aten::mul.Scalar", {TensorRef{0}, 0.3}, 1000, {}}, {op, {TensorRef{1000}}, 1032, {}}});
  };
  CHECK(run(scaled("aten::sign")).kind != Kind::kWrong);
  plant_wrong_rule();
  CHECK(run(scaled("fuzz_test::square_of_sum")).kind == Kind::kWrong);
}

TEST_CASE("fuzz: NaN of addends next to an infinity is documented, another NaN is a finding") {
  Leaf infinite = leaf(1, {1}, {Replicate()});  // a product with more numbers would reduce the addends first
  for (double& v : infinite.values) v = INFINITY;
  auto program = row(leaf(0, {5, 4}, {Partial()}), {{"aten::mul.Tensor", {TensorRef{0}, TensorRef{1}}, 1000, {}}});
  program.leaves.push_back(infinite);
  CHECK(run(program).kind == Kind::kDocumented);
  // The root of a negative number, without infinities.
  plant_wrong_rule();
  program = row(leaf(0, {5, 4}, {Partial()}), {{"fuzz_test::sqrt_of_sum", {TensorRef{0}}, 1000, {}}});
  for (double& v : program.leaves[0].values) v = 0;
  CHECK(run(program).kind == Kind::kWrong);
}

TEST_CASE("fuzz: calls with results undefined in plain LibTorch are not steps") {
  Leaf windows = leaf(0, {4}, {Replicate()});
  const Step unfold = {"aten::unfold", {TensorRef{0}, int64_t{0}, int64_t{2}, int64_t{1}}, 1000, {}};
  CHECK(run(row(windows, {unfold, {"aten::add_.Scalar", {TensorRef{1000}, int64_t{1}, int64_t{1}}, 1032, {}}})).kind ==
        Kind::kInvalid);
  CHECK(run(row(windows, {unfold, {"aten::zero_", {TensorRef{1000}}, 1032, {}}})).kind == Kind::kPass);
  const Step polynomial = {"aten::special_laguerre_polynomial_l.n_scalar", {TensorRef{0}, int64_t{2}}, 1000, {}};
  CHECK(run(row(windows, {polynomial})).kind == Kind::kPass);
  windows.values[1] = NAN;
  CHECK(run(row(windows, {polynomial})).kind == Kind::kInvalid);
  const Step bytes = {"aten::view.dtype", {TensorRef{0}, c10::ScalarType::Bool}, 1000, {}};
  CHECK(run(row(windows, {bytes})).kind == Kind::kInvalid);
  CHECK(run(row(windows, {{"aten::view.dtype", {TensorRef{0}, c10::ScalarType::Long}, 1000, {}}})).kind == Kind::kPass);
}

TEST_CASE("fuzz: addends of wide unsigned integers can be made") {
  for (const auto dtype : {c10::ScalarType::UInt16, c10::ScalarType::UInt32, c10::ScalarType::UInt64}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
      Leaf x = leaf(0, {3}, {Partial(op)});
      x.dtype = dtype;
      x.values = {0, 3, 7};
      const Outcome outcome =
          run(row(x, {{"aten::expand", {TensorRef{0}, std::vector<int64_t>{2, 3}, false}, 1000, {}}}));
      INFO(c10::toString(dtype) << " " << to_string(Partial(op)) << ": " << outcome.message);
      CHECK((outcome.kind == Kind::kPass || outcome.kind == Kind::kDocumented));
    }
  }
}

TEST_CASE("fuzz: a clone with the gaps of a conjugated tensor is not a step, other clones are") {
  Leaf numbers = leaf(0, {4}, {Replicate()});
  numbers.values.resize(8);  // real and imaginary parts
  numbers.dtype = c10::ScalarType::ComplexDouble;
  for (const char* bit : {"aten::conj", "aten::alias"}) {
    for (const int64_t step : {1, 2}) {
      const Outcome outcome = run(
          row(numbers, {{bit, {TensorRef{0}}, 1000, {}},
                        {"aten::slice.Tensor", {TensorRef{1000}, int64_t{0}, int64_t{0}, int64_t{4}, step}, 1032, {}},
                        {"aten::copy", {TensorRef{1032}, TensorRef{1032}, false}, 1064, {}}}));
      INFO(bit << " " << step << ": " << outcome.message);
      const bool excused = std::string_view(bit) == "aten::conj" && step == 2;
      CHECK(outcome.kind == (excused ? Kind::kInvalid : Kind::kPass));
    }
  }
}

TEST_CASE("fuzz: an out= without elements accepts only what the form without out= accepts") {
  for (const auto dtype : {c10::ScalarType::Long, c10::ScalarType::Double}) {
    for (const int64_t rows : {0, 1}) {
      Leaf self = leaf(0, {rows, 2}, {Replicate()});
      self.dtype = dtype;
      auto program =
          row(self, {{"aten::huber_loss.out", {TensorRef{0}, TensorRef{1}, int64_t{0}, 1., TensorRef{2}}, 1000, {}}});
      program.leaves.push_back(leaf(1, {rows, 2}, {Replicate()}));
      program.leaves.push_back(leaf(2, {rows, 2}, {Replicate()}));
      const bool contradiction = rows == 0 && dtype == c10::ScalarType::Long;
      const Outcome outcome = run(program);
      INFO(dtype << ", " << rows << " rows: " << outcome.message);
      CHECK(outcome.kind == (contradiction ? Kind::kInvalid : Kind::kPass));
    }
  }
}

TEST_CASE("fuzz: differences by an element's position in memory are not findings") {
  plant_wrong_rule();
  const auto program = row(leaf(0, {2, 4}, {Shard(0)}), {{"fuzz_test::where_it_lies", {TensorRef{0}}, 1000, {}}});
  CHECK(run(program).kind == Kind::kPass);  // 4 on each rank
  auto uneven = program;
  uneven.leaves[0] = leaf(0, {4, 3}, {Shard(0)});
  CHECK(run(uneven).kind == Kind::kUnstable);
  // ATen's own: the sign of softshrink() of -0.
  Leaf zeros = leaf(0, {2, 67}, {Shard(0)});  // whose parts end within a vector where the whole does not
  for (double& v : zeros.values) v = -0.;
  auto shrunk = row(zeros, {{"aten::softshrink.out", {TensorRef{0}, 0.5, TensorRef{1}}, 1000, {}},
                            {"aten::signbit", {TensorRef{1}}, 1032, {}}});
  shrunk.leaves.push_back(leaf(1, {2, 67}, {Shard(0)}));
  CHECK(run(shrunk).kind == Kind::kUnstable);
  // An elementwise operator whose rule is wrong is still found.
  uneven.leaves[0].placements = {Partial()};
  uneven.steps[0].op = "fuzz_test::square_of_sum";
  CHECK(run(uneven).kind == Kind::kWrong);
}

TEST_CASE("fuzz: products that overflow in between are not findings") {
  Leaf x = leaf(0, {4}, {Shard(0)});
  const Step product = {"aten::prod", {TensorRef{0}, std::monostate{}}, 1000, {}};
  x.values = {1e200, 0, 1e200, 1e200};  // the second rank has an infinity
  CHECK(run(row(x, {product})).kind == Kind::kUnstable);
  const Step along = {"aten::prod.dim_int", {TensorRef{0}, int64_t{0}, true, std::monostate{}}, 1032, {}};
  CHECK(run(row(x, {along})).kind == Kind::kUnstable);
  x.values = {3, 0, 2, 5};
  CHECK(run(row(x, {product, along})).kind == Kind::kPass);
}

TEST_CASE("fuzz: whether rounding cancels is not a finding") {
  Leaf x = leaf(0, {11}, {Shard(0)});
  const Step correlation = {"aten::corrcoef", {TensorRef{0}}, 1000, {}};
  int unstable = 0;  // for some, the mean of eleven differs within plain LibTorch, or by parts
  for (int tenths = 1; tenths <= 19; ++tenths) {
    x.values.assign(11, tenths / 10.0);
    const Kind kind = run(row(x, {correlation})).kind;
    CHECK((kind == Kind::kPass || kind == Kind::kUnstable));
    unstable += kind == Kind::kUnstable;
  }
  CHECK(unstable > 0);
  x.values = {0.1, 0.2, 0.4, 0.8, 0.3, 0.5, 0.1, 0.9, 0.7, 0.2, 0.6};
  CHECK(run(row(x, {correlation})).kind == Kind::kPass);
  // A wrong rule is still found.
  plant_wrong_rule();
  x.placements = {Partial()};
  CHECK(run(row(x, {{"fuzz_test::square_of_sum", {TensorRef{0}}, 1000, {}}})).kind == Kind::kWrong);
}

TEST_CASE("fuzz: negative repetition counts are not steps") {
  Leaf counts = leaf(0, {2}, {Replicate()});
  counts.dtype = c10::ScalarType::Long;
  counts.values = {500, -498};  // LibTorch writes 500 numbers to memory of two, and then throws
  const Step repeated = {"aten::repeat_interleave.Tensor", {TensorRef{0}, std::monostate{}}, 1000, {}};
  CHECK(run(row(counts, {repeated})).kind == Kind::kInvalid);
  counts.values = {2, 1};
  CHECK(run(row(counts, {repeated})).kind == Kind::kPass);
}

TEST_CASE("fuzz: which half of an infinite complex number is NaN is not a finding") {
  Leaf x = leaf(0, {2}, {Replicate()}), weight = leaf(1, {4, 2}, {Replicate()}), bias = leaf(2, {4}, {Shard(0)});
  for (Leaf* l : {&x, &weight, &bias}) {
    l->dtype = c10::ScalarType::ComplexDouble;
    l->values.resize(2 * l->values.size(), 0.5);
  }
  weight.values.back() = INFINITY;
  auto program = row(x, {{"aten::linear", {TensorRef{0}, TensorRef{1}, TensorRef{2}}, 1000, {}},
                         {"aten::view_as_real", {TensorRef{1000}}, 1032, {}}});
  program.leaves.insert(program.leaves.end(), {weight, bias});
  CHECK(run(program).kind != Kind::kWrong);
  // Faults in finite ones are found.
  plant_wrong_rule();
  x.placements = {Partial()};
  CHECK(run(row(x, {{"fuzz_test::square_of_sum", {TensorRef{0}}, 1000, {}},
                    {"aten::view_as_real", {TensorRef{1000}}, 1032, {}}}))
            .kind == Kind::kWrong);
}

TEST_CASE("fuzz: lists of tensors whose strides are ignored are not steps") {
  const auto joined = [](int64_t size) {
    return run(
        row(leaf(0, {3}, {Replicate()}), {{"aten::unfold", {TensorRef{0}, int64_t{0}, size, int64_t{1}}, 1000, {}},
                                          {"aten::_stack", {TensorRefs{{1000, 1000}}, int64_t{0}}, 1032, {}}}));
  };
  CHECK(joined(3).kind == Kind::kInvalid);  // one row, with the stride of its elements
}

TEST_CASE("fuzz: rounding within a gradient formula is not a finding, a wrong formula is") {
  Leaf zero = leaf(0, {1}, {Partial(), Partial()});
  zero.values = {0};
  zero.requires_grad = true;
  auto program =
      row(zero, {{"aten::log2", {TensorRef{0}}, 1000, {}}, {"aten::round_", {TensorRef{1000}}, 1032, {}}}, {2, 3});
  program.order = 1;
  for (uint64_t addends = 0; addends < 20; ++addends) {
    program.leaves[0].addends = addends;
    CHECK(run(program).kind != Kind::kWrong);
  }
  for (const Placement& p : {Placement(Partial()), Placement(Shard(0)), Placement(Replicate())}) {
    Leaf x = leaf(0, {5, 4}, {p});
    x.requires_grad = true;
    program = row(x, {{"fuzz_test::wrong_gradient", {TensorRef{0}}, 1000, {}}});
    program.order = 2;
    const Outcome outcome = run(program);
    CHECK(outcome.kind == Kind::kWrong);
    CHECK(outcome.order == 1);
  }
}

TEST_CASE("fuzz: errors due to rounding are not findings, errors of the library are") {
  Leaf ones = leaf(0, {3}, {Partial()});
  ones.values = {1, 1, 1};
  auto program =
      row(ones,
          {{"aten::mul.Scalar", {TensorRef{0}, 0.1}, 1000, {}},
           {"aten::mul.Scalar", {TensorRef{1000}, 10.}, 1032, {}},
           {"aten::binary_cross_entropy", {TensorRef{1032}, TensorRef{1032}, std::monostate{}, int64_t{1}}, 1064, {}}});
  for (uint64_t addends = 0; addends < 20; ++addends) {
    program.leaves[0].addends = addends;
    const Outcome outcome = run(program);
    INFO(outcome.message);
    CHECK(!is_finding(outcome.kind));
  }
  CHECK(run(row(ones, {{"fuzz_test::refused", {TensorRef{0}}, 1000, {}}})).kind == Kind::kRefused);
}

TEST_CASE("fuzz: sums of integers wrap, and wrong ones are found") {
  Leaf large = leaf(0, {4}, {Shard(0)});
  large.dtype = c10::ScalarType::Long;
  large.values = {0x1p62, 0x1p62, 0x1p62, 3};
  CHECK(run(row(large, {{"aten::sum", {TensorRef{0}, std::monostate{}}, 1000, {}}})).kind == Kind::kPass);
  plant_wrong_rule();
  Leaf small = leaf(0, {4}, {Partial()});
  small.dtype = c10::ScalarType::Long;
  small.values = {1, 2, 3, 4};
  CHECK(run(row(small, {{"fuzz_test::square_of_sum", {TensorRef{0}}, 1000, {}}})).kind == Kind::kWrong);
  small.dtype = c10::ScalarType::BFloat16;
  CHECK(run(row(small, {{"fuzz_test::square_of_sum", {TensorRef{0}}, 1000, {}}})).kind == Kind::kWrong);
}

TEST_CASE("fuzz: results with other strides are found") {
  plant_wrong_rule();
  const auto program =
      row(leaf(0, {2, 3}, {Replicate()}), {{"aten::transpose.int", {TensorRef{0}, int64_t{0}, int64_t{1}}, 1000, {}},
                                           {"fuzz_test::in_other_memory", {TensorRef{1000}}, 1032, {}}});
  const Outcome outcome = run(program);
  CHECK(outcome.kind == Kind::kWrong);
  CHECK(contains(outcome.message, "has strides"));
}

TEST_CASE("fuzz: calls that plain LibTorch rejects are not findings") {
  Program program = long_program("aten::cos");
  program.steps.push_back({"aten::mm", {TensorRef{0}, TensorRef{1}}, 1192, {}});
  CHECK(run(program).kind == Kind::kInvalid);
}

TEST_CASE("fuzz: a view that loses writes is found") {
  // clone() registered as a view: writes to it do not reach its base.
  const auto lost = [](const at::Tensor& t) { return t.clone(); };
  static bool planted = false;
  if (!planted) {
    planted = true;
    static torch::Library library(torch::Library::FRAGMENT, "fuzz_test", std::nullopt, __FILE__, __LINE__);
    library.def("view_that_copies(Tensor(a) self) -> Tensor(a)");
    library.impl("view_that_copies",
                 torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& t) { return t.view(t.sizes()); }));
    library.impl("view_that_copies", torch::dispatch(c10::DispatchKey::Fake, lost));
  }
  Program program = long_program("fuzz_test::view_that_copies");
  program.steps.push_back({"aten::mul_.Scalar", {TensorRef{1128}, int64_t{5}}, 1192, {}});
  program.order = 0;
  const Outcome outcome = run(program);
  REQUIRE(outcome.kind == Kind::kWrong);
  const Shrunk small = shrink(program, outcome, 20);
  CHECK(small.program.steps.size() == 2);
}

TEST_CASE("fuzz: equal seeds give equal programs, others differ") {
  for (uint64_t index = 0; index < 20; ++index) CHECK(to_string(generate(5, index)) == to_string(generate(5, index)));
  CHECK(to_string(generate(5, 0)) + to_string(generate(5, 1)) != to_string(generate(6, 0)) + to_string(generate(6, 1)));
}

TEST_CASE("fuzz: printed programs are complete") {
  plant_wrong_rule();
  Program program = long_program("fuzz_test::square_of_sum");
  program.leaves[0].placements[0] = StridedShard(1, 3);
  const Outcome outcome = run(program);
  const std::string text = print_cpp(program, outcome);
  CHECK(!contains(text, "@"));
  for (const char* part :
       {"#include <torch/torch.h>", "#include \"dtensor/dtensor.h\"", "int main()", "World::local(6), {2, 3}",
        "StridedShard(1, 3)", "Partial()", "from_local({", "at::_ops::transpose_int::call(t1, int64_t{0}, int64_t{1})",
        "at::_ops::mul_Scalar::call(t0, at::Scalar(int64_t{3}))", "order <= 2"}) {
    INFO(part);
    CHECK(contains(text, part));
  }
}

}  // namespace
}  // namespace dtensor::fuzz
