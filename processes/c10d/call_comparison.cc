#include "processes/c10d/call_comparison.h"

#include <ATen/ops/empty.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/graph_capture.h"
#include "processes/c10d/run_exchange.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kCompareEvery = 64;  // calls of a group on a device, at level info

// Checks those whose values have come from the device. Errors: the ranks differ.
void check_arrived(const LinkCall& call) {
  Link& link = call.link;
  while (!link.comparisons.empty() && link.comparisons.front().arrived()) {
    const Comparison comparison = std::move(link.comparisons.front());
    link.comparisons.pop_front();
    const int64_t* values = comparison.values.const_data_ptr<int64_t>();
    call.calls->guarded([&] {
      check_equal(call.job(), {values, link.members.size()}, comparison.call, comparison.what, link.members,
                  link.position, link.key, call.call.group->name);
    });
  }
}

// On a device: every member gets the `value` of all. Error on all of them if they differ; `verb`: for this rank's call
// in the error. Unless `now`, it is checked by a later call, as the host would have to wait for the device to catch up.
void compare_on_device(const LinkCall& call, uint64_t value, const char* verb, bool now) {
  Link& link = call.link;
  const auto n = static_cast<int64_t>(link.members.size());
  if (n == 1) return;
  at::Tensor mine = at::empty({n}, at::TensorOptions().dtype(at::kLong).device(call.device));
  mine.fill_(static_cast<int64_t>(value));
  at::Tensor all = at::empty({n}, mine.options());
  run(call, [backend = link.backend.get(), all, mine]() mutable {
    std::vector<int64_t> even;
    return start_alone([&] { return backend->alltoall_base(all, mine, even, even); });
  });
  Comparison comparison{call.number, absl::StrCat(verb, call.text()), {}, {}};
  comparison.values = at::empty({n}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  comparison.values.copy_(all, /*non_blocking=*/true);
  comparison.arrived = current_stream_done(call.device);
  link.comparisons.push_back(std::move(comparison));
  if (now) {
    const Activity activity = call.activity();
    call.calls->guarded([&] { call.job().wait_until(activity, link.members, link.comparisons.back().arrived); });
  }
  check_arrived(call);
}

// On CPU: an exchange of nothing, with which the ranks compare their calls.
void compare_on_cpu(const LinkCall& call, uint64_t value) {
  CommCall waits = call.call;
  waits.work = nullptr;
  run_exchange({call.calls, call.device, call.link, waits, call.collective, call.number, call.moved_before, value, {}},
               {}, RankPieces(1), RankPieces(1), /*may_all_gather=*/false);
}

}  // namespace

std::optional<uint64_t> CallComparison::before(const LinkCall& call) const {
  if (level_ == DebugLevel::kOff) return std::nullopt;
  Link& link = call.link;
  const uint64_t own = fingerprint(0, call.number, call.collective, call.call, call.moved_before);
  if (!call.device.is_cuda()) {
    if (level_ == DebugLevel::kDetail) compare_on_cpu(call, own);
    return own;
  }
  const bool captures = is_capturing(call.device);  // then nothing runs that could be compared
  if (!captures) check_arrived(call);
  if (level_ == DebugLevel::kDetail && !captures) compare_on_device(call, own, "is about to make ", /*now=*/true);
  link.history = fingerprint(link.history, call.number, call.collective, call.call, call.moved_before);
  if (level_ == DebugLevel::kInfo && !captures && call.number % kCompareEvery == 0) {
    compare_on_device(call, link.history, "has made other calls than its group; its last is ",
                      /*now=*/call.collective == Collective::kBarrier);
  }
  return std::nullopt;
}

void CallComparison::at_barrier(const LinkCall& call) const {
  if (!call.device.is_cuda()) {
    compare_on_cpu(call, fingerprint(0, call.number, call.collective, call.call, call.moved_before));
    return;
  }
  TORCH_CHECK(!is_capturing(call.device), call.text(), ": a graph cannot have a barrier, for which the host waits");
  if (level_ == DebugLevel::kOff || call.number % kCompareEvery != 0) {
    compare_on_device(call, call.link.history, "", /*now=*/true);
  }
}

}  // namespace dtensor::internal
