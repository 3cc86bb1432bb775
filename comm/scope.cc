#include "comm/scope.h"

#include <torch/csrc/autograd/graph_task.h>

namespace dtensor::internal {
namespace {

// Set before main by a static object, hence a constant at first.
using MakeListener = CommListener* (*)();
constinit MakeListener make_process_listener = nullptr;

}  // namespace

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

CommListener* process_listener() {
  static CommListener* const listener = make_process_listener != nullptr ? make_process_listener() : nullptr;
  return listener;
}

void set_process_listener(CommListener* (*make)()) { make_process_listener = make; }

}  // namespace dtensor::internal
