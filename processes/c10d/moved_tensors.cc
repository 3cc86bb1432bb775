#include "processes/c10d/moved_tensors.h"

#include <utility>

namespace dtensor::internal {

int64_t MovedTensors::move(int64_t call, const at::Tensor& part) {
  const c10::TensorImpl* const moved = part.defined() ? part.unsafeGetTensorImpl() : nullptr;
  const c10::TensorImpl* const oldest = std::exchange(of_calls_[call % kCalls], moved);
  if (const auto it = last_.find(oldest); it != last_.end() && it->second.call == call - kCalls) last_.erase(it);
  if (moved == nullptr) return 0;
  const auto [it, is_new] = last_.try_emplace(moved, Moved{WeakPart(part.getIntrusivePtr()), 0});
  return std::exchange(it->second.call, call);
}

}  // namespace dtensor::internal
