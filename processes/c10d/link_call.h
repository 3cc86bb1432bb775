// One collective of one group, from its call on this rank: how it is begun, and whether the caller waits.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "comm/comm_call.h"
#include "processes/c10d/call_order.h"
#include "processes/c10d/calls_under_way.h"
#include "processes/c10d/first_messages.h"
#include "processes/c10d/group_links.h"
#include "processes/job/job.h"

namespace dtensor::internal {

// Begins a collective of a backend. Owns what it uses: where the job fails, another thread may be about to call it.
using StartWork = std::function<c10::intrusive_ptr<c10d::Work>()>;

// Refers to its parts; lives as long as the communicator's call.
struct LinkCall {
  using Places = std::vector<std::shared_ptr<CallOrder::Place>>;

  const std::shared_ptr<CallsUnderWay>& calls;
  c10::Device device;  // of this rank's tensors
  Link& link;
  const CommCall& call;
  Collective collective;
  int64_t number = 0;                   // of the call, among those of its link, from 1
  int64_t moved_before = 0;             // the call that moved its tensor before; 0: none, or not known
  std::optional<uint64_t> fingerprint;  // of the call, which the ranks compare with the data; unset: they do not
  mutable std::unique_lock<std::mutex> numbering;  // link.numbering, until the call has its places

  Job& job() const { return calls->job(); }
  std::string text() const;  // describe_call()
  Activity activity() const;
  CallMark mark() const;  // REQUIRES: fingerprint
  // Whether the caller need not wait for the results, nor on a GPU its stream.
  bool is_async() const { return call.work != nullptr && (device.is_cuda() || link.members.size() > 1); }
  // All the places that this call takes in the link's order, known to `calls`. Then other threads may make calls. Once.
  Places reserve(size_t count) const;
};

// Calls `start` when no other thread is in this function. LibTorch's own recorder of collectives, one for all groups of
// a process, enters a new one into a map before it takes its lock (FlightRecorder::recordWithResetEnabled in 2.11).
c10::intrusive_ptr<c10d::Work> start_alone(const StartWork& start);

// Begins a collective on CPU when its turn in the link's order has come, on any thread. `members`: of its group.
std::function<CallOrder::Begun()> when_its_turn(std::weak_ptr<CallsUnderWay> calls, const Activity& activity,
                                                const std::vector<int64_t>& members, StartWork start);

// Runs a collective. On CPU it is done when this returns. On a GPU the current stream waits for it: later work on that
// stream sees the result, and freed memory is reused only after it, so no tensor needs record_stream().
void run(const LinkCall& call, const StartWork& start);

// Begins a collective on a GPU, on a stream of the backend. Until a stream has waited for the result, it keeps the
// collective's tensors.
c10::intrusive_ptr<c10d::Work> begin_on_gpu(const LinkCall& call, const StartWork& start);
// What makes the stream that is current when it is waited for wait for them, and then calls `done`.
std::shared_ptr<CommWork> wait_on_gpu(
    c10::Device device, std::vector<c10::intrusive_ptr<c10d::Work>> begun, std::function<void()> done = [] {});

// Says, without waiting, whether the device has done all that is on its current stream now; always where that is
// capturing.
std::function<bool()> current_stream_done(c10::Device device);

}  // namespace dtensor::internal
