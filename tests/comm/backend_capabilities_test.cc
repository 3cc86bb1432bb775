// The table of what backends do themselves, and that what is carried in another form comes out right.
#include "comm/backend_capabilities.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

#include "comm/communicator_checks.h"
#include "comm/reduce_in_order.h"
#include "tests/testing/allocated_memory.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// What a backend would do with the carriers: they have dtypes for which ATen has arithmetic.
at::Tensor reduced(const RankTensors& addends, ReduceOp op) {
  at::Tensor out = at::empty(addends[0].sizes(), addends[0].options());
  reduce_in_order({out}, addends, op);
  return out;
}

TEST_CASE("capabilities: the table rejects exactly the reductions that communicators reject", "[mesh][capabilities]") {
  for (at::ScalarType dtype : reducible_dtypes()) {
    for (ReduceOp op : kOps) {
      for (CommBackend backend : kCommBackends) {
        CAPTURE(c10::toString(dtype), to_string(op), describe(backend));
        bool refused = false;
        try {
          check_reduce_op(Collective::kAllReduce, op, at::empty({1}, dtype));
        } catch (const c10::Error&) {
          refused = true;
        }
        const auto r = reduction_by(backend, Collective::kAllReduce, dtype, op);
        CHECK((r.carrier == Carrier::kUndefined) == refused);
        CHECK(reduction_by(backend, Collective::kReduceScatter, dtype, op).carrier !=
              (refused ? Carrier::kInOrder : Carrier::kUndefined));
      }
    }
  }
}

TEST_CASE("capabilities: Gloo and copies reduce in order, NCCL by its own reductions", "[mesh][capabilities]") {
  const auto carrier = [](CommBackend b, at::ScalarType dtype, ReduceOp op, Collective c = Collective::kAllReduce) {
    return reduction_by(b, c, dtype, op).carrier;
  };
  for (at::ScalarType dtype : reducible_dtypes()) {
    CHECK(carrier(CommBackend::kGloo, dtype, ReduceOp::kSum) == Carrier::kInOrder);
    CHECK(carrier(CommBackend::kCopies, dtype, ReduceOp::kSum) == Carrier::kInOrder);
    CHECK(carrier(CommBackend::kNccl, dtype, ReduceOp::kSum, Collective::kReduceScatter) == Carrier::kInOrder);
    CHECK(carrier(CommBackend::kNccl, dtype, ReduceOp::kSum) ==
          carrier(CommBackend::kNcclLocal, dtype, ReduceOp::kSum));
  }
  CHECK(carrier(CommBackend::kNccl, at::kBFloat16, ReduceOp::kAvg) == Carrier::kNative);
  CHECK(carrier(CommBackend::kNccl, at::kShort, ReduceOp::kMax) == Carrier::kAsInt32);
  CHECK(carrier(CommBackend::kNccl, at::kComplexFloat, ReduceOp::kSum) == Carrier::kAsReal);
  CHECK(carrier(CommBackend::kNccl, at::kComplexFloat, ReduceOp::kProduct) == Carrier::kInOrder);
  CHECK(carrier(CommBackend::kNccl, at::kFloat8_e4m3fn, ReduceOp::kSum) == Carrier::kInOrder);  // not in the table
  CHECK(reduction_by(CommBackend::kNccl, Collective::kAllReduce, at::kBool, ReduceOp::kSum).op == ReduceOp::kMax);
  CHECK(reduction_by(CommBackend::kNccl, Collective::kAllReduce, at::kBool, ReduceOp::kProduct).op == ReduceOp::kMin);
}

TEST_CASE("capabilities: a reduction in a carrier dtype equals that of the dtype itself", "[mesh][capabilities]") {
  for (at::ScalarType dtype : reducible_dtypes()) {
    for (ReduceOp op : kOps) {
      const auto form = reduction_by(CommBackend::kNcclLocal, Collective::kReduceScatter, dtype, op);
      if (form.carrier == Carrier::kInOrder || form.carrier == Carrier::kUndefined) continue;
      CAPTURE(c10::toString(dtype), to_string(op));
      RankTensors addends, carriers;
      for (int64_t rank : {0, 1, 2}) {
        // Near the ends of the range, so that sums and products run over.
        const bool integers = c10::isIntegralType(dtype, /*includeBool=*/false);
        addends.push_back(integers ? values({3, 4}, at::kLong, rank).sub(2).to(dtype).t()
                                   : values({3, 4}, dtype, rank).t());
        carriers.push_back(to_carrier(addends.back(), form));
        CHECK(carriers.back().scalar_type() == form.dtype);
        CHECK(carriers.back().is_contiguous());
        CHECK_FALSE(carriers.back().is_alias_of(addends.back()));
      }
      const at::Tensor got = from_carrier(reduced(carriers, form.op), form, dtype);
      CHECK(got.scalar_type() == dtype);
      const at::Tensor expected = reduced(addends, op);
      CHECK((op == ReduceOp::kAvg ? at::allclose(got, expected)
                                  : at::equal(got, expected)));  // a quotient may round another way
    }
  }
}

TEST_CASE("capabilities: substitutes need the stated memory", "[mesh][capabilities]") {
  for (at::ScalarType dtype : reducible_dtypes()) {
    const auto form = reduction_by(CommBackend::kNccl, Collective::kAllReduce, dtype, ReduceOp::kSum);
    if (form.carrier == Carrier::kInOrder) continue;
    CAPTURE(c10::toString(dtype));
    const at::Tensor input = at::empty({1000}, dtype);
    const auto memory = std::make_shared<testing::AllocatedMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const at::Tensor carrier = to_carrier(input, form);
    const at::Tensor result = from_carrier(carrier, form, dtype);
    CHECK(memory->peak() == static_cast<int64_t>(result.nbytes()) + 1000 * carrier_bytes(form));
  }
}

TEST_CASE("capabilities: unsigned integers are reduced as such, without ATen's arithmetic", "[mesh][capabilities]") {
  const auto of = [](std::vector<int64_t> numbers, at::ScalarType dtype) {
    return at::tensor(numbers, at::kLong).to(dtype);
  };
  for (at::ScalarType dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
    CAPTURE(c10::toString(dtype));
    const RankTensors addends = {of({1, -1, 7, 0}, dtype), of({2, 3, -2, 0}, dtype), of({4, 5, 6, 1}, dtype)};
    CHECK(at::equal(reduced(addends, ReduceOp::kSum), of({7, 7, 11, 1}, dtype)));
    CHECK(at::equal(reduced(addends, ReduceOp::kProduct), of({8, -15, -84, 0}, dtype)));
    CHECK(at::equal(reduced(addends, ReduceOp::kMin), of({1, 3, 6, 0}, dtype)));
    CHECK(at::equal(reduced(addends, ReduceOp::kMax), of({4, -1, -2, 1}, dtype)));  // -1 is the largest of them
  }
}

}  // namespace
}  // namespace dtensor
