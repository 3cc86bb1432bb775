#include "comm/backend_capabilities.h"

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace dtensor::internal {
namespace {

struct Backend {
  CommBackend backend;
  std::string_view name;
  Transport transport;
  bool has_all_gather = false;                        // has_all_gather()
  bool all_reduces = false, reduce_scatters = false;  // whether it reduces itself at all
};

constexpr Backend kBackends[] = {
    // Gloo could reduce, but not in the order of the group, and a job gives the bits of one process. Its all-gather was
    // slower than its alltoall even with a copy per receiver (4 processes on 2 cores), and c10d copies the result.
    {.backend = CommBackend::kGloo, .name = "Gloo", .transport = Transport::kAllToAll},
    // A reduce_scatter by exchange sends the same bytes as NCCL's own. Between two meshes some ranks have no addend for
    // some others, and a rank does not know which, so that the ranks could not agree to use NCCL's.
    {.backend = CommBackend::kNccl,
     .name = "NCCL",
     .transport = Transport::kAllToAll,
     .has_all_gather = true,
     .all_reduces = true},
    {.backend = CommBackend::kNcclLocal,
     .name = "NCCL in one process",
     .transport = Transport::kSendReceive,
     .all_reduces = true,
     .reduce_scatters = true},
    {.backend = CommBackend::kCopies, .name = "copies in one process", .transport = Transport::kCopies},
};

struct Row {
  at::ScalarType dtype;
  Carrier of_op[5];  // in the order of ReduceOp: sum, avg, product, min, max
};

constexpr auto kNo = Carrier::kUndefined, kYes = Carrier::kNative, kWide = Carrier::kAsInt32, kByte = Carrier::kAsUint8,
               kSigned = Carrier::kAsSigned, kReal = Carrier::kAsReal, kOrder = Carrier::kInOrder;

// NCCL 2.28 has int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32 and float64 (and float8, for
// which ATen has no arithmetic). c10d passes on all but uint32 and uint64.
constexpr Row kNccl[] = {
    {at::kDouble, {kYes, kYes, kYes, kYes, kYes}},
    {at::kFloat, {kYes, kYes, kYes, kYes, kYes}},
    {at::kHalf, {kYes, kYes, kYes, kYes, kYes}},
    {at::kBFloat16, {kYes, kYes, kYes, kYes, kYes}},
    {at::kLong, {kYes, kNo, kYes, kYes, kYes}},
    {at::kInt, {kYes, kNo, kYes, kYes, kYes}},
    {at::kShort, {kWide, kNo, kWide, kWide, kWide}},
    {at::kChar, {kYes, kNo, kYes, kYes, kYes}},
    {at::kByte, {kYes, kNo, kYes, kYes, kYes}},
    {at::kUInt16, {kWide, kNo, kWide, kWide, kWide}},
    {at::kUInt32, {kSigned, kNo, kSigned, kOrder, kOrder}},
    {at::kUInt64, {kSigned, kNo, kSigned, kOrder, kOrder}},
    {at::kBool, {kByte, kNo, kByte, kByte, kByte}},
    {at::kComplexFloat, {kReal, kReal, kOrder, kNo, kNo}},
    {at::kComplexDouble, {kReal, kReal, kOrder, kNo, kNo}},
};

const Backend& entry(CommBackend backend) { return kBackends[static_cast<size_t>(backend)]; }

at::ScalarType signed_of(at::ScalarType dtype) { return dtype == at::kUInt32 ? at::kInt : at::kLong; }

}  // namespace

Transport transport_of(CommBackend backend) { return entry(backend).transport; }

bool has_all_gather(CommBackend backend) { return entry(backend).has_all_gather; }

Reduction reduction_by(CommBackend backend, Collective c, at::ScalarType dtype, ReduceOp op) {
  const auto row = std::find_if(std::begin(kNccl), std::end(kNccl), [&](const Row& r) { return r.dtype == dtype; });
  Carrier carrier = row == std::end(kNccl) ? kOrder : row->of_op[static_cast<size_t>(op)];
  const Backend& b = entry(backend);
  if (carrier != kNo && !(c == Collective::kAllReduce ? b.all_reduces : b.reduce_scatters)) carrier = kOrder;
  switch (carrier) {
    case Carrier::kAsUint8:
      return {carrier, at::kByte, op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin};
    case Carrier::kAsInt32:
      return {carrier, at::kInt, op};
    case Carrier::kAsSigned:
      return {carrier, signed_of(dtype), op};
    case Carrier::kAsReal:
      return {carrier, c10::toRealValueType(dtype), op};
    default:
      return {carrier, dtype, op};
  }
}

at::Tensor to_carrier(const at::Tensor& t, const Reduction& r) {
  if (r.carrier == Carrier::kAsInt32) {
    return t.to(at::kInt, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  }
  at::Tensor copy = t.clone(at::MemoryFormat::Contiguous);
  if (r.carrier == Carrier::kNative) return copy;
  return r.carrier == Carrier::kAsReal ? at::view_as_real(copy.resolve_conj()) : copy.view(r.dtype);
}

at::Tensor from_carrier(const at::Tensor& reduced, const Reduction& r, at::ScalarType dtype) {
  switch (r.carrier) {
    case Carrier::kAsInt32:
      return reduced.to(dtype);
    case Carrier::kAsReal:
      return at::view_as_complex(reduced);
    default:
      return reduced.view(dtype);
  }
}

int64_t carrier_bytes(const Reduction& r) {  // all but a widened copy share memory with the result
  return r.carrier == Carrier::kAsInt32 ? static_cast<int64_t>(sizeof(int32_t)) : 0;
}

absl::Span<const at::ScalarType> reducible_dtypes() {
  static const auto* dtypes = [] {
    auto* list = new std::vector<at::ScalarType>;
    for (const Row& row : kNccl) list->push_back(row.dtype);
    return list;
  }();
  return *dtypes;
}

std::string_view describe(CommBackend backend) { return entry(backend).name; }

std::string_view describe(Transport transport) {
  constexpr std::string_view kTexts[] = {"one `alltoall_base` of bytes", "grouped sends and receives", "copies"};
  return kTexts[static_cast<size_t>(transport)];
}

std::string_view describe(Carrier carrier) {
  constexpr std::string_view kTexts[] = {"in order", "native", "as uint8", "as int32", "as signed", "as real", "-"};
  return kTexts[static_cast<size_t>(carrier)];
}

}  // namespace dtensor::internal
