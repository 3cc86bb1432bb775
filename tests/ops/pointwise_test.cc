// Elementwise operators compared with plain ATen: Partials pass without communication, and ATen's whole list has rules.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;
using Values = std::vector<c10::IValue>;
using Silent = std::function<bool(const std::vector<Placement>&)>;

at::Tensor positive(size_t, const std::vector<int64_t>& shape) { return at::rand(shape, at::kDouble) + 0.1; }
at::Tensor half_mask(size_t i, const std::vector<int64_t>& shape) {
  return i == 0 ? at::rand(shape, at::kDouble) > 0.5 : at::rand(shape, at::kDouble);
}

// Inputs in front, `rest` behind.
OpCase named(const std::string& op, std::vector<std::vector<int64_t>> shapes, Values rest = {}) {
  OpCase c;
  c.name = op;
  c.shapes = std::move(shapes);
  c.fn = [op, rest](const Tensors& t) {
    Values args(t.begin(), t.end());
    args.insert(args.end(), rest.begin(), rest.end());
    return call_op(op, args);
  };
  return c;
}

// Layouts of the tensors along the mesh such that no two splits differ, and no Partial meets a split.
bool no_conflict(const std::vector<Placement>& p) {
  std::optional<Placement> seen;
  for (const auto& q : p) {
    if (q.is_replicate()) continue;
    if (seen && *seen != q) return false;
    seen = q;
  }
  return true;
}

bool unary_silent(const std::vector<Placement>&) { return true; }
bool unary_silent_unless_partial(const std::vector<Placement>& p) { return !p[0].is_partial(); }

}  // namespace

TEST_CASE("Linear operators pass Partials without communication", "[pointwise]") {
  struct Row {
    OpCase c;
    Silent silent;
  };
  const auto product = [](const std::vector<Placement>& p) {
    return no_conflict(p) && !(p[0].is_partial() && p[1].is_partial());
  };
  const auto numerator = [](const std::vector<Placement>& p) { return no_conflict(p) && !p[1].is_partial(); };
  std::vector<Row> table = {
      {named("aten::add.Tensor", {{5, 6}, {5, 6}}, {2.5}), no_conflict},
      {named("aten::sub.Tensor", {{5, 6}, {5, 6}}), no_conflict},
      {named("aten::add.Tensor", {{5, 6}, {6}}), nullptr},
      {named("aten::add.Tensor", {{5, 1}, {1, 6}}), nullptr},
      {named("aten::rsub.Tensor", {{5, 6}, {5, 6}}), nullptr},
      {named("aten::mul.Tensor", {{5, 6}, {5, 6}}), product},
      {named("aten::mul.Tensor", {{2, 5, 3}, {5, 1}}), nullptr},
      {named("aten::div.Tensor", {{5, 6}, {5, 6}}), numerator},
      {named("aten::mul.Scalar", {{5, 6}}, {3.0}), unary_silent},
      {named("aten::div.Scalar", {{5, 6}}, {3.0}), unary_silent},
      {named("aten::add.Scalar", {{5, 6}}, {3.0}), unary_silent_unless_partial},
      {named("aten::neg", {{5, 6}}), unary_silent},
      {named("aten::positive", {{5, 6}}), unary_silent},
      {named("aten::clone", {{5, 6}}), unary_silent},
      {named("aten::alias", {{5, 6}}), unary_silent},
      {named("aten::deg2rad", {{5, 6}}), unary_silent},
      {named("aten::addcmul", {{5, 6}, {5, 6}, {6}}, {0.5}), nullptr},
      {named("aten::addcdiv", {{5}, {5}, {5}}, {0.5}), nullptr},
      {named("aten::lerp.Scalar", {{5, 6}, {5, 6}}, {0.3}), no_conflict},
      {named("aten::lerp.Tensor", {{5}, {5}, {5}}), nullptr},
      {named("aten::masked_fill.Scalar", {{5, 6}}, {}), unary_silent},
      {named("aten::threshold_backward", {{5, 6}, {5, 6}}, {0.0}), numerator},
      {named("aten::gelu_backward", {{5, 6}, {5, 6}}), numerator},
      {named("aten::sigmoid_backward", {{5, 6}, {5, 6}}), numerator},
      {named("aten::tanh_backward", {{5, 6}, {5, 6}}), numerator},
      {named("aten::silu_backward", {{5, 6}, {5, 6}}), numerator},
      {named("aten::hardswish_backward", {{5, 6}, {5, 6}}), numerator},
      {named("aten::leaky_relu_backward", {{5, 6}, {5, 6}}, {0.1, false}), numerator},
  };
  for (auto& row : table) {
    if (row.c.name == "aten::masked_fill.Scalar") {
      row.c.fn = [](const Tensors& t) { return Tensors{t[0].masked_fill(t[0].detach().gt(0), 0)}; };
      row.silent = nullptr;
    }
    row.c.silent = row.silent;
    row.c.make = positive;
    row.c.grad = std::vector<bool>(row.c.shapes.size(), row.c.name.find("backward") == std::string::npos);
    row.c.strided_inputs = row.c.shapes.size() < 3;
    DYNAMIC_SECTION(row.c.name) { check_op(row.c, 40); }
  }
}

TEST_CASE("Elementwise operators", "[pointwise]") {
  std::vector<OpCase> table;
  for (const char* op :
       {"abs",         "acos",        "acosh",      "angle",       "asin",          "asinh",         "atan",
        "atanh",       "ceil",        "cos",        "cosh",        "digamma",       "erf",           "erfc",
        "erfinv",      "exp",         "exp2",       "expm1",       "floor",         "frac",          "gelu",
        "hardsigmoid", "hardswish",   "hardtanh",   "i0",          "leaky_relu",    "lgamma",        "log",
        "log10",       "log1p",       "log2",       "log_sigmoid", "logit",         "mish",          "nan_to_num",
        "reciprocal",  "relu",        "round",      "rsqrt",       "sgn",           "sigmoid",       "sign",
        "silu",        "sin",         "sinc",       "sinh",        "softplus",      "softshrink",    "sqrt",
        "square",      "tan",         "tanh",       "trunc",       "special_erfcx", "special_ndtri", "special_i1",
        "elu",         "celu",        "selu",       "relu6",       "isfinite",      "isnan",         "isinf",
        "signbit",     "logical_not", "hardshrink", "special_entr"}) {
    table.push_back(named(std::string("aten::") + op, {{5, 3}}));
  }
  for (const char* op : {"atan2",
                         "copysign.Tensor",
                         "eq.Tensor",
                         "fmax",
                         "fmin",
                         "fmod.Tensor",
                         "ge.Tensor",
                         "hypot",
                         "le.Tensor",
                         "logaddexp",
                         "maximum",
                         "minimum",
                         "pow.Tensor_Tensor",
                         "remainder.Tensor",
                         "xlogy.Tensor",
                         "floor_divide",
                         "heaviside",
                         "max.other",
                         "special_xlog1py",
                         "ldexp.Tensor",
                         "float_power.Tensor_Tensor"}) {
    table.push_back(named(std::string("aten::") + op, {{5, 3}, {5, 3}}));
  }
  table.push_back(named("aten::clamp", {{5, 3}}, {0.3, 0.7}));
  table.push_back(named("aten::clamp.Tensor", {{5, 3}, {5, 1}}));
  table.push_back(named("aten::pow.Tensor_Scalar", {{5, 3}}, {2.5}));
  table.push_back(named("aten::pow.Scalar", {{}}, {}));
  table.back().fn = [](const Tensors& t) { return call_op("aten::pow.Scalar", {2.0, t[0]}); };
  table.push_back(named("aten::threshold", {{5, 3}}, {0.5, 0.0}));
  table.push_back(named("aten::_prelu_kernel", {{5, 3}, {3}}));
  table.push_back(named("aten::frexp.Tensor", {{5, 3}}));
  table.push_back(named("aten::div.Tensor_mode", {{5, 3}, {5, 3}}, {"floor"}));
  for (auto& c : table) {
    c.make = [](size_t, const std::vector<int64_t>& shape) { return at::rand(shape, at::kDouble) * 0.8 + 0.1; };
    c.more_partials = {ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin};
    if (c.name == "aten::acosh")
      c.make = [](size_t, const std::vector<int64_t>& s) { return at::rand(s, at::kDouble) + 1.1; };
    if (c.name == "aten::hardshrink") c.tolerance = 1e-7;
    const bool discrete = c.name == "aten::frexp.Tensor" || c.name == "aten::heaviside" ||
                          c.name == "aten::floor_divide" || c.name == "aten::pow.Scalar";
    if (discrete) c.grad = std::vector<bool>(c.shapes.size(), c.name == "aten::pow.Scalar");
    // Addends of either sign, or next to a jump, would end on the other side of it.
    if (c.name == "aten::eq.Tensor") c.partial_inputs = false;
    DYNAMIC_SECTION(c.name) { check_op(c, 12); }
  }
}

TEST_CASE("Minima and maxima pass monotone operators without communication", "[pointwise]") {
  const auto mesh = test_meshes()[0];
  const auto x = at::rand({5, 3}, at::kDouble);
  struct Row {
    const char* op;
    ReduceOp in, out;
  };
  for (const Row& row :
       {Row{"aten::exp", ReduceOp::kMax, ReduceOp::kMax}, Row{"aten::relu", ReduceOp::kMin, ReduceOp::kMin},
        Row{"aten::erfc", ReduceOp::kMax, ReduceOp::kMin},
        Row{"aten::detach", ReduceOp::kProduct, ReduceOp::kProduct}}) {
    const auto y = call_op(row.op, {lay_out(x, mesh, {Partial(row.in)})})[0];
    CAPTURE(row.op);
    CHECK(meta_for_read(y).spec->placements() == Placements{Partial(row.out)});
  }
  const auto y = lay_out(x, mesh, {Partial(ReduceOp::kMax)}).add(lay_out(x, mesh, {Replicate()}));
  CHECK(meta_for_read(y).spec->placements() == Placements{Partial(ReduceOp::kMax)});
}

TEST_CASE("where, masked_fill and complex numbers", "[pointwise]") {
  OpCase where{"where",
               [](const Tensors& t) {
                 return call_op("aten::where.self", {t[0], t[1], t[2]});
               },
               {{5, 3}, {5, 3}, {5, 1}}};
  where.make = half_mask;
  where.grad = {false, true, true};
  check_op(where);
  OpCase fill{"masked_fill", [](const Tensors& t) { return Tensors{t[1].masked_fill(t[0], -7.0)}; }, {{5, 3}, {5, 3}}};
  fill.make = half_mask;
  fill.grad = {false, true};
  fill.more_partials = {ReduceOp::kAvg, ReduceOp::kMax};
  check_op(fill);
  fill.fn = [](const Tensors& t) { return Tensors{t[1].masked_fill(t[0], 0)}; };
  check_op(fill);
  fill.fn = [](const Tensors& t) { return Tensors{t[1].masked_fill(t[0], t[2])}; };
  fill.shapes = {{5, 3}, {5, 3}, {}};
  fill.grad = {false, true, true};
  fill.more_partials = {};
  check_op(fill);

  OpCase complex{"complex", [](const Tensors& t) { return call_op("aten::complex", {t[0], t[1]}); }, {{5, 3}, {5, 3}}};
  check_op(complex);
  OpCase conj{"conj",
              [](const Tensors& t) {
                return Tensors{(t[0] * 2).conj() * t[0].abs(), t[0].conj().resolve_conj()};
              },
              {{5, 3}}};
  conj.make = [](size_t, const std::vector<int64_t>& s) { return at::rand(s, at::kComplexDouble); };
  check_op(conj);
}

TEST_CASE("In-place operators keep a layout chosen by the user, or fail", "[pointwise]") {
  // The engine chose the layout of clones: it may change.
  struct Row {
    const char* name;
    std::function<at::Tensor(const Tensors&)> fn;
  };
  const Row table[] = {
      {"add_", [](const Tensors& t) { return t[0].clone().add_(t[1], 2); }},
      {"sub_", [](const Tensors& t) { return t[0].clone().sub_(t[1]); }},
      {"copy_", [](const Tensors& t) { return t[0].clone().copy_(t[1]); }},
      {"zero_", [](const Tensors& t) { return t[0].clone().zero_(); }},
      {"mul_ number", [](const Tensors& t) { return t[0].clone().mul_(0.5); }},
      {"lerp_", [](const Tensors& t) { return t[0].clone().lerp_(t[1], 0.25); }},
      {"relu_", [](const Tensors& t) { return t[0].clone().relu_(); }},
      {"fill_", [](const Tensors& t) { return t[0].clone().fill_(2); }},
      {"pow_", [](const Tensors& t) { return t[0].clone().pow_(2); }},
      {"clamp_", [](const Tensors& t) { return t[0].clone().clamp_(-0.5, 0.5); }},
      {"hardtanh_", [](const Tensors& t) { return call_op("aten::hardtanh_", {t[0].clone()})[0]; }},
      {"masked_fill_", [](const Tensors& t) { return t[0].clone().masked_fill_(t[1].detach() > 0, 1); }},
      {"addcdiv_", [](const Tensors& t) { return t[0].clone().addcdiv_(t[1], t[1].detach() + 2, 0.1); }},
  };
  for (const auto& row : table) {
    OpCase c{row.name, [fn = row.fn](const Tensors& t) { return Tensors{fn(t)}; }, {{5, 3}, {5, 3}}};
    c.strided_inputs = true;
    DYNAMIC_SECTION(row.name) { check_op(c, 40); }
  }
  const auto mesh = test_meshes()[0];
  auto x = lay_out(at::rand({5, 3}, at::kDouble), mesh, {Shard(1)});
  auto y = x.add_(lay_out(at::rand({5, 3}, at::kDouble), mesh, {Shard(0)}));
  CHECK(meta_for_read(y).spec->placements() == Placements{Shard(1)});
  CHECK(y.is_same(x));
  const auto p = lay_out(at::rand({5, 3}, at::kDouble), mesh, {Partial()});
  for (const char* op : {"aten::relu_", "aten::exp_", "aten::abs_"}) {
    CHECK_THROWS_WITH(call_op(op, {p}), Catch::Contains("in-place operations that require placement changes"));
  }
}

TEST_CASE("out= forms write into a tensor of any layout", "[pointwise]") {
  const auto mesh = test_meshes()[2];
  const auto a = at::rand({5, 3}, at::kDouble), b = at::rand({5, 3}, at::kDouble);
  for (const Placement& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
    auto out = lay_out(at::rand({5, 3}, at::kDouble), mesh, {p});
    call_op("aten::add.out", {lay_out(a, mesh, {Shard(0)}), lay_out(b, mesh, {Partial()}), 1, out});
    CHECK(difference(out, a + b) == std::nullopt);
    CHECK(meta_for_read(out).spec->placements() == Placements{p});
  }
}

TEST_CASE("Casts reduce integer sums and pass floating ones", "[pointwise]") {
  for (const auto dtype : {at::kFloat, at::kLong, at::kBool, at::kComplexDouble}) {
    OpCase c{"to", [dtype](const Tensors& t) { return Tensors{t[0].to(dtype)}; }, {{5, 3}}};
    c.make = [](size_t, const std::vector<int64_t>& s) { return at::rand(s, at::kDouble) * 4; };
    c.tolerance = 1e-5;
    c.more_partials = {ReduceOp::kAvg, ReduceOp::kMax};
    check_op(c);
  }
  const auto mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({5, 3}, at::kDouble), mesh, {Partial()});
  CHECK(meta_for_read(x.to(at::kFloat)).spec->placements() == Placements{Partial()});
  CHECK_FALSE(meta_for_read(x.to(at::kLong)).spec->has_partial());
  CHECK_THROWS_WITH(x.to(c10::Device("cuda:0")), Catch::Contains("stays on the devices of its mesh"));
}

TEST_CASE("Integer Partials are added only to their own kind", "[pointwise]") {
  const auto mesh = test_meshes()[0];
  const auto full = at::randint(0, 9, {5, 3}, at::kLong);
  const auto x = lay_out(full, mesh, {Partial()});
  CHECK(meta_for_read(x + x).spec->placements() == Placements{Partial()});
  CHECK(difference(x + x, full + full) == std::nullopt);
  CHECK(meta_for_read(x * 3).spec->placements() == Placements{Partial()});
  for (const auto& y : {x.div(2), x * 0.5, x + x.to(at::kDouble), x.div(2, "floor")}) {
    CHECK_FALSE(meta_for_read(y).spec->has_partial());
  }
  CHECK(difference(x.div(2, "floor"), full.div(2, "floor")) == std::nullopt);
}

TEST_CASE("detach and alias share memory", "[pointwise]") {
  const auto mesh = test_meshes()[0];
  const auto full = at::rand({5, 3}, at::kDouble);
  auto x = lay_out(full, mesh, {Shard(0)}).requires_grad_();
  auto d = x.detach();
  d.mul_(2);
  CHECK(difference(x, full * 2) == std::nullopt);
  CHECK_FALSE(d.requires_grad());
}

TEST_CASE("Numbers that change every step hit the strategy cache", "[pointwise]") {
  const auto mesh = test_meshes()[0];
  auto x = lay_out(at::rand({5, 3}, at::kDouble), mesh, {Shard(0)});
  const auto step = [&](double lr) {
    x.mul_(1 - lr).add_(x, lr).addcmul_(x, x, lr).addcdiv_(x, x.abs() + 1, -lr).clamp_min_(lr).lerp_(x, lr);
    x.fill_(lr);
  };
  step(0.1);
  const auto before = strategy_cache(mesh.world()).stats();
  step(0.01);
  const auto after = strategy_cache(mesh.world()).stats();
  CHECK(after.misses == before.misses);
  CHECK(after.hits > before.hits);
}

TEST_CASE("foreach operators: one operator per tensor", "[pointwise]") {
  const auto mesh = test_meshes()[2];
  const Tensors full = {at::rand({5, 3}, at::kDouble), at::rand({4}, at::kDouble)};
  const auto spread = [&](const Tensors& t) {
    return Tensors{lay_out(t[0], mesh, {Shard(0)}), lay_out(t[1], mesh, {Replicate()})};
  };
  const auto list = [](const Tensors& t) { return c10::IValue(c10::List<at::Tensor>(t)); };
  struct Row {
    const char* op;
    std::function<Values(c10::IValue, c10::IValue)> args;
  };
  const Row table[] = {
      {"aten::_foreach_add.Scalar",
       [](auto a, auto) {
         return Values{a, 2.0};
       }},
      {"aten::_foreach_add.List",
       [](auto a, auto b) {
         return Values{a, b, 0.5};
       }},
      {"aten::_foreach_mul.List",
       [](auto a, auto b) {
         return Values{a, b};
       }},
      {"aten::_foreach_addcdiv.Scalar",
       [](auto a, auto b) {
         return Values{a, b, b, 0.1};
       }},
      {"aten::_foreach_lerp.Scalar",
       [](auto a, auto b) {
         return Values{a, b, 0.1};
       }},
      {"aten::_foreach_sqrt", [](auto a, auto) { return Values{a}; }},
      {"aten::_foreach_norm.Scalar", [](auto a, auto) { return Values{a}; }},
      {"aten::_foreach_maximum.List",
       [](auto a, auto b) {
         return Values{a, b};
       }},
  };
  for (const auto& row : table) {
    CAPTURE(row.op);
    const auto expected = call_op(row.op, row.args(list(full), list(full)));
    const auto actual = call_op(row.op, row.args(list(spread(full)), list(spread(full))));
    REQUIRE(actual.size() == 2);
    for (int i = 0; i < 2; ++i) CHECK(difference(actual[i], expected[i]) == std::nullopt);
  }
  auto written = spread(full);
  call_op("aten::_foreach_add_.Scalar", {list(written), 1.0});
  call_op("aten::_foreach_mul_.ScalarList", {list(written), c10::List<c10::Scalar>({2.0, 3.0})});
  CHECK(difference(written[0], (full[0] + 1) * 2) == std::nullopt);
  CHECK(difference(written[1], (full[1] + 1) * 3) == std::nullopt);
}

TEST_CASE("Every operator that ATen tags as pointwise or as a reduction can be distributed", "[pointwise][reduction]") {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0 || name.name.rfind("aten::_foreach", 0) == 0)
      continue;
    if (!op->hasTag(at::Tag::pointwise) && !op->hasTag(at::Tag::reduction)) continue;
    const auto& info = op_info(*op);
    const bool any_tensor = std::any_of(info.args.begin(), info.args.end(),
                                        [](const auto& a) { return a.kind != OpInfo::Arg::Kind::kStatic; });
    if (!any_tensor) continue;
    CAPTURE(info.name);
    CHECK((info.handler || info.rule() || info.composite_implicit));
  }
}

}  // namespace dtensor::testing
