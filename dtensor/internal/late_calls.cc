#include "dtensor/internal/late_calls.h"

#include <algorithm>
#include <utility>

#include "dtensor/extend/view_origin.h"
#include "dtensor/internal/input_moves.h"
#include "plan/largest_part.h"

namespace dtensor {
namespace {

// What the inputs hold, and take once they have moved: of the largest parts.
int64_t bytes_of(const LateCall& call) {
  int64_t bytes = 0;
  for (size_t k = 0; k < call.in.tensors.size(); ++k) {
    if (!call.in.tensors[k].defined()) continue;
    if (const auto& plan = call.decision->input_plans[k]) {
      bytes += largest_part_bytes(plan->tensor, plan->from) + largest_part_bytes(plan->tensor, plan->to);
    } else {
      bytes += spec_of(call.in.tensors[k])->max_local_bytes();
    }
  }
  return bytes;
}

}  // namespace

std::shared_ptr<LateCalls> LateCalls::of_backward() {
  return std::static_pointer_cast<LateCalls>(late_gradients([] { return std::make_shared<LateCalls>(); }));
}

std::shared_ptr<LateCalls> LateCalls::find() { return std::static_pointer_cast<LateCalls>(late_gradients({})); }

void LateCalls::add(std::shared_ptr<LateCall> call) {
  std::lock_guard lock(mutex_);
  const int64_t bytes = bytes_of(*call);
  const bool fits = bytes_ + bytes <= kGradientBucketBytes;
  if (!fits || (!waiting_.empty() && !(waiting_.front()->in.mesh.world() == call->in.mesh.world()))) compute_waiting();
  bytes_ += bytes;
  waiting_.push_back(std::move(call));
  if (bytes_ > kGradientBucketBytes) compute_waiting();
}

void LateCalls::compute_before_write(const at::Tensor& t) {
  std::lock_guard lock(mutex_);
  const LocalStorage* written = memory_viewed_by(t);
  const auto reads_it = [&](const std::shared_ptr<LateCall>& call) {
    return std::any_of(call->in.tensors.begin(), call->in.tensors.end(),
                       [&](const at::Tensor& in) { return in.defined() && memory_viewed_by(in) == written; });
  };
  if (std::any_of(waiting_.begin(), waiting_.end(), reads_it)) compute_waiting();
}

void LateCalls::compute(const LateCall& call) {
  std::lock_guard lock(mutex_);
  if (!call.computed && call.error == nullptr) compute_waiting();
  if (call.error != nullptr) std::rethrow_exception(call.error);
}

void LateCalls::compute_all() {
  std::lock_guard lock(mutex_);
  compute_waiting();
}

void LateCalls::compute_waiting() {
  const auto calls = std::exchange(waiting_, {});
  bytes_ = 0;
  if (calls.empty()) return;
  try {
    std::vector<InputsOfCall> inputs;
    for (const auto& call : calls) inputs.push_back({call->info, *call->decision, call->in});
    std::vector<std::vector<RankTensors>> moved = move_inputs(inputs);
    for (size_t c = 0; c < calls.size(); ++c) {
      calls[c]->compute(*calls[c], moved[c]);
      calls[c]->computed = true;
      calls[c]->compute = nullptr;  // what it holds is let go, call by call
      calls[c]->in = {};
      moved[c].clear();
    }
  } catch (...) {
    for (const auto& call : calls) {
      if (!call->computed) call->error = std::current_exception();
    }
    throw;
  }
}

}  // namespace dtensor
