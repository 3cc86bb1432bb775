#include "dtensor/dispatch/report_work.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/parallel/program_call.h"
#include "dtensor/tensor/module_of_call.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

thread_local int64_t num_reported = 0;  // events with work, and calls whose events come later

void count_and_report(const WorkEvent& event) {
  if (event.flops > 0 || event.bytes > 0) ++num_reported;
  report(event);
}

// "aten::index_select": "index_select".
template <size_t kCount>
bool is_one_of(const OpInfo& info, const std::string_view (&names)[kCount]) {
  std::string_view name = info.name;
  name = name.starts_with("aten::") ? name.substr(6) : name;
  return absl::c_linear_search(names, name.substr(0, name.find('.')));
}

// Operators that read or write some elements of their first tensor only: as many as they have indices for.
constexpr std::string_view kUseSomeElements[] = {
    "embedding",  "index_select",     "gather",          "take",           "index",
    "index_put_", "_index_put_impl_", "index_add_",      "index_copy_",    "index_fill_",
    "scatter_",   "scatter_add_",     "masked_scatter_", "_embedding_bag", "_embedding_bag_forward_only"};
// Those whose results are sums of rows of the first tensor, at the indices that the second has.
constexpr std::string_view kSumRows[] = {"_embedding_bag", "_embedding_bag_forward_only"};
// Operators that read only the shape of their tensor, and those whose result they do not fill, either.
constexpr std::string_view kReadNothing[] = {"zeros_like",        "ones_like", "full_like",  "new_zeros",
                                             "new_ones",          "new_full",  "empty_like", "new_empty",
                                             "new_empty_strided", "rand_like", "randn_like", "randint_like"};
constexpr std::string_view kWriteNothing[] = {"empty_like", "new_empty", "new_empty_strided"};

// Of the largest part: elements that an expanded tensor repeats are one in memory.
int64_t bytes_in_memory(const Spec& spec) {
  int64_t bytes = spec.max_local_bytes();
  if (!absl::c_linear_search(spec.strides(), 0) || bytes == 0) return bytes;
  const Shape part = largest_part(spec.sizes(), spec.mesh().shape(), spec.placements());
  for (size_t d = 0; d < part.size(); ++d) {
    if (spec.strides()[d] == 0) bytes /= std::max<int64_t>(part[d], 1);
  }
  return bytes;
}

// Of the rows of `table` that a rank's part of `ids` names.
int64_t bytes_of_rows(const Spec& table, const Spec& ids) {
  const Shape part = largest_part(table.sizes(), table.mesh().shape(), table.placements());
  const int64_t rows = ids.max_local_bytes() / static_cast<int64_t>(c10::elementSize(ids.dtype()));
  return part[0] == 0 ? 0 : rows * (table.max_local_bytes() / part[0]);
}

// Each input is read once, and each result written once.
int64_t bytes_moved(const OpInfo& info, const Decision& decision, const Inputs& in) {
  if (info.is_view || is_one_of(info, kWriteNothing)) return 0;
  const bool reads = !is_one_of(info, kReadNothing);
  const auto& computed = decision.computed;
  int64_t first = 0, others = 0, results = 0;
  for (size_t i = 0; i < computed.size() && reads; ++i) {
    if (!computed[i] || info.args[in.arg_of[i]].overwritten) continue;
    (i == 0 ? first : others) += bytes_in_memory(*computed[i]);
  }
  for (const SpecPtr& output : decision.outputs) {
    if (output) results += output->max_local_bytes();
  }
  if (is_one_of(info, kUseSomeElements) && !computed.empty() && computed[0]) {
    const bool updates = info.args[in.arg_of[0]].written;
    const bool sums = is_one_of(info, kSumRows) && computed.size() > 1 && computed[1];
    const int64_t used = updates ? others : sums ? bytes_of_rows(*computed[0], *computed[1]) : results;
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
  event.dtype = dtype_of_flops(call);
  event.module_path = module_of_call(in.tensors);
}

}  // namespace

void report_flops(const std::string& op, const std::string& module_path, const Spec& operand, double of_rank,
                  double of_one) {
  if (!has_listeners() || of_one == 0) return;
  WorkEvent event{op, module_path, in_backward()};
  event.ranks = operand.mesh().size();
  event.flops = of_rank;
  event.whole_flops = of_one;
  event.dtype = operand.dtype();
  count_and_report(event);
}

void report_bytes(const std::string& op, const DeviceMesh& mesh, int64_t bytes) {
  if (!has_listeners()) return;
  WorkEvent event{op, "", in_backward()};
  event.ranks = mesh.size();
  event.bytes = bytes;
  count_and_report(event);
}

void note_work_elsewhere() { ++num_reported; }

void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                 int64_t list_index) {
  if (!has_listeners()) return;
  WorkEvent event{info.name, "", in_backward()};
  event.list_index = list_index;
  event.ranks = in.mesh.size();
  event.bytes = bytes_moved(info, decision, in);
  if (decision.rule->flops) add_flops(event, decision, in, make_call(info, in, args).without_outs());
  count_and_report(event);
}

namespace {

// Operators that change what memory a tensor has, or its shape: nothing is read or written.
bool changes_tensor_only(const OpInfo& info) {
  constexpr std::string_view kNames[] = {"resize_", "resize_as_", "set_", "shallow_copy_data_"};
  return info.op.hasTag(at::Tag::inplace_view) || is_one_of(info, kNames);
}

}  // namespace

WorkWithoutRule::WorkWithoutRule(const OpInfo& info, c10::ArrayRef<c10::IValue> args) : info_(info) {
  if (!has_listeners() || info.is_view || info.composite_implicit || is_one_of(info, kWriteNothing) ||
      changes_tensor_only(info))
    return;
  reported_before_ = num_reported;
  const bool draws = info.op.hasTag(at::Tag::nondeterministic_seeded);  // overwrites what it writes to
  for (size_t a = 0; a < args.size(); ++a) {
    const OpInfo::Arg& arg = info.args[a];
    if (arg.out) continue;
    const bool reads = !arg.overwritten && !(draws && arg.written) && !is_one_of(info, kReadNothing);
    for_each_dtensor(args.slice(a, 1), [&](const at::Tensor& t) {
      mesh_ = spec_of(t)->mesh();
      bytes_ += (reads ? bytes_in_memory(*spec_of(t)) : 0) + (arg.written ? spec_of(t)->max_local_bytes() : 0);
      writes_ = writes_ || arg.written;
    });
  }
}

void WorkWithoutRule::report(const torch::jit::Stack& stack) const {
  if (reported_before_ != num_reported) return;
  const auto results = torch::jit::last(stack, info_.written_inputs.size());
  int64_t bytes = bytes_;
  bool gives_tensors = false;
  for (size_t r = 0; r < results.size(); ++r) {
    if (info_.written_inputs[r] >= 0) continue;  // counted as an argument
    for_each_dtensor(results.slice(r, 1), [&](const at::Tensor& t) {
      gives_tensors = true;
      bytes += spec_of(t)->max_local_bytes();
    });
  }
  if (mesh_.defined() && (writes_ || gives_tensors)) report_bytes(info_.name, mesh_, bytes);
}

}  // namespace dtensor::internal
