// What reductions by exchanges allocate, measured, against the bytes that plans count.
#include "comm/reduce_by_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/communicator.h"
#include "tests/testing/allocated_memory.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

int64_t bytes_of(const Message& m, const at::Tensor& end) {
  int64_t bytes = static_cast<int64_t>(end.element_size());
  for (int64_t size : m.block.sizes) bytes *= size;
  return bytes;
}

// The most that the first of `n` members holds at once, without its input.
int64_t measured(int64_t numel, at::ScalarType dtype, ReduceOp op, int64_t n) {
  const at::Tensor input = at::ones({numel}, dtype);
  std::vector<int64_t> members(n);
  std::iota(members.begin(), members.end(), 0);
  const auto memory = std::make_shared<testing::AllocatedMemory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  AllReduceSteps plan = all_reduce_by_exchange(members, 0, {input}, op, /*inputs_stay=*/true);
  for (ExchangeStep& step : plan.steps) {
    int64_t sent = 0, received = 0;
    for (const Message& m : step.messages) {
      if (m.sender == m.receiver) continue;
      if (m.sender == 0) {
        sent += bytes_of(m, step.inputs[0][m.input]);
      } else {
        received += bytes_of(m, step.outputs[0][m.output]);
      }
    }
    const at::Tensor send = at::empty({sent}, at::kByte), receive = at::empty({received}, at::kByte);
    for (const at::Tensor& t : step.outputs[0]) t.zero_();  // as if it had come
    step.then();
    step = {};
  }
  return memory->peak();
}

TEST_CASE("reduce by exchange: an all_reduce whose messages are all packed needs the stated memory",
          "[comm][scratch_bytes]") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kShort, at::kUInt16, at::kUInt64}) {
    const auto item = static_cast<int64_t>(c10::elementSize(dtype));
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (int64_t n : {2, 3, 8}) {
        for (int64_t numel : {int64_t{64}, kSmallAllReduceBytes / item / n, int64_t{100'001}}) {
          CAPTURE(c10::toString(dtype), to_string(op), n, numel);
          const int64_t result = numel * item;
          const int64_t more =
              measured(numel, dtype, op, n) - result - all_reduce_by_exchange_bytes(dtype, op, numel * item, n);
          const bool turned_over = op == ReduceOp::kMax && (dtype == at::kUInt16 || dtype == at::kUInt64);
          CHECK(more > -n * item);                // the other members' parts may be an element smaller
          CHECK(more <= (turned_over ? 16 : 0));  // ATen makes a tensor of a number
        }
      }
    }
  }
}

TEST_CASE("reduce by exchange: the table determines the memory of a reduction", "[comm][scratch_bytes]") {
  const auto of = [](CommBackend backend, at::ScalarType dtype, ReduceOp op, int64_t bytes) {
    return reduction_scratch_bytes(backend, Collective::kAllReduce, dtype, op, bytes, 4);
  };
  CHECK(of(CommBackend::kNccl, at::kFloat, ReduceOp::kSum, 4000) == 0);
  CHECK(of(CommBackend::kNccl, at::kBool, ReduceOp::kSum, 1000) == 0);
  CHECK(of(CommBackend::kNccl, at::kShort, ReduceOp::kSum, 2000) == 4000);  // 1000 elements, widened
  CHECK(of(CommBackend::kNccl, at::kComplexFloat, ReduceOp::kProduct, 8000) ==
        all_reduce_by_exchange_bytes(at::kComplexFloat, ReduceOp::kProduct, 8000, 4));
  CHECK(of(CommBackend::kGloo, at::kFloat, ReduceOp::kSum, 4000) == 3 * 4000 + 2 * 3 * 4000);  // addends and messages
  CHECK(reduction_scratch_bytes(CommBackend::kGloo, Collective::kReduceScatter, at::kHalf, ReduceOp::kSum, 2, 4) == 8);
  CHECK(reduction_scratch_bytes(CommBackend::kNccl, Collective::kReduceScatter, at::kFloat, ReduceOp::kSum, 4, 4) == 0);
}

TEST_CASE("worlds without processes need as much memory as a job on GPUs", "[comm][scratch_bytes]") {
  const auto cpu = c10::Device(c10::DeviceType::CPU);
  for (const auto& communicator : {make_local_communicator({cpu, cpu}), make_dry_communicator(cpu)}) {
    CHECK(communicator->scratch_bytes(Collective::kAllReduce, at::kFloat, ReduceOp::kSum, 4000, 2) == 0);
    CHECK(communicator->scratch_bytes(Collective::kAllReduce, at::kShort, ReduceOp::kSum, 2000, 2) == 4000);
    CHECK(communicator->scratch_bytes(Collective::kReduceScatter, at::kHalf, ReduceOp::kSum, 2000, 2) == 8000);
  }
}

}  // namespace
}  // namespace dtensor
