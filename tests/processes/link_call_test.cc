// The order in which calls use the streams of a device. The device here is a fake one that records its calls.
#include "processes/c10d/link_call.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <string>
#include <vector>

#include "comm/comm_work.h"
#include "comm/graph_capture.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::internal {
namespace {

using c10::Device, c10::DeviceIndex, c10::Stream;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
const Device kDevice(kType, 0);

std::vector<std::string> recorded;  // calls of the device, and the unpacking of results
int64_t current = 0;                // stream
bool captures = false;

Stream stream(int64_t id) { return Stream(Stream::UNSAFE, kDevice, id); }

// No `override`: early LibTorch releases have no isStreamCapturing().
struct RecordingDevice final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const { return kType; }
  Device exchangeDevice(Device) const { return kDevice; }
  Device getDevice() const { return kDevice; }
  void setDevice(Device) const {}
  void uncheckedSetDevice(Device) const noexcept {}
  Stream getStream(Device) const { return stream(current); }
  Stream exchangeStream(Stream s) const { return stream(std::exchange(current, s.id())); }
  DeviceIndex deviceCount() const noexcept { return 1; }
  void record(void** event, const Stream& s, const DeviceIndex, const c10::EventFlag) const {
    *event = &recorded;
    recorded.push_back("record on " + std::to_string(s.id()));
  }
  void block(void*, const Stream& s) const { recorded.push_back("block " + std::to_string(s.id())); }
  bool queryEvent(void*) const {
    recorded.emplace_back("query");
    return false;
  }
  void destroyEvent(void*, const DeviceIndex) const noexcept {}
  bool isStreamCapturing(const Stream&) const { return captures; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, RecordingDevice);

}  // namespace

TEST_CASE("a call's memory goes back to its stream when another stream has unpacked the results", "[processes]") {
  recorded.clear();
  current = 1;
  const auto work = wait_on_gpu(kDevice, {}, [] { recorded.emplace_back("unpack on " + std::to_string(current)); });
  current = 2;
  work->wait();
  CHECK(recorded == std::vector<std::string>{"unpack on 2", "record on 2", "block 1"});
}

TEST_CASE("a stream that captures a graph is not queried", "[processes]") {
  recorded.clear();
  captures = false;
  CHECK_FALSE(is_capturing(kDevice));
  CHECK_FALSE(current_stream_done(kDevice)());
  CHECK(recorded.size() == 2);
  captures = true;
  if (!is_capturing(kDevice)) return;  // a LibTorch release that cannot tell
  recorded.clear();
  CHECK(current_stream_done(kDevice)());
  CHECK(recorded.empty());
  captures = false;
}

}  // namespace dtensor::internal
