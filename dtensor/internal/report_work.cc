#include "dtensor/internal/report_work.h"

#include <utility>
#include <vector>

#include "comm/scope.h"
#include "comm/work_event.h"

namespace dtensor {
namespace {

// Of the first rank, which holds the largest part.
Shape largest_part(const Spec& spec) {
  return local_shape(spec.sizes(), spec.mesh().shape(), spec.placements(), Shape(spec.placements().size(), 0));
}

}  // namespace

void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  const auto& listeners = current_scope().listeners;
  if (listeners.empty() || !decision.rule->flops) return;
  const OpCall call = make_call(info, in, args, nullptr).without_outs();
  std::vector<Shape> whole(call.inputs.size()), parts(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    whole[i] = Shape(call.inputs[i]->sizes().begin(), call.inputs[i]->sizes().end());
    parts[i] = largest_part(*decision.computed[i]);
  }
  WorkEvent event{info.name, module_path(in), in_backward()};
  event.whole_flops = decision.rule->flops(call, whole);
  if (event.whole_flops == 0) return;
  event.flops = decision.rule->flops(call, parts);
  for (const int64_t n : in.mesh.shape()) event.ranks *= n;
  for (CommListener* listener : listeners) listener->on_work(event);
}

}  // namespace dtensor
