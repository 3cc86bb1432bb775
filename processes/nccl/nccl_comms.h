// NCCL communicators that connect distinct GPUs of this process, and the calls on them.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace dtensor::internal {

// One device's part of a collective, or of a message between two. Counts are of elements.
struct NcclCall {
  enum class Kind : uint8_t { kSend, kReceive, kAllReduce, kReduceScatter, kReduce };
  Kind kind = Kind::kSend;
  int64_t position = 0;  // of the device among those connected
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // the other end of a message; for a reduce, the receiver
};

class NcclComms {
 public:
  // `devices`: CUDA indices, all different. `what`: their user, for errors. Waits until NCCL has connected
  // them. Errors (c10::DistBackendError): NCCL's, with its text.
  NcclComms(std::vector<int> devices, const std::string& what);
  // Neither throws nor waits: kernels still running on a device continue, and their communicators stay until a later
  // destructor finds them done.
  ~NcclComms();
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  // Everything that the calls of one collective need.
  struct Part {
    NcclComms* comms = nullptr;
    std::vector<NcclCall> calls;
  };
  // Puts all calls of all parts on the current streams of their devices, as one group; returns without waiting for
  // them.
  // Errors (c10::DistBackendError) "WHAT(): NCCL failed: ...": NCCL's, also of earlier calls, which it finds while they
  // run. After one the communicators are of no use, and say so.
  static void launch(absl::Span<Part> parts, const std::function<std::string()>& what);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor::internal
