#include "dtensor/dispatch/internal/report_work.h"

#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/report_flops.h"
#include "plan/largest_part.h"

namespace dtensor::internal {

void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  if (current_scope().listeners.empty() || !decision.rule->flops) return;
  const OpCall call = make_call(info, in, args).without_outs();
  const Flops flops = decision.rule->flops(call);
  if (!flops) return;
  std::vector<Shape> whole(call.inputs.size()), parts(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    whole[i] = Shape(call.inputs[i]->sizes().begin(), call.inputs[i]->sizes().end());
    parts[i] = largest_part(call.inputs[i]->sizes(), in.mesh.shape(), decision.computed[i]->placements());
  }
  report_flops(info.name, module_path(in), in.mesh, flops(parts), flops(whole));
}

}  // namespace dtensor::internal
