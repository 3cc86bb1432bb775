#include "comm/work_event.h"

#include "comm/scope.h"

namespace dtensor::internal {

void report(const WorkEvent& event) {
  for (CommListener* listener : current_scope().listeners) listener->on_work(event);
}

}  // namespace dtensor::internal
