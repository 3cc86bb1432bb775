// Brute force over dtypes x kinds of Partial x operators that pass Partials: the operator on addends, then reduced,
// equals plain ATen's operator on the reduced value. Addends have both signs, are near the limits of their types, and
// one rank may hold the neutral element of an empty part. There are about 55,000 comparisons; the short form
// makes a fifth of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/ops/partial_operators.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/long_tests.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using at::ScalarType;

constexpr ScalarType kTypes[] = {at::kBool,  at::kByte,   at::kChar,         at::kShort,
                                 at::kInt,   at::kLong,   at::kHalf,         at::kBFloat16,
                                 at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
constexpr ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};

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

// The operands of one setting. Beside the addends: others, the same on all ranks, plain and distributed.
struct Operands {
  Operands(const Setting& s, const Tensors& beside)
      : setting(s),
        parts(addends(s.type, s.kind, s.ranks, s.variant, s.empty)),
        value(reduced(parts, s.kind)),
        plain(beside) {
    for (const at::Tensor& t : plain) split.push_back(lay_out(t, mesh_of(s.ranks), {Replicate()}));
  }
  Setting setting;
  Tensors parts;
  at::Tensor value;  // the addends, reduced
  Tensors plain, split;
};

// `beside`: the other operand, for messages.
void compare(const Operation& operation, const Operands& o, const std::string& beside, Log& log) {
  const Setting& s = o.setting;
  at::Tensor expected;
  try {
    LocalGuard guard;
    expected = operation.fn(o.value, o.plain);
    // Tensors are assumed to be finite: one with infinities is not combined with itself.
    if (s.variant == 1 && at::isFloatingType(s.type) && operation.beside_itself) return;
  } catch (const std::exception&) {
    return;  // ATen itself rejects it
  }
  const std::string where = c10::str(operation.name, beside, " on ", s.type, " P(", to_string(s.kind), ") of ", s.ranks,
                                     s.variant == 1 ? ", limits" : "", s.empty ? ", empty part" : "");
  log.compared();
  try {
    const at::Tensor got = operation.fn(made(o.parts, mesh_of(s.ranks), Partial(s.kind)), o.split);
    const at::Tensor full = full_tensor(got);
    if (!close(full, expected, s.type)) log.add(where + ": " + text(full) + " | ATen " + text(expected));
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const bool refused = what.find("in-place operations that require placement changes") != std::string::npos;
    if (operation.in_place && refused && !operation.must_work) return;
    log.add(where + ": " + what.substr(0, 300));
  }
}

// Whether operator k of a list is compared with the operands of that number. Dtypes have six settings or more, one
// after the other, so each operator meets every dtype.
bool is_compared(size_t k, int64_t number) { return long_tests() || (static_cast<int64_t>(k) + number) % 5 == 0; }

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
  int64_t number = 0;
  each_setting([&](const Setting& s) {
    const Operands o(s, {});
    for (size_t k = 0; k < list.size(); ++k) {
      if (is_compared(k, number)) compare(list[k], o, "", log);
    }
    ++number;
  });
}

TEST_CASE("Operators on Partials with tensors, of every pair of dtypes and kind", "[partial_dtypes]") {
  Log log;
  const auto list = binary();
  int64_t turn = 0;
  each_setting([&](const Setting& s) {
    for (const ScalarType other : kTypes) {
      if (++turn % 5 != 0) continue;  // a sample, for time: every pair of dtypes with some kind
      const Operands o(s, operands(other));
      for (size_t k = 0; k < list.size(); ++k) {
        // Divisors are assumed to have no zeros; bools have some.
        if (other == at::kBool && (list[k].name == "div" || list[k].name == "div_")) continue;
        if (is_compared(k, turn / 5)) compare(list[k], o, c10::str(" beside ", other), log);
      }
    }
  });
}

TEST_CASE("Operators on Partials with numbers, finite and not", "[partial_dtypes]") {
  Log log;
  const std::vector<at::Scalar> numbers = {true, 3, -2, 0, 2.5, 0.0, kInf, -kInf, c10::complex<double>(1, 2)};
  int64_t turn = 0;
  each_setting([&](const Setting& s) {
    const Operands o(s, operands(s.type));
    for (const auto& number : numbers) {
      if (++turn % 2 != 0) continue;  // a sample, for time
      // Complex infinities are not averages or products: (inf, 0) / 2 is (inf, nan).
      if (at::isComplexType(s.type) && number.isFloatingPoint() && std::isinf(number.toDouble())) continue;
      const auto list = with_number(number);
      for (size_t k = 0; k < list.size(); ++k) {
        if (is_compared(k, turn / 2)) compare(list[k], o, c10::str(" ", number), log);
      }
    }
  });
}

}  // namespace dtensor::testing
