// Calls in backward whose results nobody needs before its end, as they are gradients of parameters: their inputs move
// together, as eight tables' gradients do that all want the whole batch. Internal.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "dtensor/extend/gradient_bucket.h"
#include "dtensor/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor {

struct LateCall {
  const OpInfo& info;
  Inputs in;
  std::shared_ptr<const Decision> decision;
  // Of the parts of the inputs, where the decision wants them.
  std::function<void(const LateCall& call, const std::vector<RankTensors>& inputs)> compute;
  bool computed = false;
  std::exception_ptr error = nullptr;  // why it was not
};

// Those of one backward. Thread-safe. They are computed in collective calls.
// Errors: those of the communicator and of the operators; a call that was not computed for one gives it again.
class LateCalls final : public LateGradients {
 public:
  static std::shared_ptr<LateCalls> of_backward();
  static std::shared_ptr<LateCalls> find();  // null: none have waited in this backward

  // Those that wait hold and gather no more than kGradientBucketBytes, and are of one world: else they are computed,
  // and so is what is larger than that. REQUIRES: the inputs are there.
  void add(std::shared_ptr<LateCall> call);
  // Somebody is about to write to `t`: calls that read it, or what it is a view of, are computed before.
  void compute_before_write(const at::Tensor& t);
  // All that wait, `call` among them unless it was computed before.
  void compute(const LateCall& call);
  void compute_all() override;

 private:
  void compute_waiting();  // REQUIRES: mutex_ is locked

  std::mutex mutex_;
  std::vector<std::shared_ptr<LateCall>> waiting_;
  int64_t bytes_ = 0;
};

}  // namespace dtensor
