#include "processes/nccl/nccl_comms.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {

struct NcclComms::State {
  std::vector<int> devices;
  std::vector<ncclComm_t> comms;  // by position
  std::vector<std::set<cudaStream_t>>
      streams;          // by position, on which there were calls. c10's streams live as long as the process
  std::string failure;  // not empty: nothing works any more

  bool idle() const {
    for (size_t i = 0; i < streams.size(); ++i) {
      const c10::cuda::CUDAGuard guard(
          static_cast<c10::DeviceIndex>(devices[i]));  // the default stream is the current device's
      for (cudaStream_t stream : streams[i]) {
        // To query a stream that captures a graph would end the capture.
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        const bool can_tell =
            cudaStreamIsCapturing(stream, &capture) == cudaSuccess && capture == cudaStreamCaptureStatusNone;
        if (can_tell && cudaStreamQuery(stream) == cudaSuccess) continue;
        (void)cudaGetLastError();  // "not ready" is a valid result, not an error for the next call
        return false;
      }
    }
    return true;
  }
};

namespace {

// NCCL wants the calls of several threads on communicators of one device in one order on all devices.
std::mutex& launch_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

[[noreturn]] void throw_nccl_error(const std::string& what, ncclResult_t result) {
  std::string text = absl::StrCat(what, ": NCCL failed: ", ncclGetErrorString(result));
  const char* detail = ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') absl::StrAppend(&text, " (", detail, ")");
  absl::StrAppend(&text, "; NCCL_DEBUG=INFO shows more");
  C10_THROW_ERROR(DistBackendError, text);
}

ncclResult_t start(const NcclCall& call, ncclComm_t comm, cudaStream_t stream) {
  switch (call.kind) {
    case NcclCall::Kind::kSend:
      return ncclSend(call.from, call.count, call.dtype, call.peer, comm, stream);
    case NcclCall::Kind::kReceive:
      return ncclRecv(call.to, call.count, call.dtype, call.peer, comm, stream);
    case NcclCall::Kind::kAllReduce:
      return ncclAllReduce(call.from, call.to, call.count, call.dtype, call.op, comm, stream);
    case NcclCall::Kind::kReduceScatter:
      return ncclReduceScatter(call.from, call.to, call.count, call.dtype, call.op, comm, stream);
    case NcclCall::Kind::kReduce:
      return ncclReduce(call.from, call.to, call.count, call.dtype, call.op, call.peer, comm, stream);
  }
  return ncclInternalError;
}

// The error since the last call, ncclSuccess if there is none.
ncclResult_t async_error(const std::vector<ncclComm_t>& comms) {
  for (ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclSuccess && state != ncclInProgress) return state;
  }
  return ncclSuccess;
}

// Ends what runs on the devices, which may wait for each other for ever.
void abort_all(std::vector<ncclComm_t>& comms) {
  ncclGroupStart();
  for (ncclComm_t comm : comms) ncclCommAbort(comm);
  ncclGroupEnd();
  comms.clear();
}

// Waits for nothing where the devices are idle.
void destroy_all(std::vector<ncclComm_t>& comms) {
  ncclGroupStart();
  for (ncclComm_t comm : comms) ncclCommFinalize(comm);
  ncclGroupEnd();
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
  comms.clear();
}

}  // namespace

NcclComms::NcclComms(std::vector<int> devices, const std::string& what) : state_(std::make_unique<State>()) {
  state_->devices = std::move(devices);
  const size_t n = state_->devices.size();
  state_->streams.resize(n);
  std::lock_guard lock(launch_mutex());
  const c10::cuda::CUDAGuard guard(
      static_cast<c10::DeviceIndex>(state_->devices[0]));  // NCCL leaves another device current
  std::vector<ncclComm_t> comms(n);
  const ncclResult_t result = ncclCommInitAll(comms.data(), static_cast<int>(n), state_->devices.data());
  if (result != ncclSuccess) throw_nccl_error(what, result);
  state_->comms = std::move(comms);
}

NcclComms::~NcclComms() {
  // Communicators that could not be destroyed in time. Never destroyed itself: a world may end after main.
  static auto* left = new std::vector<std::unique_ptr<State>>;
  try {
    // Nothing here belongs to a graph that may be captured meanwhile.
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    std::lock_guard lock(launch_mutex());
    left->push_back(std::move(state_));
    for (auto it = left->begin(); it != left->end();) {
      State& state = **it;
      if (!state.comms.empty()) {
        if (!state.idle()) {
          ++it;
          continue;
        }
        const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(state.devices[0]));
        destroy_all(state.comms);
      }
      it = left->erase(it);
    }
  } catch (const std::exception&) {
    // At the end of the process CUDA may be gone, and the communicators with it.
  }
}

void NcclComms::launch(absl::Span<Part> parts, const std::function<std::string()>& what) {
  std::lock_guard lock(launch_mutex());
  ncclResult_t result = ncclSuccess;
  for (Part& part : parts) {
    State& state = *part.comms->state_;
    TORCH_CHECK_WITH(DistBackendError, state.failure.empty(), what(),
                     ": these GPUs cannot communicate after an earlier failure, \"", state.failure,
                     "\"; make a new world");
    if (result == ncclSuccess) result = async_error(state.comms);
  }
  if (result == ncclSuccess) {
    std::vector<std::pair<const NcclCall*, std::pair<ncclComm_t, cudaStream_t>>>
        calls;  // nothing may throw within NCCL's group
    for (Part& part : parts) {
      State& state = *part.comms->state_;
      for (const NcclCall& call : part.calls) {
        const auto device = static_cast<c10::DeviceIndex>(state.devices[call.position]);
        cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
        state.streams[call.position].insert(stream);
        calls.push_back({&call, {state.comms[call.position], stream}});
      }
    }
    if (calls.empty()) return;
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(parts[0].comms->state_->devices[0]));
    result = ncclGroupStart();
    if (result == ncclSuccess) {
      for (const auto& [call, place] : calls) {
        if (result = start(*call, place.first, place.second); result != ncclSuccess) break;
      }
      const ncclResult_t ended = ncclGroupEnd();  // also after an error: it clears the group
      if (result == ncclSuccess) result = ended;
    }
  }
  if (result == ncclSuccess) return;
  try {
    throw_nccl_error(what(), result);
  } catch (const c10::Error& e) {
    for (Part& part : parts) {
      State& state = *part.comms->state_;
      state.failure = e.what_without_backtrace();
      abort_all(state.comms);
    }
    throw;
  }
}

}  // namespace dtensor::internal
