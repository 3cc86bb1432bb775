#include "tests/fuzz/noise.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "tests/fuzz/addends.h"
#include "tests/fuzz/catalog.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/disturb.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/infinities.h"
#include "tests/fuzz/noisy_reads.h"
#include "tests/fuzz/other_loops.h"

namespace dtensor::fuzz {
namespace {

// The tensor, gradient or number of the outcome.
std::vector<double> result_of(const Program& program, const Outcome& outcome, const Execution& run) {
  if (outcome.order == 0) {
    if (const auto found = run.tensors().find(outcome.tensor); found != run.tensors().end())
      return numbers(found->second);
    std::vector<double> values;
    for (const c10::IValue& v : run.values()) {
      if (v.isScalar() && !v.toScalar().isComplex()) values.push_back(v.toScalar().toDouble());
    }
    return values;
  }
  const auto gradients = run.gradients(program, outcome.order);
  if (outcome.tensor < 0 || outcome.tensor >= static_cast<int>(gradients.size())) return {};
  const at::Tensor& g = gradients[outcome.tensor];
  return g.defined() ? numbers(g) : std::vector<double>();
}

// Whether it has several algorithms, some of which give a number of few digits exactly.
bool rounds(const std::string& op) {
  for (const char* part : {"norm",   "dist",      "softmax", "std",           "var",        "logsumexp", "logcumsumexp",
                           "linalg", "det",       "inverse", "svd",           "fft",        "cov",       "corrcoef",
                           "cosine", "attention", "loss",    "cross_entropy", "matrix_exp", "cholesky"}) {
    if (absl::StrContains(op, part)) return true;
  }
  return false;
}

class DisturbedRun {
 public:
  // `swallows`: numbers below the last digit of addends are lost in them. `poisons`: addends next to an infinity are
  // NaN, like those of both signs.
  DisturbedRun(const Program& program, const std::vector<std::map<int, Addends>>& addends, std::mt19937_64& random,
               bool swallows, bool poisons)
      : program_(program), addends_(addends), random_(random), swallows_(swallows), poisons_(poisons) {}

  // Whether it disturbed something that only some of the runs do.
  bool poisoned() const { return poisoned_; }

  // The value that the outcome is about.
  std::vector<double> run(const Outcome& outcome) {
    NoisyReads reads(random_);
    std::optional<Interception> everywhere;
    if (outcome.order > 0) everywhere.emplace(reads.before());
    for (const Leaf& leaf : program_.leaves) plain_.add(leaf);
    for (const auto& [id, addends] : known(0)) {
      mark(id);
      disturb(id, addends.exact ? 0 : addends.scale);
    }
    for (size_t k = 0; k < program_.steps.size(); ++k) {
      for (const auto& [id, addends] : known(k)) {
        const bool exact = addends.exact && outcome.order == 0 && !is_composite(program_.steps[k].op);
        if (const at::Tensor* t = find(id); t != nullptr && !exact) reads.mark(*t, addends.scale);
      }
      run_step(k, reads);
    }
    return result_of(program_, outcome, plain_);
  }

 private:
  const std::map<int, Addends>& known(size_t k) const {
    static const auto* const nothing = new std::map<int, Addends>;
    return k < addends_.size() ? addends_[k] : *nothing;
  }

  const at::Tensor* find(int id) const {
    const auto found = plain_.tensors().find(id);
    return found == plain_.tensors().end() || !found->second.defined() ? nullptr : &found->second;
  }

  void run_step(size_t k, NoisyReads& reads) {
    Step step = program_.steps[k];
    const bool composite = is_composite(step.op);
    if (composite) before_composite(step, k);
    const bool from_addends = any_marked(inputs_of(step));
    {
      std::optional<Interception> within;
      if (!swallows_ && (composite || adds_up_in_half(step))) within.emplace(reads.before());
      plain_.run(step);
    }
    std::set<int> changed;
    for (int id : written_by(step)) changed.insert(id);
    for (int id = step.first_id; id < step.first_id + 32; ++id) changed.insert(id);
    for (int id : changed) {
      const auto found = known(k + 1).find(id);
      const bool partial = found != known(k + 1).end();
      if (from_addends || partial) mark(id);
      disturb(id, partial && !found->second.exact ? found->second.scale : 0, rounds(step.op));
    }
  }

  // Some kernels add in the dtype itself, which has digits for a few numbers.
  bool adds_up_in_half(const Step& step) const {
    const auto inputs = inputs_of(step);
    return std::any_of(inputs.begin(), inputs.end(), [&](int id) {
      const at::Tensor* t = find(id);
      return t != nullptr && c10::isReducedFloatingType(t->scalar_type());
    });
  }

  // By memory, so that views count.
  void mark(int id) {
    if (const at::Tensor* t = find(id))
      marked_.insert(t->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  }
  bool any_marked(const std::vector<int>& ids) const {
    return std::any_of(ids.begin(), ids.end(), [&](int id) { return is_marked(id); });
  }
  bool is_marked(int id) const {
    const at::Tensor* t = find(id);
    return t != nullptr && marked_.count(t->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) > 0;
  }

  // `scale`: of the addends that determine the rounding; 0: only that of the value itself.
  void disturb(int id, double scale, bool always = false) {
    if (const at::Tensor* t = find(id)) fuzz::disturb(*t, {scale, is_marked(id), always}, random_);
  }

  // Composites round in between, in addends of the size of their arguments, whatever the result's size.
  void before_composite(Step& step, size_t k) {
    double swallowed = 0;
    for (int id : inputs_of(step)) {
      const auto found = known(k).find(id);
      const at::Tensor* t = find(id);
      if (t == nullptr || !is_number(*t)) continue;
      if (found == known(k).end()) {
        disturb(id, 1e-6);  // its sums are of parts, whatever the layout, and differences of them are all rounding
        continue;
      }
      if (!swallows_ && !poisons_) disturb(id, found->second.scale);
      swallowed = std::max(swallowed, last_digit(t->scalar_type()) * found->second.scale);
      if (poisons_) poison(id, step);
    }
    for (Argument& a : step.args) {
      if (auto* number = std::get_if<double>(&a); number && swallows_ && std::abs(*number) <= swallowed) *number = 0;
    }
  }

  void poison(int id, const Step& step) {
    const at::Tensor& t = *find(id);
    auto values = numbers(t);
    for (int other : inputs_of(step)) {
      const at::Tensor* beside = find(other);
      if (other == id || beside == nullptr || !has_infinity(*beside)) continue;
      const auto theirs = numbers(*beside);
      for (size_t i = 0; i < values.size(); ++i) {
        if (theirs.size() != values.size() || std::isinf(theirs[i])) values[i] = NAN;
      }
      poisoned_ = true;
    }
    if (poisoned_) write(t, values);
  }

  const Program& program_;
  const std::vector<std::map<int, Addends>>& addends_;
  std::mt19937_64& random_;
  const bool swallows_, poisons_;
  bool poisoned_ = false;
  Execution plain_;
  std::set<const void*> marked_;
};

// A norm of order 0 counts non-zeros; an eps added before ensures them, unless it is lost in the digits of addends,
// which only some inputs may be.
bool counts_lost_eps(const Step& step, const std::map<int, Addends>& known, double digit) {
  double order = 1, eps = 0, scale = 0;
  const auto& arguments = step.op == kRedistribute ? std::vector<c10::Argument>() : schema_of(step).arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    const auto* number = std::get_if<double>(&step.args[a]);
    if (number != nullptr && arguments[a].name() == "p") order = *number;
    if (number != nullptr && arguments[a].name() == "eps") eps = std::abs(*number);
  }
  for (int id : inputs_of(step)) {
    if (const auto found = known.find(id); found != known.end()) scale = std::max(scale, found->second.scale);
  }
  return order == 0 && eps > 0 && eps < digit * scale;
}

bool any_differs(const std::vector<double>& disturbed, const std::vector<double>& exact, double tolerance) {
  if (disturbed.size() != exact.size()) return true;
  const double scale = scale_of(exact);
  for (size_t i = 0; i < exact.size(); ++i) {
    if (differs(disturbed[i], exact[i], scale, tolerance)) return true;
  }
  return false;
}

std::string first_line(const c10::Error& e) {
  const std::string text = e.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

// Whether plain LibTorch is inconsistent about elementwise operators, products, sums and infinite complex numbers.
bool differs_in_other_loops(const Program& program, const Outcome& outcome, const std::vector<double>& exact,
                            double tolerance) {
  for (const Loops loops : {Loops::kElements, Loops::kVectors, Loops::kSmallestFirst, Loops::kLargestFirst,
                            Loops::kCancelled, Loops::kNaNHalves, Loops::kInfiniteHalves}) {
    const Interception guard(in_other_loops(loops));
    Execution plain;
    try {
      for (const Leaf& leaf : program.leaves) plain.add(leaf);
      for (const Step& step : program.steps) plain.run(step);
      if (any_differs(result_of(program, outcome, plain), exact, tolerance)) return true;
    } catch (const std::exception&) {  // UndefinedResult: not asked about
    }
  }
  return false;
}

}  // namespace

bool unstable(const Program& whole, const Outcome& outcome) {
  Program program = whole;
  if (outcome.order == 0) program.steps.resize(std::min(program.steps.size(), outcome.step + 1));
  const auto addends = addends_of(program);
  Execution plain;
  double tolerance = 0;
  std::vector<double> exact;
  try {
    for (const Leaf& leaf : program.leaves) plain.add(leaf);
    for (const Step& step : program.steps) plain.run(step);
    for (const auto& [id, t] : plain.tensors())
      tolerance = t.defined() ? std::max(tolerance, tolerance_of(t.scalar_type())) : tolerance;
    exact = result_of(program, outcome, plain);
    const auto found = plain.tensors().find(outcome.order == 0 ? outcome.tensor : -1);
    if (found != plain.tensors().end() && c10::isIntegralType(found->second.scalar_type(), true)) tolerance = 0;
  } catch (const std::exception&) {
    return false;
  }
  const bool refused = outcome.kind == Kind::kRefused;
  for (size_t k = 0; !refused && k < std::min(program.steps.size(), addends.size()); ++k) {
    const bool half = tolerance > 1e-2;
    const double digit = last_digit(half ? c10::ScalarType::BFloat16 : c10::ScalarType::Float);
    if (counts_lost_eps(program.steps[k], addends[k], digit)) return true;
  }
  if (!refused && differs_in_other_loops(program, outcome, exact, tolerance / 4)) return true;
  std::mt19937_64 random(1);
  // Two results may be off to either side. Half types do not have fewer digits than that.
  const double enough = tolerance / (tolerance < 1e-2 ? 4 : 2);
  constexpr int kRuns = 21;  // one sign is the same in all of them once in a million times
  for (int run = 0; run < kRuns; ++run) {
    DisturbedRun disturbed(program, addends, random, /*swallows=*/run % 2 == 1, /*poisons=*/run == kRuns - 1);
    try {
      const auto values = disturbed.run(outcome);
      if (!refused && any_differs(values, exact, enough)) return true;
    } catch (const c10::Error& e) {  // plain LibTorch rejects it, too, or does not define it
      if (refused ? absl::StrContains(outcome.message, first_line(e)) : !disturbed.poisoned()) return true;
    } catch (const std::exception&) {
      if (!refused && !disturbed.poisoned()) return true;
    }
  }
  return false;
}

}  // namespace dtensor::fuzz
