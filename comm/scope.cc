#include "comm/scope.h"

#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "comm/recompute_guard.h"

namespace dtensor::internal {
namespace {

// Set before main by a static object, hence a constant at first.
using MakeListener = CommListener* (*)();
constinit MakeListener make_process_listener = nullptr;

// The backward, if any, inside which this thread computes forward again. A backward that is begun there is another one.
thread_local int64_t backward_around = -1;

}  // namespace

RecomputeGuard::RecomputeGuard()
    : before_(std::exchange(backward_around, torch::autograd::get_current_graph_task_id())) {}
RecomputeGuard::~RecomputeGuard() { backward_around = before_; }

bool in_backward() {
  const int64_t backward = torch::autograd::get_current_graph_task_id();
  return backward != -1 && backward != backward_around;
}

CommListener* process_listener() {
  static CommListener* const listener = make_process_listener != nullptr ? make_process_listener() : nullptr;
  return listener;
}

void set_process_listener(CommListener* (*make)()) { make_process_listener = make; }

}  // namespace dtensor::internal
