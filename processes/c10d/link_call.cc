#include "processes/c10d/link_call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "comm/comm_work.h"
#include "comm/graph_capture.h"
#include "processes/c10d/call_mismatch.h"

namespace dtensor::internal {
namespace {

// A capture runs nothing, and its events and works must not be queried.
std::function<bool()> nothing_to_wait_for() {
  return [] { return true; };
}

}  // namespace

std::string LinkCall::text() const { return describe_call(number, collective, call, moved_before); }

Activity LinkCall::activity() const { return {link.key, number, text()}; }

CallMark LinkCall::mark() const {
  return {link.members, link.position, link.key, call.group->name, text(), number, *fingerprint};
}

LinkCall::Places LinkCall::reserve(size_t count) const {
  Places places = link.order->reserve(count);
  const Activity mine = activity();
  for (const auto& place : places) calls->add(place, mine);
  if (numbering) numbering.unlock();
  return places;
}

c10::intrusive_ptr<c10d::Work> start_alone(const StartWork& start) {
  static auto* mutex = new std::mutex;  // outlives threads that end after main
  std::lock_guard lock(*mutex);
  return start();
}

std::function<CallOrder::Begun()> when_its_turn(std::weak_ptr<CallsUnderWay> calls, const Activity& activity,
                                                const std::vector<int64_t>& members, StartWork start) {
  return [weak = std::move(calls), activity, members, start = std::move(start)] {
    // Gloo may keep this after the world has ended.
    const auto calls = weak.lock();
    TORCH_CHECK(calls != nullptr, "the world has ended");
    return calls->guarded([&] { return calls->job().begin(activity, members, start); });
  };
}

void run(const LinkCall& call, const StartWork& start) {
  const Activity activity = call.activity();
  Link& link = call.link;
  if (!call.device.is_cuda()) {
    const auto place = call.reserve(1)[0];
    link.order->fill(place, when_its_turn(call.calls, activity, link.members, start));
    return call.calls->finish(activity, link.members, place);
  }
  call.calls->guarded([&] {
    call.job().launch(activity, link.members, [&] {
      const c10::DeviceGuard guard(call.device);
      start()->wait();  // with a deadline it would hold up the host, and abort the group when that passes
      return current_stream_done(call.device);
    });
  });
}

c10::intrusive_ptr<c10d::Work> begin_on_gpu(const LinkCall& call, const StartWork& start) {
  c10::intrusive_ptr<c10d::Work> work;
  call.calls->guarded([&] {
    call.job().launch(call.activity(), call.link.members, [&] {
      const c10::DeviceGuard guard(call.device);
      work = start();
      if (is_capturing(call.device)) return nothing_to_wait_for();
      return std::function<bool()>([work] {
        const bool is_done = work->isCompleted();  // also if it failed
        if (is_done && work->exception()) std::rethrow_exception(work->exception());
        return is_done;
      });
    });
  });
  return work;
}

std::shared_ptr<CommWork> wait_on_gpu(c10::Device device, std::vector<c10::intrusive_ptr<c10d::Work>> begun,
                                      std::function<void()> done) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  return std::make_shared<CommWork>(
      [device, streams, began_on = streams.getStream(device), begun = std::move(begun), done = std::move(done)] {
        const c10::DeviceGuard guard(device);
        for (const auto& work : begun) work->wait();
        done();
        // Memory that the collective and `done` have used goes back to the stream that it was taken for.
        if (const c10::Stream waits = streams.getStream(device); waits != began_on) {
          c10::Event arrived(device.type());
          arrived.record(waits);
          arrived.block(began_on);
        }
      });
}

std::function<bool()> current_stream_done(c10::Device device) {
  if (is_capturing(device)) return nothing_to_wait_for();
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return [event] { return event->query(); };
}

}  // namespace dtensor::internal
