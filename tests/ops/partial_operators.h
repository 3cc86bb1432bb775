// Operators that may pass Partials, for partial_dtypes_test.cc.
#pragma once

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/differential.h"

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;
struct Operation {
  std::string name;
  std::function<at::Tensor(const at::Tensor& x, const Tensors& o)> fn;  // o: other operands, the same on all ranks
  bool in_place = false;
  bool must_work = false;  // in place, too
  bool beside_itself = false;
};

// Operators on a single Partial.
inline std::vector<Operation> unary() {
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
  const auto add = [&](const char* label, const char* op, std::vector<c10::IValue> rest) {
    list.push_back({label, [op = std::string(op), rest](auto& x, auto&) {
                      std::vector<c10::IValue> args = {x};
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
inline std::vector<Operation> binary() {
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
inline std::vector<Operation> with_number(const at::Scalar& s) {
  std::vector<Operation> list = {
      {"add", [s](auto& x, auto&) { return at::add(x, s); }},
      {"add wrapped", [s](auto& x, auto&) { return at::add(x, at::native::wrapped_scalar_tensor(s)); }},
      {"wrapped add", [s](auto& x, auto&) { return at::add(at::native::wrapped_scalar_tensor(s), x); }},
      {"sub", [s](auto& x, auto&) { return at::sub(x, s); }},
      {"sub wrapped", [s](auto& x, auto&) { return at::sub(x, at::native::wrapped_scalar_tensor(s)); }},
      {"rsub wrapped",
       [s](auto& x, auto&) {
         return call_op("aten::rsub.Tensor", {x, at::native::wrapped_scalar_tensor(s)})[0];
       }},
      {"mul", [s](auto& x, auto&) { return at::mul(x, s); }},
      {"mul wrapped", [s](auto& x, auto&) { return at::mul(x, at::native::wrapped_scalar_tensor(s)); }},
      {"div", [s](auto& x, auto&) { return at::div(x, s); }},
      {"div wrapped", [s](auto& x, auto&) { return at::div(x, at::native::wrapped_scalar_tensor(s)); }},
      {"add alpha", [s](auto& x, auto&) { return at::add(x, x, s); }, false, false, true},
      {"clamp_min", [s](auto& x, auto&) { return at::clamp_min(x, s); }},
      {"clamp_max", [s](auto& x, auto&) { return at::clamp_max(x, s); }},
      {"masked_fill", [s](auto& x, auto& o) { return x.masked_fill(o[2], s); }},
      {"pow", [s](auto& x, auto&) { return at::pow(x, s); }},
      {"lerp", [s](auto& x, auto&) { return x.lerp(x, s); }},
      {"addcmul", [s](auto& x, auto& o) { return x.addcmul(x, o[2], s); }},
      {"floor_divide",
       [s](auto& x, auto&) {
         return call_op("aten::floor_divide", {x, at::native::wrapped_scalar_tensor(s)})[0];
       }},
      {"add_", [s](auto& x, auto&) { return x.clone().add_(s); }, true},
      {"add_ wrapped", [s](auto& x, auto&) { return x.clone().add_(at::native::wrapped_scalar_tensor(s)); }, true},
      {"mul_", [s](auto& x, auto&) { return x.clone().mul_(s); }, true},
      {"mul_ wrapped", [s](auto& x, auto&) { return x.clone().mul_(at::native::wrapped_scalar_tensor(s)); }, true},
      {"div_", [s](auto& x, auto&) { return x.clone().div_(s); }, true},
      {"div_ wrapped", [s](auto& x, auto&) { return x.clone().div_(at::native::wrapped_scalar_tensor(s)); }, true},
      {"fill_", [s](auto& x, auto&) { return x.clone().fill_(s); }, true, true},
      {"zero_", [s](auto& x, auto&) { return x.clone().zero_(); }, true, true},
      {"masked_fill_", [s](auto& x, auto& o) { return x.clone().masked_fill_(o[2], s); }, true, true},
  };
  return list;
}

}  // namespace dtensor::testing
