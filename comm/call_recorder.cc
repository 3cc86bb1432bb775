#include "comm/call_recorder.h"

namespace dtensor::internal {
namespace {

// Set before main by a static object, hence a constant at first.
constinit MakeCallRecorder make_recorder = nullptr;

}  // namespace

void set_call_recorder(MakeCallRecorder make) { make_recorder = make; }

std::unique_ptr<CallRecorder> make_call_recorder() { return make_recorder != nullptr ? make_recorder() : nullptr; }

}  // namespace dtensor::internal
