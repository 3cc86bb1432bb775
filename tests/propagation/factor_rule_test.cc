#include "propagation/factor_rule.h"

#include <ATen/ATen.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

const DeviceMesh& mesh4() {
  static const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  return mesh;
}

SpecPtr spec4(Shape sizes, const char* layout = "R", c10::ScalarType dtype = at::kFloat) {
  return Spec::get(mesh4(), parse_placements(layout).value(), sizes, dtype);
}

std::string join(const Placements& placements) {
  return absl::StrJoin(placements, ",", [](std::string* out, const Placement& p) { out->append(to_string(p)); });
}

std::string print(const std::vector<DimStrategy>& list) {
  return absl::StrJoin(list, "  ", [](std::string* out, const DimStrategy& s) {
    absl::StrAppend(out, join(s.inputs), "->", join(s.outputs));
  });
}

std::string einsum_strategies(const std::string& op, const std::vector<SpecPtr>& specs, const char* equation,
                              bool linear = true, int64_t mesh_dim = -1) {
  OpCall call = OpCall::make(op, specs);
  return print(strategies(einsum(call, equation, linear), call, mesh_dim));
}

TEST_CASE("strategies of a matrix product") {
  auto a = spec4({8, 6}), b = spec4({6, 4});
  CHECK(einsum_strategies("aten::mm", {a, b}, "mk,kn->mn") ==
        "R,R->R  S(0),R->S(0)  R,S(1)->S(1)  S(1),S(0)->P(sum)  "
        "P(sum),R->P(sum)  R,P(sum)->P(sum)  P(avg),R->P(avg)  R,P(avg)->P(avg)");
  CHECK(einsum_strategies("aten::mm", {a, b}, "mk,kn->mn", /*linear=*/false) == "R,R->R  S(0),R->S(0)  R,S(1)->S(1)");
  CHECK(einsum_strategies("aten::mm", {a, b}, "mK,Kn->mn", /*linear=*/false) == "R,R->R  S(0),R->S(0)  R,S(1)->S(1)");
  CHECK(einsum_strategies("aten::bmm", {spec4({2, 8, 6}), spec4({2, 6, 4})}, "bmk,bkn->bmn") ==
        "R,R->R  S(0),S(0)->S(0)  S(1),R->S(1)  R,S(2)->S(2)  S(2),S(1)->P(sum)  "
        "P(sum),R->P(sum)  R,P(sum)->P(sum)  P(avg),R->P(avg)  R,P(avg)->P(avg)");
}

TEST_CASE("a sum over no elements is whole on every rank, and a sum beside it is not") {
  CHECK(einsum_strategies("aten::mm", {spec4({8, 0}), spec4({0, 4})}, "mk,kn->mn") ==
        "R,R->R  S(0),R->S(0)  R,S(1)->S(1)  S(1),S(0)->R  "
        "P(sum),R->P(sum)  R,P(sum)->P(sum)  P(avg),R->P(avg)  R,P(avg)->P(avg)");
  // Gradients of a weight and a bias: the second result sums the rows of the first input, whatever the second has.
  CHECK(einsum_strategies("aten::mm", {spec4({8, 3}), spec4({8, 0})}, "nm,nk->mk,m") ==
        "R,R->R,R  S(1),R->S(0),S(0)  R,S(1)->S(1),R  S(0),S(0)->P(sum),P(sum)  "
        "P(sum),R->P(sum),P(sum)  R,P(sum)->P(sum),P(sum)  P(avg),R->P(avg),P(avg)  R,P(avg)->P(avg),P(avg)");
}

TEST_CASE("dims of one letter that differ in size are an error of the whole call") {
  const auto a = spec4({8, 6}), b = spec4({5, 4});
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, b}, "mk,kn->mn"),
                    Contains("aten::mm: dim 1 of 'self' and dim 0 of 'mat2' should have the same size, not 6 and 5, by "
                             "the rule \"mk,kn->mn\", in aten::mm("));
}

TEST_CASE("a term without the contracted factor becomes an addend") {
  auto a = spec4({8, 6}), b = spec4({6, 4});
  const std::string partials =
      "P(sum),P(sum),R->P(sum)  P(sum),R,P(sum)->P(sum)  P(avg),P(avg),R->P(avg)  P(avg),R,P(avg)->P(avg)";
  CHECK(einsum_strategies("aten::addmm", {spec4({8, 4}), a, b}, "mn+mk,kn->mn") ==
        "R,R,R->R  S(0),S(0),R->S(0)  S(1),R,S(1)->S(1)  P(sum),S(1),S(0)->P(sum)  " + partials);
  // A bias of fewer dims is aligned at the right; broadcast dims stay whole.
  CHECK(einsum_strategies("aten::addmm", {spec4({4}), a, b}, "mn+mk,kn->mn") ==
        "R,R,R->R  R,S(0),R->S(0)  S(0),R,S(1)->S(1)  P(sum),S(1),S(0)->P(sum)  " + partials);
  CHECK(einsum_strategies("aten::addmm", {spec4({8, 1}), a, b}, "mn+mk,kn->mn") ==
        "R,R,R->R  S(0),S(0),R->S(0)  R,R,S(1)->S(1)  P(sum),S(1),S(0)->P(sum)  " + partials);
  // Without terms it must be replicated, since linearity is not given.
  CHECK(einsum_strategies("aten::addmm", {spec4({4}), a, b}, "mn+mk,kn->mn", false) ==
        "R,R,R->R  R,S(0),R->S(0)  S(0),R,S(1)->S(1)");
}

TEST_CASE("sums and products of tensors that broadcast") {
  auto x = spec4({4, 6}), row = spec4({6}), one = spec4({1, 6});
  CHECK(einsum_strategies("aten::add.Tensor", {x, x}, "...+...->...") ==
        "R,R->R  S(0),S(0)->S(0)  S(1),S(1)->S(1)  P(sum),P(sum)->P(sum)  P(avg),P(avg)->P(avg)");
  CHECK(einsum_strategies("aten::add.Tensor", {x, row}, "...+...->...") ==
        "R,R->R  S(0),R->S(0)  S(1),S(0)->S(1)  P(sum),P(sum)->P(sum)  P(avg),P(avg)->P(avg)");
  CHECK(
      einsum_strategies("aten::mul.Tensor", {x, one}, "...,...->...") ==
      "R,R->R  S(0),R->S(0)  S(1),S(1)->S(1)  P(sum),R->P(sum)  R,P(sum)->P(sum)  P(avg),R->P(avg)  R,P(avg)->P(avg)");
  CHECK(einsum_strategies("aten::mul.Tensor", {spec4({}), x}, "...,...->...", false) ==
        "R,R->R  R,S(0)->S(0)  R,S(1)->S(1)");
  // A size of 1 that all inputs have is a dim like any other.
  CHECK(einsum_strategies("aten::mul.Tensor", {one, one}, "...,...->...", false) ==
        "R,R->R  S(0),S(0)->S(0)  S(1),S(1)->S(1)");
  OpCall call = OpCall::make("aten::mul.Tensor", {x, row});
  CHECK(print(strategies(pointwise(call), call)) == "R,R->R  S(0),R->S(0)  S(1),S(0)->S(1)");
  CHECK(print(strategies(pointwise(call, 2), call)) == "R,R->R,R  S(0),R->S(0),S(0)  S(1),S(0)->S(1),S(1)");
}

TEST_CASE("dims in need_replication are not sharded, and absent inputs take no placement") {
  auto x = spec4({4, 6}), w = spec4({6});
  const char* equation = "...K,K,K->...K,...1,...1";
  CHECK(einsum_strategies("aten::native_layer_norm", {x, w, w}, equation, false) ==
        "R,R,R->R,R,R  S(0),R,R->S(0),S(0),S(0)");
  CHECK(einsum_strategies("aten::native_layer_norm", {x, nullptr, w}, equation, false) ==
        "R,R,R->R,R,R  S(0),R,R->S(0),S(0),S(0)");

  // An absent input is removed from its term, and an empty term is dropped.
  OpCall call = OpCall::make("aten::native_layer_norm", {x, nullptr, x});
  FactorRule rule;
  rule.inputs = {{0, 1}, {}, {0, 1}};
  rule.outputs = {{0, 1}};
  rule.terms = {{0}, {1, 2}};
  CHECK(print(strategies(rule, call)) ==
        "R,R,R->R  S(0),R,S(0)->S(0)  S(1),R,S(1)->S(1)  P(sum),R,P(sum)->P(sum)  P(avg),R,P(avg)->P(avg)");
  rule.terms = {{0}, {1}};
  CHECK(print(strategies(rule, call)) ==
        "R,R,R->R  S(0),R,S(0)->S(0)  S(1),R,S(1)->S(1)  P(sum),R,R->P(sum)  P(avg),R,R->P(avg)");
  rule.terms = {{1}};
  CHECK(print(strategies(rule, call)) == "R,R,R->R  S(0),R,S(0)->S(0)  S(1),R,S(1)->S(1)");
}

TEST_CASE("reductions") {
  OpCall call = OpCall::make("aten::sum.dim_IntList", {spec4({4, 6})});
  auto reduce = [&](std::vector<int64_t> dims, bool keepdim, std::optional<ReduceOp> op, int num_outputs = 1) {
    return print(strategies(reduction(call, 0, dims, keepdim, op, num_outputs), call));
  };
  CHECK(reduce({0}, false, ReduceOp::kSum) == "R->R  S(0)->P(sum)  S(1)->S(0)  P(sum)->P(sum)  P(avg)->P(avg)");
  CHECK(reduce({0}, true, ReduceOp::kSum) == "R->R  S(0)->P(sum)  S(1)->S(1)  P(sum)->P(sum)  P(avg)->P(avg)");
  CHECK(reduce({0, 1}, false, ReduceOp::kAvg) == "R->R  S(0)->P(avg)  S(1)->P(avg)  P(sum)->P(sum)  P(avg)->P(avg)");
  CHECK(reduce({1}, false, ReduceOp::kMax) == "R->R  S(0)->S(0)  S(1)->P(max)  P(max)->P(max)");
  CHECK(reduce({1}, false, std::nullopt, 2) == "R->R,R  S(0)->S(0),S(0)");
}

TEST_CASE("passthroughs follow everything else") {
  OpCall call = OpCall::make("aten::maximum", {spec4({4}), spec4({4})});
  FactorRule rule = pointwise(call);
  rule.passthroughs = {{{0, 1}, ReduceOp::kMax, ReduceOp::kMax}, {{0}, ReduceOp::kMin, ReduceOp::kMax}};
  CHECK(print(strategies(rule, call)) == "R,R->R  S(0),S(0)->S(0)  P(max),P(max)->P(max)  P(min),R->P(max)");
}

TEST_CASE("strided shards and mask partials are tried if an input has them") {
  auto strided = spec4({8, 6}, "_S(0, 2)"), b = spec4({6, 4});
  CHECK(einsum_strategies("aten::mm", {strided, b}, "mk,kn->mn", false) == "R,R->R  S(0),R->S(0)  R,S(1)->S(1)");
  CHECK(einsum_strategies("aten::mm", {strided, b}, "mk,kn->mn", false, 0) ==
        "R,R->R  S(0),R->S(0)  _S(0, 2),R->_S(0, 2)  R,S(1)->S(1)");
  // Wherever the tensor has the dim.
  CHECK(einsum_strategies("aten::add.Tensor", {spec4({2, 8}, "_S(1, 2)"), spec4({8}, "_S(0, 4)")}, "...+...->...",
                          false, 0) ==
        "R,R->R  S(0),R->S(0)  S(1),S(0)->S(1)  _S(1, 2),_S(0, 2)->_S(1, 2)  _S(1, 4),_S(0, 4)->_S(1, 4)");
  // The contracted dim too.
  CHECK_THAT(einsum_strategies("aten::mm", {spec4({8, 6}, "_S(1, 2)"), b}, "mk,kn->mn", true, 0),
             Contains("S(1),S(0)->P(sum)  _S(1, 2),_S(0, 2)->P(sum)"));

  auto masked = spec4({8, 6}, "MaskP(sum, [10, 6], 0)");
  CHECK(einsum_strategies("aten::add.Tensor", {masked, spec4({8, 6})}, "...+...->...", true, 0) ==
        "R,R->R  S(0),S(0)->S(0)  S(1),S(1)->S(1)  P(sum),P(sum)->P(sum)  "
        "MaskP(sum, [10, 6], 0),P(sum)->P(sum)");
}

TEST_CASE("Partials that are no sums are left out where no input has them") {
  const auto x = spec4({8, 6}), averaged = spec4({8, 6}, "P(avg)");
  const std::string splits = "R,R->R  S(0),S(0)->S(0)  S(1),S(1)->S(1)  P(sum),P(sum)->P(sum)";
  CHECK(einsum_strategies("aten::add.Tensor", {x, x}, "...+...->...", true, 0) == splits);
  CHECK(einsum_strategies("aten::add.Tensor", {x, averaged}, "...+...->...", true, 0) ==
        splits + "  P(avg),P(avg)->P(avg)");
  CHECK(einsum_strategies("aten::add.Tensor", {x, x}, "...+...->...", true) == splits + "  P(avg),P(avg)->P(avg)");

  OpCall call = OpCall::make("aten::maximum", {x, spec4({8, 6}, "P(max)")});
  FactorRule rule = pointwise(call);
  rule.passthroughs = {{{0, 1}, ReduceOp::kMax, ReduceOp::kMax}, {{0, 1}, ReduceOp::kMin, ReduceOp::kMin}};
  CHECK(print(strategies(rule, call, 0)) == "R,R->R  S(0),S(0)->S(0)  S(1),S(1)->S(1)  P(max),P(max)->P(max)");
}

TEST_CASE("dims that cannot be split are not") {
  OpCall one = OpCall::make("aten::diagonal", {spec4({4, 4})});
  CHECK(print(strategies(einsum(one, "ii->i", false), one)) == "R->R");
  // A factor that an output lacks without a contraction; one that no input has.
  OpCall two = OpCall::make("aten::mm", {spec4({8, 6}), spec4({6, 4})});
  FactorRule rule;
  rule.inputs = {{0, 1}, {1, 2}};
  rule.outputs = {{0, 2, 3}};
  CHECK(print(strategies(rule, two)) == "R,R->R  S(0),R->S(0)  R,S(1)->S(1)");
  // A max over a factor that a term lacks is not possible.
  rule.contractions = {{1, ReduceOp::kMax}};
  CHECK_THAT(print(strategies(rule, two)), Contains("S(1),S(0)->P(max)"));
  OpCall three = OpCall::make("aten::addmm", {spec4({8, 4}), spec4({8, 6}), spec4({6, 4})});
  rule.inputs = {{0, 2}, {0, 1}, {1, 2}};
  rule.outputs = {{0, 2}};
  rule.terms = {{0}, {1, 2}};
  CHECK_THAT(print(strategies(rule, three)), !Contains("P(max)"));
  // x + x * y: x cannot be Partial and replicated at once, and y alone is not enough.
  rule = pointwise(two);
  rule.inputs = {{0}, {0}};
  rule.outputs = {{0}};
  rule.terms = {{0}, {0, 1}};
  CHECK(print(strategies(rule, two)) == "R,R->R  S(0),S(0)->S(0)  P(sum),R->P(sum)  P(avg),R->P(avg)");
}

TEST_CASE("errors of rules name operator and argument") {
  auto a = spec4({8, 6}), b = spec4({2, 6, 4});
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, b}, "mk,kn->mn"),
                    Contains("aten::mm: argument 'mat2' has 3 dims, the rule \"mk,kn->mn\" asks for 2"));
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, spec4({6})}, "mk,kn->mn"),
                    Contains("argument 'mat2' has 1 dims"));
  CHECK_THROWS_WITH(einsum_strategies("aten::native_layer_norm", {spec4({}), a, a}, "...K,...,...->..."),
                    Contains("argument 'input' has 0 dims") && Contains("asks for 1 or more"));
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, a}, "mk->m"),
                    Contains("aten::mm: the rule \"mk->m\" has 1 inputs, the call 2"));
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, a}, "mk,kn"), Contains("no \"->\""));
  CHECK_THROWS_WITH(einsum_strategies("aten::mm", {a, a}, "mk,k?->m"), Contains("'?' is not a letter"));
}

// Compares derived strategies with the operator itself: cuts the inputs by the strategy, computes on every rank, and
// combines the results.
struct Case {
  std::string name;
  std::string op;
  std::vector<at::Tensor> inputs;
  std::function<FactorRule(const OpCall&)> rule;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> compute;
};

std::vector<at::Tensor> cut(const at::Tensor& x, const Placement& p, int64_t ranks) {
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < ranks; ++r) {
    if (p.is_shard()) {
      const IndexRange run = chunk(x.size(p.dim()), ranks, r);
      parts.push_back(x.narrow(p.dim(), run.begin, run.size));
    } else if (p.is_partial()) {
      if (r + 1 < ranks) {
        parts.push_back(at::randn_like(x));
        continue;
      }
      at::Tensor last = p.reduce_op() == ReduceOp::kAvg ? x * ranks : x.clone();
      for (const at::Tensor& part : parts) last = last - part;
      parts.push_back(last);
    } else {
      parts.push_back(x);
    }
  }
  return parts;
}

at::Tensor put_together(const std::vector<at::Tensor>& parts, const Placement& p) {
  if (p.is_shard()) return at::cat(parts, p.dim());
  if (!p.is_partial()) return parts[0];
  at::Tensor all = at::stack(parts);
  switch (p.reduce_op()) {
    case ReduceOp::kSum:
      return all.sum(0);
    case ReduceOp::kAvg:
      return all.mean(0);
    case ReduceOp::kMax:
      return all.amax(0);
    case ReduceOp::kMin:
      return all.amin(0);
    case ReduceOp::kProduct:
      return all.prod(0);
    case ReduceOp::kNorm2:
      return all.square().sum(0).sqrt();
  }
  return {};
}

TEST_CASE("every derived strategy computes the operator's result") {
  at::manual_seed(7);
  auto rand = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  auto equation = [](const char* text, bool linear = true) {
    return [text, linear](const OpCall& call) { return einsum(call, text, linear); };
  };
  auto mm = [](auto& x) { return at::mm(x[0], x[1]); };
  auto addmm = [](auto& x) { return at::addmm(x[0], x[1], x[2], 2, 3); };
  auto add = [](auto& x) { return at::add(x[0], x[1], 2); };
  auto mul = [](auto& x) { return at::mul(x[0], x[1]); };
  auto reduce = [](std::vector<int64_t> dims, bool keepdim, ReduceOp op) {
    return [=](const OpCall& call) { return reduction(call, 0, dims, keepdim, op); };
  };
  const std::vector<Case> cases = {
      {"mm", "aten::mm", {rand({5, 7}), rand({7, 4})}, equation("mk,kn->mn"), mm},
      {"addmm", "aten::addmm", {rand({5, 4}), rand({5, 7}), rand({7, 4})}, equation("mn+mk,kn->mn"), addmm},
      {"addmm, row", "aten::addmm", {rand({4}), rand({5, 7}), rand({7, 4})}, equation("mn+mk,kn->mn"), addmm},
      {"addmm, column", "aten::addmm", {rand({5, 1}), rand({5, 7}), rand({7, 4})}, equation("mn+mk,kn->mn"), addmm},
      {"add", "aten::add.Tensor", {rand({5, 4}), rand({4})}, equation("...+...->..."), add},
      {"mul", "aten::mul.Tensor", {rand({5, 1}), rand({2, 5, 7})}, equation("...,...->..."), mul},
      {"mul, pointwise",
       "aten::mul.Tensor",
       {rand({5, 1}), rand({5, 7})},
       [](auto& call) { return pointwise(call); },
       mul},
      {"sum",
       "aten::sum.dim_IntList",
       {rand({5, 7, 4})},
       reduce({0, 2}, false, ReduceOp::kSum),
       [](auto& x) {
         return x[0].sum(at::IntArrayRef{0, 2});
       }},
      {"amax",
       "aten::amax",
       {rand({5, 7})},
       reduce({1}, true, ReduceOp::kMax),
       [](auto& x) { return x[0].amax(1, true); }},
      {"softmax",
       "aten::_softmax",
       {rand({5, 7})},
       equation("...K->...K", false),
       [](auto& x) { return x[0].softmax(-1); }},
  };
  // 3 ranks: uneven parts, none empty (amax of nothing is an error).
  const int64_t ranks = 3;
  for (const Case& c : cases) {
    std::vector<SpecPtr> specs;
    for (const at::Tensor& x : c.inputs)
      specs.push_back(spec4(Shape(x.sizes().begin(), x.sizes().end()), "R", at::kDouble));
    OpCall call = OpCall::make(c.op, specs);
    const at::Tensor expected = c.compute(c.inputs);
    for (const DimStrategy& s : strategies(c.rule(call), call)) {
      // cut() cannot make addends of a maximum.
      bool representable = true;
      std::vector<std::vector<at::Tensor>> parts;
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        const Placement& p = s.inputs[i];
        representable = representable && !(p.is_partial() && p.reduce_op() > ReduceOp::kAvg);
        parts.push_back(cut(c.inputs[i], p, ranks));
      }
      if (!representable) continue;
      std::vector<at::Tensor> results;
      for (int64_t r = 0; r < ranks; ++r) {
        std::vector<at::Tensor> locals;
        for (const auto& of_input : parts) locals.push_back(of_input[r]);
        results.push_back(c.compute(locals));
      }
      INFO(c.name << ": " << print({s}));
      CHECK(at::allclose(put_together(results, s.outputs[0]), expected));
    }
  }
}

}  // namespace
}  // namespace dtensor
