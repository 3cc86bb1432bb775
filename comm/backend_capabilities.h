// The capabilities of backends for collectives, and substitutes for missing ones: one table. Communicators choose by
// it, and docs/worlds.md shows it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "comm/comm_event.h"
#include "placement/placement.h"

namespace dtensor::internal {

enum class CommBackend : uint8_t {
  kGloo,       // processes with CPU tensors
  kNccl,       // processes with a GPU each
  kNcclLocal,  // several GPUs of one process
  kCopies,     // other ranks of one process, without a backend
};
inline constexpr std::array<CommBackend, 4> kCommBackends = {CommBackend::kGloo, CommBackend::kNccl,
                                                             CommBackend::kNcclLocal, CommBackend::kCopies};

// The transport for the blocks of an exchange, of every dtype, even or uneven.
enum class Transport : uint8_t {
  kAllToAll,     // one alltoall_base of bytes, packed where blocks are not adjacent in memory
  kSendReceive,  // grouped sends and receives, packed where a block does not lie in a row
  kCopies,       // copies from tensor to tensor
};
Transport transport_of(CommBackend backend);
// Whether an all_gather of equal parts uses the backend's own all-gather, which needs one copy of a rank's part instead
// of one per receiver.
bool has_all_gather(CommBackend backend);

// In what form a backend is asked to reduce.
enum class Carrier : uint8_t {
  kInOrder,    // it is not asked: an exchange, and the addends are reduced in the order of the group, half types in
               // float32
  kNative,     // as it is
  kAsUint8,    // bool, with min for "and" and max for "or"
  kAsInt32,    // widened, and narrowed again: the same modulo 2^16, and the same order
  kAsSigned,   // as the signed integer of this size: sums and products are the same bits
  kAsReal,     // complex numbers as pairs of real ones
  kUndefined,  // there is no such operation (communicators refuse it)
};
struct Reduction {
  Carrier carrier;
  at::ScalarType dtype;  // that the backend gets
  ReduceOp op;           // likewise
};
// How `backend` reduces tensors of `dtype` by `op`. `c`: kAllReduce or kReduceScatter.
Reduction reduction_by(CommBackend backend, Collective c, at::ScalarType dtype, ReduceOp op);

// A fresh, contiguous copy of `t` in the form that a backend reduces, and what came of it, as `dtype` again.
// REQUIRES: `r` is neither kInOrder nor kUndefined.
at::Tensor to_carrier(const at::Tensor& t, const Reduction& r);
at::Tensor from_carrier(const at::Tensor& reduced, const Reduction& r, at::ScalarType dtype);
// Bytes that the two hold at once per element, besides what is reduced and what came of it.
int64_t carrier_bytes(const Reduction& r);

// The dtypes of the table, in its order.
absl::Span<const at::ScalarType> reducible_dtypes();

// For the table in docs/worlds.md: "Gloo", "one `alltoall_base` of bytes", "as int32".
std::string_view describe(CommBackend backend);
std::string_view describe(Transport transport);
std::string_view describe(Carrier carrier);

}  // namespace dtensor::internal
