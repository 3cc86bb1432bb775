#include "tests/fuzz/infinities.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>

#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"

namespace dtensor::fuzz {
namespace {

thread_local bool met = false;

// The inputs of an operator are leaves or results of other operators.
void look_at_outputs(const at::RecordFunction& call, at::ObserverContext*) {
  if (met) return;
  at::DisableRecordFunctionGuard guard;
  for (const c10::IValue& value : call.outputs()) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    met = met || value.toTensor()._is_zerotensor() || has_infinity(value.toTensor());
  }
}

// Called for every operator on this thread.
class Observer {
 public:
  Observer() : handle_(at::addThreadLocalCallback(callback())) {}
  ~Observer() { at::removeCallback(handle_); }

 private:
  static at::RecordFunctionCallback callback() {
    const auto nothing = [](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); };
    at::RecordFunctionCallback all(nothing, look_at_outputs);
    all.needsOutputs(true).scopes({at::RecordScope::FUNCTION});
    return all;
  }

  at::CallbackHandle handle_;
};

}  // namespace

bool has_infinity(const at::Tensor& t) {
  if (!t.defined() || t.layout() != at::kStrided || !(t.is_floating_point() || t.is_complex())) return false;
  const auto values = numbers(t);
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isinf(v); });
}

bool has_nan(const at::Tensor& t) {
  if (!t.defined() || !(t.is_floating_point() || t.is_complex())) return false;
  const auto values = numbers(t);
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

bool meets_infinities(const Program& program, size_t steps, int order) {
  met = false;
  Execution plain;
  try {
    for (const Leaf& leaf : program.leaves) plain.add(leaf), met = met || has_infinity(value_of(leaf));
    const Observer observer;
    for (size_t k = 0; k < std::min(steps, program.steps.size()); ++k) plain.run(program.steps[k]);
    for (int k = 1; k <= order; ++k) plain.gradients(program, k);
  } catch (const std::exception&) {  // errors of earlier calls count
  }
  return met;
}

}  // namespace dtensor::fuzz
