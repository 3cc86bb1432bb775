#include "comm/graph_capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtensor::internal {
namespace {

// Early ones of the LibTorch releases that we build with cannot answer that.
template <typename Streams>
bool captures(const Streams& streams, c10::Device device) {
  if constexpr (requires { streams.isStreamCapturing(streams.getStream(device)); }) {
    return streams.isStreamCapturing(streams.getStream(device));
  } else {
    return false;
  }
}

}  // namespace

bool is_capturing(c10::Device device) { return captures(c10::impl::VirtualGuardImpl(device.type()), device); }

}  // namespace dtensor::internal
