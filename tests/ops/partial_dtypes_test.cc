// Brute force over dtypes x kinds of Partial x operators that pass Partials: the operator on addends, then reduced,
// equals plain ATen's operator on the reduced value. Addends have both signs, are near the limits of their types, and
// one rank may hold the neutral element of an empty part.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using at::ScalarType;
using Tensors = std::vector<at::Tensor>;
using Values = std::vector<c10::IValue>;

constexpr ScalarType kTypes[] = {at::kBool,  at::kByte,   at::kChar,         at::kShort,
                                 at::kInt,   at::kLong,   at::kHalf,         at::kBFloat16,
                                 at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
constexpr ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};
constexpr double kInf = std::numeric_limits<double>::infinity();

const DeviceMesh& mesh_of(int64_t n) {
  static const auto* const two = new DeviceMesh(World::local(2), {2}, {"d"});
  static const auto* const three = new DeviceMesh(World::local(3), {3}, {"d"});
  return n == 2 ? *two : *three;
}

bool integral(ScalarType t) { return at::isIntegralType(t, /*includeBool=*/false); }
bool is_order(ReduceOp op) { return op == ReduceOp::kMax || op == ReduceOp::kMin; }

// Values that the type and kind allow: no averages of integers, sums of bools, orders of complex numbers.
bool has_kind(ScalarType t, ReduceOp op) {
  if (op == ReduceOp::kAvg) return at::isFloatingType(t) || at::isComplexType(t);
  return !(is_order(op) && at::isComplexType(t));
}

double lowest(ScalarType t, bool of_max) {
  switch (t) {
    case at::kByte:
      return of_max ? 0 : 255;
    case at::kChar:
      return of_max ? -128 : 127;
    case at::kShort:
      return of_max ? -32768 : 32767;
    case at::kInt:
      return of_max ? -2147483648.0 : 2147483647.0;
    default:
      return 0;
  }
}

at::Tensor identity_like(const at::Tensor& t, ReduceOp op) {
  const ScalarType type = t.scalar_type();
  if (!is_order(op)) return at::full_like(t, op == ReduceOp::kProduct ? 1 : 0);
  const bool of_max = op == ReduceOp::kMax;
  if (at::isFloatingType(type)) return at::full_like(t, of_max ? -kInf : kInf);
  if (type == at::kBool) return at::full_like(t, !of_max);
  if (type == at::kLong)
    return at::full_like(t, of_max ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max());
  return at::full_like(t, lowest(type, of_max));
}

// [2, 3] addends, one per rank. `variant`: 0 small values; 1 near the limits; both with a rank that holds the neutral
// element if `empty`.
Tensors addends(ScalarType type, ReduceOp op, int64_t ranks, int variant, bool empty) {
  static const std::vector<std::vector<double>> kSmall = {
      {3, -1, 0.5, 2, -2.5, 0}, {-2, 3, 1.5, 2, 4, -1}, {1, 1, -3, -0.5, 2, 1}};
  static const std::vector<std::vector<double>> kBytes = {
      {200, 1, 77, 255, 0, 5}, {100, 3, 250, 255, 4, 1}, {1, 91, 3, 254, 2, 128}};
  Tensors result;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto& numbers = variant == 1 && integral(type) ? kBytes[r] : kSmall[r];
    at::Tensor t = at::tensor(numbers, at::kDouble).view({2, 3});
    if (at::isComplexType(type)) t = t.to(type) * c10::complex<double>(1, r == 1 ? -2 : 1);
    if (integral(type)) t = t.to(at::kLong);
    if (variant == 1 && integral(type) && type != at::kByte && type != at::kChar) {
      const int bits = static_cast<int>(8 * c10::elementSize(type)) - 8;
      t = t * (int64_t{1} << bits) + r;
    }
    t = type == at::kBool ? t.gt(1) : t.to(type);
    if (variant == 1 && is_order(op) && at::isFloatingType(type)) {
      t.view(-1)[0] = r == 0 ? std::numeric_limits<double>::quiet_NaN() : 3.0;
      t.view(-1)[1] = type == at::kHalf ? 6e4 : 3e38;
      t.view(-1)[2] = r == 1 ? kInf : -kInf;
    }
    result.push_back(empty && r + 1 == ranks ? identity_like(t, op) : t);
  }
  return result;
}

at::Tensor reduced(const Tensors& parts, ReduceOp op) {
  at::Tensor value = parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    const at::Tensor& next = parts[r];
    if (op == ReduceOp::kMax) value = at::maximum(value, next);
    if (op == ReduceOp::kMin) value = at::minimum(value, next);
    if (op == ReduceOp::kProduct) value = value * next;
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) value = value + next;
  }
  return op == ReduceOp::kAvg ? value / static_cast<int64_t>(parts.size()) : value;
}

at::Tensor made(const Tensors& parts, const DeviceMesh& mesh, const Placement& p) {
  FromLocalOptions options;
  options.shape = parts[0].sizes().vec();
  return from_local(parts, mesh, {p}, options).detach().clone();
}

at::Tensor whole(const at::Tensor& t, const DeviceMesh& mesh) { return lay_out(t, mesh, {Replicate()}); }

at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor t = at::scalar_tensor(number, number.type());
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

struct Operation {
  std::string name;
  std::function<at::Tensor(const at::Tensor& x, const Tensors& o)> fn;  // o: other operands, the same on all ranks
  bool in_place = false;
  bool must_work = false;  // in place, too
  bool beside_itself = false;
};

// Operators on a single Partial.
std::vector<Operation> unary() {
  std::vector<Operation> list;
  for (const char* op : {"asinh",         "atan",
                         "ceil",          "erf",
                         "exp",           "exp2",
                         "expm1",         "floor",
                         "sgn",           "sign",
                         "sigmoid",       "sinh",
                         "tanh",          "trunc",
                         "relu",          "round",
                         "hardsigmoid",   "relu6",
                         "hardshrink",    "softshrink",
                         "hardtanh",      "special_log_ndtr",
                         "erfc",          "special_erfcx",
                         "deg2rad",       "rad2deg",
                         "neg",           "abs",
                         "clone",         "positive",
                         "conj_physical", "detach",
                         "alias",         "sum",
                         "mean",          "prod",
                         "max",           "min",
                         "any",           "all",
                         "tril",          "triu",
                         "view_as_real",  "t",
                         "count_nonzero", "logical_not",
                         "sqrt",          "square",
                         "nansum"}) {
    list.push_back({op, [op](auto& x, auto&) { return call_op(std::string("aten::") + op, {x})[0]; }});
  }
  const auto add = [&](const char* label, const char* op, Values rest) {
    list.push_back({label, [op = std::string(op), rest](auto& x, auto&) {
                      Values args = {x};
                      args.insert(args.end(), rest.begin(), rest.end());
                      return call_op(op, args)[0];
                    }});
  };
  const c10::List<int64_t> dim({1});
  add("amax", "aten::amax", {dim});
  add("amin", "aten::amin", {dim});
  add("sum dim", "aten::sum.dim_IntList", {dim, true});
  add("cumsum", "aten::cumsum", {0});
  add("cumprod", "aten::cumprod", {0});
  add("clamp", "aten::clamp", {-1, 2});
  add("clamp_min", "aten::clamp_min", {-kInf});
  add("clamp_max 1.5", "aten::clamp_max", {1.5});
  add("select", "aten::select.int", {0, 1});
  add("slice", "aten::slice.Tensor", {1, 0, 2, 1});
  add("flip", "aten::flip", {dim});
  add("roll", "aten::roll", {dim, dim});
  add("pad 0", "aten::constant_pad_nd", {c10::List<int64_t>({1, 1}), 0});
  add("pad 2", "aten::constant_pad_nd", {c10::List<int64_t>({1, 1}), 2});
  add("select_backward", "aten::select_backward", {c10::List<int64_t>({2, 4, 3}), 1, 2});
  add("slice_backward", "aten::slice_backward", {c10::List<int64_t>({2, 5}), 1, 1, 4, 1});
  add("diag_embed", "aten::diag_embed", {});
  add("unfold_backward", "aten::unfold_backward", {c10::List<int64_t>({4}), 0, 3, 1});
  add("unfold", "aten::unfold", {1, 2, 1});
  add("expand", "aten::expand", {c10::List<int64_t>({2, 2, 3})});
  add("repeat", "aten::repeat", {c10::List<int64_t>({2, 2})});
  add("masked number", "aten::mul.Scalar", {3});
  add("view", "aten::view", {c10::List<int64_t>({3, 2})});
  return list;
}

// With other tensors: o[0] of the Partial's shape, o[1] without dims, o[2] a mask.
std::vector<Operation> binary() {
  std::vector<Operation> list = {
      {"add", [](auto& x, auto& o) { return at::add(x, o[0]); }},
      {"add, turned", [](auto& x, auto& o) { return at::add(o[0], x); }},
      {"add alpha", [](auto& x, auto& o) { return at::add(x, o[0], 2); }},
      {"add 0-dim", [](auto& x, auto& o) { return at::add(x, o[1]); }},
      {"add 0-dim, turned", [](auto& x, auto& o) { return at::add(o[1], x, 2); }},
      {"sub", [](auto& x, auto& o) { return at::sub(x, o[0]); }},
      {"sub, turned", [](auto& x, auto& o) { return at::sub(o[0], x); }},
      {"rsub",
       [](auto& x, auto& o) {
         return call_op("aten::rsub.Tensor", {x, o[1]})[0];
       }},
      {"mul", [](auto& x, auto& o) { return at::mul(x, o[0]); }},
      {"mul 0-dim", [](auto& x, auto& o) { return at::mul(o[1], x); }},
      {"div", [](auto& x, auto& o) { return at::div(x, o[0]); }},
      {"div 0-dim", [](auto& x, auto& o) { return at::div(x, o[1]); }},
      {"floor_divide",
       [](auto& x, auto& o) {
         return call_op("aten::floor_divide", {x, o[0]})[0];
       }},
      {"maximum", [](auto& x, auto& o) { return at::maximum(x, o[0]); }},
      {"minimum", [](auto& x, auto& o) { return at::minimum(o[0], x); }},
      {"logical_and", [](auto& x, auto& o) { return at::logical_and(x, o[0]); }},
      {"logical_or", [](auto& x, auto& o) { return at::logical_or(o[0], x); }},
      {"logical_and of it", [](auto& x, auto&) { return at::logical_and(x, x); }},
      {"logical_or of it", [](auto& x, auto&) { return at::logical_or(x, x); }},
      {"logical_or into it",
       [](auto& x, auto&) {
         const at::Tensor y = x.clone();
         y.logical_or_(x);
         return y;
       }},
      {"maximum of it", [](auto& x, auto&) { return at::maximum(x, x); }},
      {"fmax",
       [](auto& x, auto& o) {
         return call_op("aten::fmax", {x, o[0]})[0];
       }},
      {"fmin",
       [](auto& x, auto& o) {
         return call_op("aten::fmin", {x, o[0]})[0];
       }},
      {"logaddexp",
       [](auto& x, auto& o) {
         return call_op("aten::logaddexp", {x, o[0]})[0];
       }},
      {"where", [](auto& x, auto& o) { return at::where(o[2], x, o[0]); }},
      {"where, turned", [](auto& x, auto& o) { return at::where(o[2], o[1], x); }},
      {"where of it", [](auto& x, auto&) { return at::where(x.ne(0), x, x); }},
      {"masked_fill", [](auto& x, auto& o) { return x.masked_fill(o[2], o[1]); }},
      {"masked_fill 3", [](auto& x, auto& o) { return x.masked_fill(o[2], 3); }},
      {"cat",
       [](auto& x, auto& o) {
         return at::cat({x, o[0]});
       }},
      {"cat, turned",
       [](auto& x, auto& o) {
         return at::cat({o[0], x}, 1);
       }},
      {"stack",
       [](auto& x, auto& o) {
         return at::stack({x, o[0]});
       }},
      {"addcmul", [](auto& x, auto& o) { return x.addcmul(o[0], o[1]); }},
      {"addcmul, factor", [](auto& x, auto& o) { return o[0].addcmul(o[1], x, 2); }},
      {"addcmul, mask", [](auto& x, auto& o) { return x.addcmul(o[2], o[0]); }},
      {"addcdiv", [](auto& x, auto& o) { return x.addcdiv(o[0], o[0]); }},
      {"lerp", [](auto& x, auto& o) { return x.lerp(o[0], 0.25); }},
      {"slice_scatter", [](auto& x, auto& o) { return x.slice_scatter(o[0], 0, 0, 2); }},
      {"slice_scatter, turned", [](auto& x, auto& o) { return o[0].slice_scatter(x, 0, 0, 2); }},
      {"select_scatter", [](auto& x, auto& o) { return o[0].select_scatter(x.select(0, 1), 0, 0); }},
      {"diagonal_scatter", [](auto& x, auto& o) { return o[0].diagonal_scatter(x.diagonal()); }},
      {"copy",
       [](auto& x, auto& o) {
         return call_op("aten::copy", {o[0], x})[0];
       }},
      {"copy onto",
       [](auto& x, auto& o) {
         return call_op("aten::copy", {x, o[0]})[0];
       }},
      {"to", [](auto& x, auto& o) { return x.to(o[0].scalar_type()); }},
      {"sum to", [](auto& x, auto& o) { return x.sum(o[0].scalar_type()); }},
      {"prod to", [](auto& x, auto& o) { return x.prod(o[0].scalar_type()); }},
      {"cumsum to", [](auto& x, auto& o) { return x.cumsum(1, o[0].scalar_type()); }},
      {"mm", [](auto& x, auto& o) { return x.mm(o[0].t()); }},
      {"index_put", [](auto& x, auto& o) { return o[0].index_put({o[3]}, x, true); }},
      {"index_put onto", [](auto& x, auto& o) { return x.index_put({o[3]}, o[0], true); }},
      {"index_add", [](auto& x, auto& o) { return x.index_add(0, o[3], o[0]); }},
      {"scatter_add", [](auto& x, auto& o) { return x.scatter_add(0, o[3].unsqueeze(1).expand({2, 3}), o[0]); }},
      {"index_select", [](auto& x, auto& o) { return x.index_select(0, o[3]); }},
      {"dropout", [](auto& x, auto& o) { return call_op("aten::native_dropout_backward", {x, o[2], 1.5})[0]; }},
      {"masked_scale",
       [](auto& x, auto& o) { return call_op("aten::_masked_scale", {x, o[2].to(at::kByte), 1.5})[0]; }},
      {"threshold_backward", [](auto& x, auto& o) { return call_op("aten::threshold_backward", {x, o[0], 1})[0]; }},
  };
  const auto in_place = [&](const char* name, auto fn, bool must_work = false) {
    list.push_back({name,
                    [fn](const at::Tensor& x, const Tensors& o) {
                      at::Tensor t = x.clone();
                      fn(t, o);
                      return t;
                    },
                    true, must_work});
  };
  in_place("add_", [](auto& t, auto& o) { t.add_(o[0]); });
  in_place("add_ 0-dim", [](auto& t, auto& o) { t.add_(o[1], 2); });
  in_place("sub_", [](auto& t, auto& o) { t.sub_(o[0]); });
  in_place("mul_", [](auto& t, auto& o) { t.mul_(o[0]); });
  in_place("mul_ 0-dim", [](auto& t, auto& o) { t.mul_(o[1]); });
  in_place("div_", [](auto& t, auto& o) { t.div_(o[0]); });
  in_place("addcmul_", [](auto& t, auto& o) { t.addcmul_(o[0], o[2]); });
  in_place("maximum_", [](auto& t, auto& o) { call_op("aten::clamp_min_.Tensor", {t, o[0]}); });
  in_place(
      "copy_", [](auto& t, auto& o) { t.copy_(o[0]); }, true);
  in_place("copy_ to other", [](auto& t, auto& o) {
    at::Tensor other = o[0].clone();
    other.copy_(t);
    t = other;
  });
  in_place(
      "fill_ tensor", [](auto& t, auto& o) { t.fill_(o[1]); }, true);
  in_place(
      "masked_fill_", [](auto& t, auto& o) { t.masked_fill_(o[2], o[1]); }, true);
  return list;
}

// With numbers.
std::vector<Operation> with_number(const at::Scalar& s) {
  std::vector<Operation> list = {
      {"add", [s](auto& x, auto&) { return at::add(x, s); }},
      {"add wrapped", [s](auto& x, auto&) { return at::add(x, wrapped(s)); }},
      {"wrapped add", [s](auto& x, auto&) { return at::add(wrapped(s), x); }},
      {"sub", [s](auto& x, auto&) { return at::sub(x, s); }},
      {"sub wrapped", [s](auto& x, auto&) { return at::sub(x, wrapped(s)); }},
      {"rsub wrapped",
       [s](auto& x, auto&) {
         return call_op("aten::rsub.Tensor", {x, wrapped(s)})[0];
       }},
      {"mul", [s](auto& x, auto&) { return at::mul(x, s); }},
      {"mul wrapped", [s](auto& x, auto&) { return at::mul(x, wrapped(s)); }},
      {"div", [s](auto& x, auto&) { return at::div(x, s); }},
      {"div wrapped", [s](auto& x, auto&) { return at::div(x, wrapped(s)); }},
      {"add alpha", [s](auto& x, auto&) { return at::add(x, x, s); }, false, false, true},
      {"clamp_min", [s](auto& x, auto&) { return at::clamp_min(x, s); }},
      {"clamp_max", [s](auto& x, auto&) { return at::clamp_max(x, s); }},
      {"masked_fill", [s](auto& x, auto& o) { return x.masked_fill(o[2], s); }},
      {"pow", [s](auto& x, auto&) { return at::pow(x, s); }},
      {"lerp", [s](auto& x, auto&) { return x.lerp(x, s); }},
      {"addcmul", [s](auto& x, auto& o) { return x.addcmul(x, o[2], s); }},
      {"floor_divide",
       [s](auto& x, auto&) {
         return call_op("aten::floor_divide", {x, wrapped(s)})[0];
       }},
      {"add_", [s](auto& x, auto&) { return x.clone().add_(s); }, true},
      {"add_ wrapped", [s](auto& x, auto&) { return x.clone().add_(wrapped(s)); }, true},
      {"mul_", [s](auto& x, auto&) { return x.clone().mul_(s); }, true},
      {"mul_ wrapped", [s](auto& x, auto&) { return x.clone().mul_(wrapped(s)); }, true},
      {"div_", [s](auto& x, auto&) { return x.clone().div_(s); }, true},
      {"div_ wrapped", [s](auto& x, auto&) { return x.clone().div_(wrapped(s)); }, true},
      {"fill_", [s](auto& x, auto&) { return x.clone().fill_(s); }, true, true},
      {"zero_", [s](auto& x, auto&) { return x.clone().zero_(); }, true, true},
      {"masked_fill_", [s](auto& x, auto& o) { return x.clone().masked_fill_(o[2], s); }, true, true},
  };
  return list;
}

bool close(const at::Tensor& got, const at::Tensor& expected, ScalarType given) {
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type()) return false;
  const ScalarType t = expected.scalar_type();
  if (!at::isFloatingType(t) && !at::isComplexType(t)) return at::equal(got, expected);
  const ScalarType real = c10::toRealValueType(t);
  const auto any = [&](ScalarType type) { return real == type || given == type; };
  const double tolerance = any(at::kBFloat16) ? 0.05 : any(at::kHalf) ? 0.01 : 1e-5;
  const ScalarType wide = at::isComplexType(t) ? at::kComplexDouble : at::kDouble;
  return at::allclose(got.to(wide), expected.to(wide), tolerance, tolerance, /*equal_nan=*/true);
}

// Every failed comparison, once.
class Log {
 public:
  void add(std::string line) {
    if (lines_.insert(std::move(line)).second) ++count_;
  }
  void compared() { ++compared_; }
  ~Log() noexcept(false) {
    std::string text;
    int shown = 0;
    for (const auto& line : lines_) {
      if (++shown > 60) break;
      text += line + "\n";
    }
    INFO(count_ << " wrong of " << compared_ << ":\n" << text);
    CHECK(count_ == 0);
    CHECK(compared_ > 1000);
  }

 private:
  std::set<std::string> lines_;
  int64_t count_ = 0, compared_ = 0;
};

struct Setting {
  ScalarType type;
  ReduceOp kind;
  int64_t ranks;
  int variant;
  bool empty;
};

template <typename Visit>
void each_setting(const Visit& visit) {
  for (const ScalarType type : kTypes) {
    for (const ReduceOp kind : kKinds) {
      if (!has_kind(type, kind)) continue;
      visit(Setting{type, kind, 2, 0, false});
      visit(Setting{type, kind, 3, 0, true});
      if (integral(type) || (at::isFloatingType(type) && is_order(kind))) {
        visit(Setting{type, kind, 2, 1, true});
        visit(Setting{type, kind, 3, 1, false});
      }
    }
  }
}

std::string text(const at::Tensor& t) {
  std::ostringstream out;
  out << t.scalar_type() << " " << at::IntArrayRef(t.sizes()) << ":";
  const at::Tensor flat =
      t.detach().reshape(-1).to(at::isComplexType(t.scalar_type()) ? at::kComplexDouble : at::kDouble);
  for (int64_t i = 0; i < std::min<int64_t>(flat.numel(), 8); ++i) out << " " << flat[i].item();
  return out.str();
}

// `plain`: other operands, the same on all ranks.
void compare(const Operation& operation, const Setting& s, const Tensors& plain, const std::string& beside, Log& log) {
  const DeviceMesh& mesh = mesh_of(s.ranks);
  const Tensors parts = addends(s.type, s.kind, s.ranks, s.variant, s.empty);
  at::Tensor expected;
  try {
    LocalGuard guard;
    expected = operation.fn(reduced(parts, s.kind), plain);
    // Tensors are assumed to be finite: one with infinities is not combined with itself.
    if (s.variant == 1 && at::isFloatingType(s.type) && operation.beside_itself) return;
  } catch (const std::exception&) {
    return;  // ATen itself rejects it
  }
  Tensors others;
  for (const auto& t : plain) others.push_back(t.defined() ? whole(t, mesh) : t);
  const std::string where = c10::str(operation.name, beside, " on ", s.type, " P(", to_string(s.kind), ") of ", s.ranks,
                                     s.variant == 1 ? ", limits" : "", s.empty ? ", empty part" : "");
  log.compared();
  try {
    const at::Tensor got = operation.fn(made(parts, mesh, Partial(s.kind)), others);
    const at::Tensor full = full_tensor(got);
    if (!close(full, expected, s.type)) log.add(where + ": " + text(full) + " | ATen " + text(expected));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const bool refused = what.find("in-place operations that require placement changes") != std::string::npos;
    if (operation.in_place && refused && !operation.must_work) return;
    log.add(where + ": " + what.substr(0, 300));
  }
}

Tensors operands(ScalarType type) {
  at::Tensor o = at::tensor({2., 1., 3., 1., 2., 4.}, at::kDouble).view({2, 3});
  if (at::isFloatingType(type)) o = o * 0.5;
  if (at::isComplexType(type)) o = o.to(type) * c10::complex<double>(0.5, 1);
  o = type == at::kBool ? o.gt(1) : o.to(type);
  return {o, o.select(0, 0).select(0, 2), at::tensor({1, 0, 1, 1, 0, 0}, at::kLong).view({2, 3}).to(at::kBool),
          at::tensor({1, 1}, at::kLong)};
}

}  // namespace

TEST_CASE("Operators on Partials alone, of every dtype and kind", "[partial_dtypes]") {
  Log log;
  const auto list = unary();
  each_setting([&](const Setting& s) {
    for (const auto& operation : list) compare(operation, s, {}, "", log);
  });
}

TEST_CASE("Operators on Partials with tensors, of every pair of dtypes and kind", "[partial_dtypes]") {
  Log log;
  const auto list = binary();
  int64_t turn = 0;
  each_setting([&](const Setting& s) {
    for (const ScalarType other : kTypes) {
      if (++turn % 5 != 0) continue;  // a sample, for time: every pair of dtypes with some kind
      for (const auto& operation : list) {
        // Divisors are assumed to have no zeros; bools have some.
        if (other == at::kBool && (operation.name == "div" || operation.name == "div_")) continue;
        compare(operation, s, operands(other), c10::str(" beside ", other), log);
      }
    }
  });
}

TEST_CASE("Operators on Partials with numbers, finite and not", "[partial_dtypes]") {
  Log log;
  const std::vector<at::Scalar> numbers = {true, 3, -2, 0, 2.5, 0.0, kInf, -kInf, c10::complex<double>(1, 2)};
  int64_t turn = 0;
  each_setting([&](const Setting& s) {
    for (const auto& number : numbers) {
      if (++turn % 2 != 0) continue;  // a sample, for time
      // Complex infinities are not averages or products: (inf, 0) / 2 is (inf, nan).
      if (at::isComplexType(s.type) && number.isFloatingPoint() && std::isinf(number.toDouble())) continue;
      for (const auto& operation : with_number(number))
        compare(operation, s, operands(s.type), c10::str(" ", number), log);
    }
  });
}

TEST_CASE("Checking many tensors for infinities is one collective", "[partial_dtypes]") {
  const DeviceMesh& mesh = mesh_of(3);
  for (const bool broken : {false, true}) {
    Tensors gradients;
    for (int64_t i = 0; i < 4; ++i) {
      at::Tensor g = at::full_like(at::tensor({1., 2., 3., 4., 5.}, at::kDouble), 1.0 + static_cast<double>(i));
      if (broken && i == 2) g[4] = kInf;
      gradients.push_back(lay_out(g, mesh, {Shard(0)}));
    }
    CommDebugMode comm;
    at::Tensor all = at::isfinite(gradients[0]).all(), any = at::isinf(gradients[0]).any();
    for (size_t i = 1; i < gradients.size(); ++i) {
      all = all.logical_and(at::isfinite(gradients[i]).all());
      any = any.logical_or(at::isinf(gradients[i]).any());
    }
    CHECK(comm.total() == 0);
    CHECK(all.item<bool>() == !broken);
    CHECK(any.item<bool>() == broken);
    CHECK(comm.total() == 2);
  }
}

TEST_CASE("A number of another type does not reduce, and works in place", "[partial_dtypes]") {
  const DeviceMesh& mesh = mesh_of(2);
  const at::Tensor x = at::tensor({1., -2., 3.}, at::kDouble);
  const auto p = [&](ReduceOp op) { return lay_out(x, mesh, {Partial(op)}); };
  for (const at::Tensor& y :
       {p(ReduceOp::kSum) * 2, p(ReduceOp::kSum).mul(wrapped(2)), p(ReduceOp::kSum).mul_(wrapped(2)),
        p(ReduceOp::kSum).div_(wrapped(0.5)), p(ReduceOp::kAvg).mul_(2)}) {
    CHECK(meta_for_read(y).spec->has_partial());
    CHECK(difference(y, x * 2) == std::nullopt);
  }
  CHECK(difference(p(ReduceOp::kSum).add_(wrapped(true)), x + 1) == std::nullopt);
  CHECK(difference(p(ReduceOp::kSum).add_(whole(at::tensor({1, 0, 1}, at::kLong).to(at::kBool), mesh)),
                   at::tensor({2., -2., 4.}, at::kDouble)) == std::nullopt);
  CHECK(meta_for_read(p(ReduceOp::kMax) + 1).spec->has_partial());
  CHECK_FALSE(meta_for_read(p(ReduceOp::kMax) + kInf).spec->has_partial());
  CHECK_FALSE(meta_for_read(p(ReduceOp::kSum).div(0.0)).spec->has_partial());
  CHECK(meta_for_read(p(ReduceOp::kSum).div(2.0)).spec->has_partial());  // not the cached decision for 0
  CHECK_THROWS_WITH(p(ReduceOp::kSum).div_(0.0), Catch::Contains("redistribute it first"));
}

TEST_CASE("Filling a Partial over several mesh dims", "[partial_dtypes]") {
  const DeviceMesh& mesh = test_meshes()[3];  // (2, 3)
  const Placement sum = Partial(), avg = Partial(ReduceOp::kAvg), product = Partial(ReduceOp::kProduct);
  const at::Tensor x = at::tensor({1., -2., 3.}, at::kDouble), mask = x.lt(2);
  const std::vector<Placements> layouts = {{sum, sum},         {sum, avg},         {avg, sum},
                                           {product, product}, {sum, Replicate()}, {Shard(0), sum}};
  for (const Placements& layout : layouts) {
    CAPTURE(to_string(layout));
    const auto p = [&] { return lay_out(x, mesh, layout); };
    CHECK(difference(p().fill_(5), at::full_like(x, 5)) == std::nullopt);
    CHECK(difference(p().zero_(), at::zeros_like(x)) == std::nullopt);
    // A new tensor of that value is replicated where the old one was Partial: it needs no reduction.
    Placements whole = layout;
    for (Placement& placement : whole) placement = placement.is_partial() ? Replicate() : placement;
    const at::Tensor two = lay_out(at::scalar_tensor(2, at::kDouble), mesh, {Replicate(), Replicate()});
    const at::Tensor filled = call_op("aten::fill.Scalar", {p(), 5})[0],
                     by_tensor = call_op("aten::fill.Tensor", {p(), two})[0];
    const at::Tensor zeroed = call_op("aten::zero", {p()})[0];
    for (const at::Tensor& t : {filled, by_tensor, zeroed}) CHECK(meta_for_read(t).spec->placements() == whole);
    CHECK(difference(filled, at::full_like(x, 5)) == std::nullopt);
    CHECK(difference(by_tensor, at::full_like(x, 2)) == std::nullopt);
    CHECK(difference(zeroed, at::zeros_like(x)) == std::nullopt);
    CHECK(difference(p().masked_fill_(lay_out(mask, mesh, {Replicate(), Replicate()}), 7), x.masked_fill(mask, 7)) ==
          std::nullopt);
    if (layout[0] == product) continue;
    CHECK(difference(p().add_(2), x + 2) == std::nullopt);
    CHECK(difference(p().add_(lay_out(mask, mesh, {Replicate(), Replicate()})), x + mask) == std::nullopt);
  }
}

TEST_CASE("A MaskPartial is scaled, filled and zeroed in place", "[partial_dtypes]") {
  const DeviceMesh& mesh = mesh_of(2);
  const at::Tensor table = at::tensor({1., 2., 3., 4., 5., 6.}, at::kDouble).view({3, 2}),
                   ids = at::tensor({2, 0, 1}, at::kLong);
  const at::Tensor expected = at::cat({table.select(0, 2), table.select(0, 0), table.select(0, 1)}).view({3, 2});
  const auto looked_up = [&] {
    return call_op("aten::embedding", {lay_out(table, mesh, {Shard(0)}), whole(ids, mesh)})[0];
  };
  const Placements layout = meta_for_read(looked_up()).spec->placements();
  REQUIRE(layout[0].is_mask_partial());
  for (const at::Tensor& y :
       {looked_up().mul_(2), looked_up().mul_(2.0), looked_up().mul_(wrapped(2)),
        looked_up().mul_(whole(at::scalar_tensor(2, at::kDouble), mesh)), looked_up().div_(0.5)}) {
    CHECK(meta_for_read(y).spec->placements() == layout);
    CHECK(difference(y, expected * 2) == std::nullopt);
  }
  CHECK(difference(looked_up().zero_(), at::zeros_like(expected)) == std::nullopt);
  CHECK(difference(looked_up().fill_(3), at::full_like(expected, 3)) == std::nullopt);
  CHECK(difference(looked_up().neg_(), -expected) == std::nullopt);
}

}  // namespace dtensor::testing
