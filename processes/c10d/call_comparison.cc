#include "processes/c10d/call_comparison.h"

#include <ATen/ops/empty.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

constexpr int64_t kCompareEvery = 64;  // calls of a group, at level info

// Checks those whose values have come from the device. Errors: the ranks differ.
void check_arrived(const LinkCall& call) {
  Link& link = call.link;
  while (!link.comparisons.empty() && link.comparisons.front().arrived()) {
    const Comparison comparison = std::move(link.comparisons.front());
    link.comparisons.pop_front();
    call.calls->guarded(
        [&] { check_equal(call.job(), comparison, link.members, link.position, link.key, call.call.group->name); });
  }
}

// Every member gets everybody's `value`. Error on all of them if they differ; `verb`: what this rank says of its call
// then. Unless `now`, what is on a device is checked by a later call, as the host would have to wait for the device to
// catch up.
void compare(const LinkCall& call, uint64_t value, const char* verb, bool now = true) {
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
  Comparison comparison{link.calls, absl::StrCat(verb, describe_call(link.calls, call.collective, call.call)), all,
                        [] { return true; }};
  if (call.device.is_cuda()) {
    comparison.values = at::empty({n}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
    comparison.values.copy_(all, /*non_blocking=*/true);
    comparison.arrived = current_stream_done(call.device);
  }
  link.comparisons.push_back(std::move(comparison));
  if (now && call.device.is_cuda()) {
    const Activity activity = call.activity();
    call.calls->guarded([&] { call.job().wait_until(activity, link.members, link.comparisons.back().arrived); });
  }
  check_arrived(call);
}

}  // namespace

void CallComparison::before(const LinkCall& call) const {
  if (level_ == DebugLevel::kOff) return;
  Link& link = call.link;
  check_arrived(call);
  if (level_ == DebugLevel::kDetail) {
    compare(call, fingerprint(0, link.calls, call.collective, call.call), "is about to make ");
  }
  link.history = fingerprint(link.history, link.calls, call.collective, call.call);
  if (level_ == DebugLevel::kInfo && link.calls % kCompareEvery == 0) {
    compare(call, link.history, "has made other calls than its group; its last is ",
            /*now=*/call.collective == Collective::kBarrier);
  }
}

void CallComparison::at_barrier(const LinkCall& call) const {
  if (level_ == DebugLevel::kOff || call.link.calls % kCompareEvery != 0) compare(call, call.link.history, "");
}

}  // namespace dtensor
