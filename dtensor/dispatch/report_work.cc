#include "dtensor/dispatch/report_work.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/tensor/module_of_call.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

void report(const WorkEvent& event) {
  for (CommListener* listener : current_scope().listeners) listener->on_work(event);
}

// Operators that read or write some elements of their first tensor only: as many as they have indices for.
bool uses_some_elements(std::string_view name) {
  constexpr std::string_view kNames[] = {"embedding",    "_embedding_bag", "index_select", "gather",
                                         "take",         "index",          "index_put_",   "_index_put_impl_",
                                         "index_add_",   "index_copy_",    "index_fill_",  "scatter_",
                                         "scatter_add_", "masked_scatter_"};
  name = name.starts_with("aten::") ? name.substr(6) : name;
  return absl::c_linear_search(kNames, name.substr(0, name.find('.')));
}

// Each input is read once, and each result written once.
int64_t bytes_moved(const OpInfo& info, const Decision& decision, const Inputs& in) {
  if (info.is_view) return 0;
  const auto is_written = [&](size_t input) { return info.args[in.args[input]].written; };
  const bool in_place = absl::c_any_of(info.written_inputs, [](int argument) { return argument >= 0; });
  int64_t first = 0, others = 0, results = 0;
  for (size_t i = 0; i < decision.computed.size(); ++i) {
    if (!decision.computed[i] || info.args[in.args[i]].out) continue;
    (i == 0 ? first : others) += decision.computed[i]->max_local_bytes();
  }
  for (const SpecPtr& output : decision.outputs) {
    if (output) results += output->max_local_bytes();
  }
  if (uses_some_elements(info.name) && !decision.computed.empty() && decision.computed[0]) {
    const bool updates = in_place && is_written(0);
    const int64_t used = updates ? others : results;
    first = std::min(first, used);
    if (updates) results = std::min(results, used);
  }
  return first + others + results;
}

// Of a matrix product: FLOP of the rank's parts and of whole inputs, and the module.
void add_flops(WorkEvent& event, const Decision& decision, const Inputs& in, const OpCall& call) {
  const Flops flops = decision.rule->flops(call);
  if (!flops) return;
  std::vector<Shape> whole(call.inputs.size()), parts(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    whole[i] = call.inputs[i]->sizes();
    parts[i] = largest_part(call.inputs[i]->sizes(), in.mesh.shape(), decision.computed[i]->placements());
  }
  event.flops = flops(parts);
  event.whole_flops = flops(whole);
  event.module_path = module_of_call(in.tensors);
}

}  // namespace

void report_flops(const std::string& op, const std::string& module_path, const DeviceMesh& mesh, double of_rank,
                  double of_one) {
  if (current_scope().listeners.empty() || of_one == 0) return;
  WorkEvent event{op, module_path, in_backward()};
  event.ranks = mesh.size();
  event.flops = of_rank;
  event.whole_flops = of_one;
  report(event);
}

void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  if (current_scope().listeners.empty()) return;
  WorkEvent event{info.name, "", in_backward()};
  event.ranks = in.mesh.size();
  event.bytes = bytes_moved(info, decision, in);
  if (decision.rule->flops) add_flops(event, decision, in, make_call(info, in, args).without_outs());
  report(event);
}

}  // namespace dtensor::internal
