#include "dtensor/dispatch/report_flops.h"

#include <vector>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/tensor/module_of_call.h"
#include "plan/largest_part.h"

namespace dtensor::internal {

void report_flops(const std::string& op, const std::string& module_path, const DeviceMesh& mesh, double of_rank,
                  double of_one) {
  const auto& listeners = current_scope().listeners;
  if (listeners.empty() || of_one == 0) return;
  WorkEvent event{op, module_path, in_backward()};
  event.flops = of_rank;
  event.whole_flops = of_one;
  event.ranks = mesh.size();
  for (CommListener* listener : listeners) listener->on_work(event);
}

void report_flops(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  if (current_scope().listeners.empty() || !decision.rule->flops) return;
  const OpCall call = make_call(info, in, args).without_outs();
  const Flops flops = decision.rule->flops(call);
  if (!flops) return;
  std::vector<Shape> whole(call.inputs.size()), parts(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    whole[i] = call.inputs[i]->sizes();
    parts[i] = largest_part(call.inputs[i]->sizes(), in.mesh.shape(), decision.computed[i]->placements());
  }
  report_flops(info.name, module_of_call(in.tensors), in.mesh, flops(parts), flops(whole));
}

}  // namespace dtensor::internal
