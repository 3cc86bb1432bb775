#include "dtensor/dispatch/report_flops.h"

#include "comm/scope.h"
#include "comm/work_event.h"

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

}  // namespace dtensor::internal
