#include "tests/fuzz/noisy_reads.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <set>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/disturb.h"

namespace dtensor::fuzz {
namespace {

constexpr int64_t kMostWatchedElements = 2000;

const c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

std::vector<at::Tensor> watched_tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> all;
  if (value.isTensor()) all = {value.toTensor()};
  if (value.isTensorList()) all = value.toTensorVector();
  std::erase_if(all, [](const at::Tensor& t) {
    return !t.defined() || t._is_zerotensor() || t.layout() != at::kStrided || !is_number(t) ||
           t.numel() > kMostWatchedElements;
  });
  return all;
}

bool is_view(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(),
                     [](const auto& r) { return r.alias_info() != nullptr && !r.alias_info()->isWrite(); });
}

// The largest magnitude in any of them.
double largest(const std::vector<at::Tensor>& tensors) {
  double scale = 0;
  for (const at::Tensor& t : tensors) scale = std::max(scale, scale_of(numbers(t)));
  return scale;
}

// Restored after reading.
struct Kept {
  at::Tensor t, values;
};

}  // namespace

void NoisyReads::mark(const at::Tensor& t, double scale) {
  auto& [memory, known] = marks_[storage_of(t)];
  memory = t.unsafeGetTensorImpl()->unsafe_storage();
  known = std::max(known, scale);
}

double NoisyReads::scale_of_addends(const at::Tensor& t) const {
  const auto found = marks_.find(storage_of(t));
  return found == marks_.end() ? 0 : found->second.second;
}

BeforeCall NoisyReads::before() {
  return [this](const c10::OperatorHandle& op, const torch::jit::Stack& arguments) { return read(op, arguments); };
}

AfterCall NoisyReads::read(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const auto& schema = op.schema();
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || is_view(schema)) return nullptr;
  std::set<const c10::StorageImpl*> written;
  for (size_t a = 0; a < arguments.size(); ++a) {
    const auto* alias = schema.arguments()[a].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for (const at::Tensor& t : watched_tensors_in(arguments[a])) written.insert(storage_of(t));
  }
  std::vector<Kept> kept;
  std::vector<at::Tensor> addends;
  double scale = 0;
  for (const c10::IValue& value : arguments) {
    for (const at::Tensor& t : watched_tensors_in(value)) {
      const double own = scale_of_addends(t);
      scale = std::max(scale, own);
      if (own > 0) addends.push_back(t);
      if (written.count(storage_of(t)) == 0) kept.push_back({t, t.variable_data().clone()});
    }
  }
  const double before = largest(addends);
  for (const Kept& k : kept) {
    const double own = scale_of_addends(k.t);
    disturb(k.t, {.scale = own, .signs = own > 0, .added_up = true}, random_);
  }
  return [this, kept, scale, before](const torch::jit::Stack& results) {
    for (const Kept& k : kept) {
      try {
        k.t.variable_data().copy_(k.values);
      } catch (const c10::Error&) {  // several elements share memory: they were not disturbed
      }
    }
    for (const c10::IValue& value : results) {
      for (const at::Tensor& t : watched_tensors_in(value)) {
        // Addends are multiplied as their sum is.
        const double gain = before > 0 ? std::max(1., largest({t}) / before) : 1;
        if (scale > 0) mark(t, scale * gain);
      }
    }
  };
}

}  // namespace dtensor::fuzz
