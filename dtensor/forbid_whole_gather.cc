#include "dtensor/forbid_whole_gather.h"

#include <c10/util/Exception.h>

#include "comm/module_text.h"
#include "plan/redistribute_plan.h"
#include "plan/transfer/schedule.h"

namespace dtensor {
using namespace internal;

namespace {

// Whether ranks hold parts before, and each rank the whole tensor after. Not so for reducing a Partial: each rank held
// as much before.
bool gathers_whole(const RedistributePlan& plan) {
  if (plan.from.is_boxes() || plan.to.is_boxes() || plan.is_local()) return false;
  const auto any = [](const Layout& layout, const auto& is) {
    for (int64_t m = 0; m < layout.mesh().ndim(); ++m) {
      if (layout.mesh().size(m) > 1 && is(layout.placements()[m])) return true;
    }
    return false;
  };
  return any(plan.from, [](const Placement& p) { return p.is_sharded(); }) &&
         !any(plan.to, [](const Placement& p) { return !p.is_replicate(); });
}

}  // namespace

// Registered among the listeners of a scope, as contracts on communication are, but called with whole plans: for
// several tensors sent together, an event names only the first.
class ForbidWholeGather::Limit final : public CommListener {
 public:
  explicit Limit(int64_t max_bytes) : max_bytes_(max_bytes) {}
  void on_comm(const CommEvent&, bool) override {}
  void check(const RedistributePlan& plan, const CommCause& cause) const;

 private:
  const int64_t max_bytes_;
};

void ForbidWholeGather::Limit::check(const RedistributePlan& plan, const CommCause& cause) const {
  if (!cause.implicit || plan.tensor.bytes() <= max_bytes_ || !gathers_whole(plan)) return;
  TORCH_CHECK(false, cause.op.empty() ? "redistribute" : cause.op, ": ",
              cause.argument.empty() ? "" : "argument '" + cause.argument + "' ", "would be gathered to every rank, ",
              plan.tensor.bytes(), " bytes: ", to_string(*layout_change_of(plan)),
              cause.module_path.empty() ? "" : ", " + in_module(cause.module_path, "in module '", "'"),
              in_backward() ? ", in backward" : "", ". ForbidWholeGather allows ", max_bytes_,
              " bytes. Give it a layout that the operator computes in (Shard of a dim that it treats as a batch), "
              "gather it where you mean to, redistribute(t, {Replicate(), ...}), or raise the limit.");
}

ForbidWholeGather::ForbidWholeGather(int64_t max_bytes)
    : limit_(std::make_unique<Limit>(max_bytes)), guard_([this, max_bytes](Scope& s) {
        TORCH_CHECK_VALUE(max_bytes >= 0, "[ForbidWholeGather] max_bytes is ", max_bytes,
                          "; give the bytes of the largest tensor that may be gathered to every rank, at least 0");
        s.listeners.push_back(limit_.get());
      }) {}

void ForbidWholeGather::check(const RedistributePlan& plan, const CommCause& cause) {
  for (const CommListener* listener : current_scope().listeners) {
    if (const auto* limit = dynamic_cast<const Limit*>(listener)) limit->check(plan, cause);
  }
}

}  // namespace dtensor
