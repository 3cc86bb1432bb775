#include "tests/fuzz/run.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "tests/fuzz/catalog.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/infinities.h"
#include "tests/fuzz/noise.h"
#include "tests/fuzz/refusals.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

// nullopt: nothing was thrown.
std::optional<std::string> error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return std::string(e.what());
  }
  return std::nullopt;
}

constexpr char kNotFinite[] = "not finite", kValue[] = "value", kSizes[] = "has sizes";

// Whether the elements have the same order in memory. The stride of a dim of one element does not count.
bool same_steps(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim() && a.numel() > 0; ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// The wrong properties of a tensor.
std::string what_differs(const std::string& message) {
  for (const char* what : {"is a plain tensor", "has dtype", kSizes, "has strides", "require grad", "requires grad",
                           "undefined", "not there", "says"}) {
    if (absl::StrContains(message, what)) return what;
  }
  for (const char* what : {"is nan", "should be nan", "inf,", "should be inf", "should be -inf"}) {
    if (absl::StrContains(message, what)) return kNotFinite;
  }
  return kValue;
}

class Comparison {
 public:
  explicit Comparison(const Program& program)
      : program_(program), plain_(program_device()), distributed_(mesh_of(program.mesh)) {}

  Outcome run() {
    for (const Leaf& leaf : program_.leaves) add(leaf);
    for (size_t k = 0; k < program_.steps.size() && outcome_.kind == Kind::kPass; ++k) step(k);
    for (int order = 1; order <= program_.order && outcome_.kind == Kind::kPass; ++order) gradients(order);
    if (outcome_.kind == Kind::kWrong) judge();
    if (outcome_.kind == Kind::kRefused && unstable(program_, outcome_)) outcome_.kind = Kind::kUnstable;
    return outcome_;
  }

 private:
  void add(const Leaf& leaf) {
    tolerance_ = std::max(tolerance_, tolerance_of(leaf.dtype));
    plain_.add(leaf);
    distributed_.add(leaf);
  }

  // Values, and data-dependent sizes, may differ for a reason.
  void judge() {
    const std::string what = what_differs(outcome_.message);
    if (what != kValue && what != kNotFinite && what != kSizes) return;
    if (reads_as_nan() && has_partials() && meets_infinities(program_, outcome_.step + 1, outcome_.order)) {
      outcome_.kind = Kind::kDocumented;
    } else if (unstable(program_, outcome_)) {
      outcome_.kind = Kind::kUnstable;
    }
  }

  bool reads_as_nan() const { return absl::StrContains(outcome_.message, "is nan, should be"); }

  // Whether there are Partials: some of their differences are documented.
  bool has_partials() const {
    if (outcome_.order > 0) return true;  // the backward of a broadcast leaves some
    // So may a sum inside a composite, along a split dim.
    const bool composite = is_composite(outcome_.op);
    for (const auto& [id, t] : distributed_.tensors()) {
      if (is_dtensor(t) && (spec_of(t)->has_partial() || (composite && !spec_of(t)->is_replicated()))) return true;
    }
    return false;
  }

  void fail(Kind kind, const std::string& message) {
    outcome_.kind = kind;
    outcome_.message = message;
  }

  void step(size_t k) {
    const Step& s = program_.steps[k];
    outcome_.op = s.op;
    outcome_.step = k;
    outcome_.tensor = -1;
    if (computes_in_float(s)) tolerance_ = std::max(tolerance_, tolerance_of(c10::ScalarType::Float));
    if (auto error = error_of([&] { plain_.run(s); })) return fail(Kind::kInvalid, *error);
    if (auto error = error_of([&] { run_distributed(s); })) return refused(*error);
    for (const auto& [id, t] : plain_.tensors()) {
      if (t.defined()) tolerance_ = std::max(tolerance_, tolerance_of(t.scalar_type()));
    }
    compare_values();
    for (const auto& [id, t] : plain_.tensors()) {
      if (outcome_.kind != Kind::kPass) return;
      outcome_.tensor = id;
      compare(id, t);
    }
  }

  // Integers alone are computed in the default dtype, and then converted to that of out=, however wide that is.
  bool computes_in_float(const Step& s) const {
    if (s.op == kRedistribute) return false;
    const auto& arguments = schema_of(s).arguments();
    bool to_floating = false;
    for (size_t a = 0; a < arguments.size(); ++a) {
      const auto* ref = std::get_if<TensorRef>(&s.args[a]);
      const auto found = plain_.tensors().find(ref == nullptr ? -1 : ref->id);
      if (found == plain_.tensors().end() || !found->second.defined()) continue;
      const bool floating = !c10::isIntegralType(found->second.scalar_type(), true);
      if (floating && !arguments[a].is_out()) return false;
      to_floating = to_floating || floating;
    }
    return to_floating;
  }

  void run_distributed(const Step& s) {
    std::optional<ReplicateUnsupported> scope;
    if (program_.replicate_unsupported) scope.emplace();
    distributed_.run(s);
  }

  void refused(const std::string& error) {
    fail(reason_to_refuse(outcome_.op, error) ? Kind::kDocumented : Kind::kRefused, error);
  }

  void compare_values() {
    if (plain_.values().size() != distributed_.values().size())
      return fail(Kind::kWrong, "returns another number of values");
    for (size_t k = 0; k < plain_.values().size(); ++k) {
      const c10::IValue &actual = distributed_.values()[k], &expected = plain_.values()[k];
      if (!expected.isScalar()) continue;
      if (!actual.isScalar()) return fail(Kind::kWrong, "returns something else than a number");
      if (!expected.toScalar().isComplex() && !actual.toScalar().isComplex()) {
        const double e = expected.toScalar().toDouble(), a = actual.toScalar().toDouble();
        if (differs(a, e, std::isfinite(e) ? std::abs(e) : 0, tolerance_)) {
          return fail(Kind::kWrong, absl::StrCat("returns ", a, ", should return ", e));
        }
      }
    }
  }

  // Reading may fail: a copied view is taken again if its base was written to.
  std::optional<std::string> wrong_with(const at::Tensor& actual, const at::Tensor& expected) {
    ++outcome_.compared;
    std::optional<std::string> wrong;
    if (auto error = error_of([&] { wrong = difference(actual, expected, tolerance_); })) refused(*error);
    return wrong;
  }

  void compare(int id, const at::Tensor& expected) {
    const auto found = distributed_.tensors().find(id);
    const std::string name = absl::StrCat("t", id);
    if (found == distributed_.tensors().end()) return fail(Kind::kWrong, name + " is not there");
    const at::Tensor& actual = found->second;
    if (actual.defined() != expected.defined())
      return fail(Kind::kWrong, name + (actual.defined() ? " is defined" : " is undefined"));
    if (!expected.defined()) return;
    if (auto wrong = wrong_with(actual, expected)) return fail(Kind::kWrong, absl::StrCat(name, " ", *wrong));
    if (!same_steps(actual, expected))
      return fail(Kind::kWrong,
                  c10::str(name, " has strides ", actual.strides(), ", should have ", expected.strides()));
    if (outcome_.kind == Kind::kPass && actual.requires_grad() != expected.requires_grad()) {
      fail(Kind::kWrong, absl::StrCat(name, actual.requires_grad() ? " requires grad" : " does not require grad"));
    }
  }

  // The gradient of a leaf that has none may also be zero.
  void gradients(int order) {
    outcome_.order = order;
    outcome_.step = program_.steps.size();
    std::vector<at::Tensor> expected, actual;
    if (error_of([&] { expected = plain_.gradients(program_, order); })) return;
    if (auto error = error_of([&] { actual = distributed_gradients(order); })) return refused(*error);
    if (expected.empty()) return;
    if (actual.size() != expected.size()) return fail(Kind::kWrong, "there are no gradients");
    for (size_t k = 0; k < expected.size() && outcome_.kind == Kind::kPass; ++k) {
      outcome_.tensor = static_cast<int>(k);
      const std::string name = absl::StrCat("gradient ", k, order == 2 ? " of second order " : " ");
      if (!actual[k].defined() && !expected[k].defined()) continue;
      if (!actual[k].defined()) {
        if (scale_of(numbers(expected[k])) > 0) fail(Kind::kWrong, name + "is undefined");
        continue;
      }
      const at::Tensor want = expected[k].defined()    ? expected[k]
                              : actual[k].numel() == 0 ? at::Tensor()
                                                       : zeros_for(actual[k]);
      if (!want.defined()) continue;
      if (auto wrong = wrong_with(actual[k], want)) fail(Kind::kWrong, name + *wrong);
      if (outcome_.kind == Kind::kPass && expected[k].defined() && expected[k].requires_grad() &&
          !actual[k].requires_grad() && order == 1 && program_.order == 2 && depends_on_leaves(expected[k])) {
        fail(Kind::kWrong, name + "does not require grad");
      }
    }
  }

  // A formula for several gradients makes each depend on all its inputs, though the derivative may be 0.
  bool depends_on_leaves(const at::Tensor& gradient) const {
    std::vector<at::Tensor> leaves;
    for (const Leaf& leaf : program_.leaves) {
      const at::Tensor& t = plain_.tensors().at(leaf.id);
      if (t.requires_grad()) leaves.push_back(t);
    }
    const auto derivatives = torch::autograd::grad({gradient}, leaves, {at::ones_like(gradient)}, /*retain_graph=*/true,
                                                   /*create_graph=*/false, /*allow_unused=*/true);
    return std::any_of(derivatives.begin(), derivatives.end(),
                       [](const at::Tensor& d) { return d.defined() && scale_of(numbers(d)) > 0; });
  }

  std::vector<at::Tensor> distributed_gradients(int order) {
    std::optional<ReplicateUnsupported> scope;
    if (program_.replicate_unsupported) scope.emplace();
    return distributed_.gradients(program_, order);
  }

  static at::Tensor zeros_for(const at::Tensor& t) {
    return at::zeros(t.sizes(), at::TensorOptions(t.scalar_type()).device(program_device()));
  }

  const Program& program_;
  Execution plain_, distributed_;
  double tolerance_ = 0;
  Outcome outcome_;
};

// A text without the parts that differ between programs: numbers, and text in brackets.
std::string gist(const std::string& text) {
  std::string result;
  for (char c : text.substr(0, text.find('\n'))) {
    if (result.size() == 70) break;
    if (c == '[' || c == '(') break;
    if (!std::isdigit(static_cast<unsigned char>(c))) result += c;
  }
  return result;
}

}  // namespace

const char* to_string(Kind kind) {
  static const char* const names[] = {"pass", "invalid", "documented", "unstable", "refused", "wrong", "crash"};
  return names[static_cast<int>(kind)];
}

Outcome run(const Program& program) { return Comparison(program).run(); }

std::string signature(const Outcome& outcome) {
  const char* where[] = {"", " gradient", " second order"};
  std::string why;
  if (outcome.kind == Kind::kRefused) why = gist(outcome.message);
  if (outcome.kind == Kind::kWrong) why = what_differs(outcome.message);
  // One cause, for all operators.
  if (why == kNotFinite) return absl::StrCat(to_string(outcome.kind), where[outcome.order], ": ", why);
  return absl::StrCat(to_string(outcome.kind), where[outcome.order], " ", outcome.op, why.empty() ? "" : ": ", why);
}

bool same_finding(const Outcome& a, const Outcome& b) { return signature(a) == signature(b); }

}  // namespace dtensor::fuzz
