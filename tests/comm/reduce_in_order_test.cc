// Reductions in one process, against ATen's operators one after the other.
#include "comm/reduce_in_order.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "comm/avx2.h"
#include "comm/store_past_caches.h"
#include "tests/testing/allocated_memory.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/intra_op_threads.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

at::Tensor next(const at::Tensor& sum, const at::Tensor& addend, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return sum + addend;
    case ReduceOp::kProduct:
      return sum * addend;
    case ReduceOp::kMin:
      return at::minimum(sum, addend);
    case ReduceOp::kMax:
      return at::maximum(sum, addend);
    case ReduceOp::kNorm2:
      break;  // no collective's: a plan makes it of a sum
  }
  return {};
}

at::Tensor expected_of(const std::vector<at::Tensor>& addends, ReduceOp op) {
  const auto dtype = addends[0].scalar_type();
  at::Tensor sum = c10::isReducedFloatingType(dtype) ? addends[0].to(at::kFloat) : addends[0];
  for (size_t i = 1; i < addends.size(); ++i) sum = next(sum, addends[i].to(sum.scalar_type()), op);
  if (op == ReduceOp::kAvg) {
    // Part by part: a complex divisor would round otherwise, and carry NaN from one to another.
    const auto n = static_cast<int64_t>(addends.size());
    sum = sum.is_complex() ? at::view_as_complex(at::view_as_real(sum) / n) : sum / n;
  }
  return sum.to(dtype);
}

// Numbers that round in every operation, if they can.
at::Tensor addend(at::IntArrayRef sizes, at::ScalarType dtype, int64_t rank) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  const auto numbers =
      (at::arange(numel, at::kLong) * (7919 + 2 * rank) + 31 * rank).remainder(1009).reshape(sizes) - 500;
  return c10::isIntegralType(dtype, true) ? numbers.to(dtype) : (numbers.to(at::kDouble) / 37).to(dtype);
}

// Equal in every bit that ATen promises: NaN is NaN.
bool same_values(const at::Tensor& a, const at::Tensor& b) {
  return a.isclose(b, 0, 0, /*equal_nan=*/true).all().item<bool>();
}

TEST_CASE("reductions of every dtype, with any strides, equal ATen's operators", "[mesh][reduce]") {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kShort,
                           at::kByte, at::kBool, at::kComplexFloat}) {
    for (const ReduceOp op : kReductions) {
      const bool exists = (op != ReduceOp::kAvg || !c10::isIntegralType(dtype, true)) &&
                          ((op != ReduceOp::kMin && op != ReduceOp::kMax) || !c10::isComplexType(dtype));
      if (!exists) continue;
      for (size_t count : {1, 2, 5}) {
        for (int way = 0; way < 4; ++way) {
          CAPTURE(c10::toString(dtype), to_string(op), count, way);
          const auto laid = [&](const at::Tensor& t, bool odd) {
            if (way == 0 || (way == 1 && !odd)) return t;
            if (way == 2) return t.t().contiguous().t();
            const auto wide = at::full({t.size(0), 2 * t.size(1) + 1}, 7, t.options());
            return wide.slice(1, 1, 2 * t.size(1) + 1, way == 3 ? 2 : 1).narrow(1, 0, t.size(1)).copy_(t);
          };
          std::vector<at::Tensor> addends, outputs;
          for (size_t r = 0; r < count; ++r)
            addends.push_back(laid(addend({29, 37}, dtype, static_cast<int64_t>(r)), r % 2 == 1));
          const auto expected = expected_of(addends, op);
          for (int k = 0; k < 3; ++k) outputs.push_back(laid(at::full({29, 37}, 9, addends[0].options()), k == 1));
          reduce_in_order(outputs, addends, op);
          for (const at::Tensor& out : outputs) CHECK(same_values(out, expected));
        }
      }
    }
  }
}

TEST_CASE("reductions of 1 to 9 addends in one dim, dense and strided in any order, into one output or several",
          "[mesh][reduce]") {
  const int64_t n = 1300;  // two chunks and a part of one
  for (size_t count = 1; count <= 9; ++count) {
    for (uint32_t strided = 0; strided < (1u << std::min<size_t>(count, 5)); ++strided) {
      for (const size_t outs : {1, 2}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
          CAPTURE(count, strided, outs, to_string(op));
          std::vector<at::Tensor> addends, outputs;
          for (size_t r = 0; r < count; ++r) {
            const at::Tensor values = addend({n}, at::kFloat, static_cast<int64_t>(r));
            const bool is_strided = (strided >> r & 1) != 0;
            addends.push_back(is_strided ? at::full({2 * n}, 7, values.options()).slice(0, 1, 2 * n, 2).copy_(values)
                                         : values);
          }
          for (size_t k = 0; k < outs; ++k) {
            const at::Tensor wide = at::full({2 * n}, 9, addends[0].options());
            outputs.push_back((strided & 1) != 0 ? wide.slice(0, 0, 2 * n, 2) : wide.narrow(0, 3, n));
          }
          reduce_in_order(outputs, addends, op);
          for (const at::Tensor& out : outputs) CHECK(same_values(out, expected_of(addends, op)));
        }
      }
    }
  }
}

TEST_CASE("reductions of blocks write their block and nothing else, wherever the blocks lie", "[mesh][reduce]") {
  const Shape sizes{2, 1, 5};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    for (size_t count = 1; count <= 6; ++count) {
      for (const int way : {0, 1, 2, 3}) {
        CAPTURE(c10::toString(dtype), count, way);
        std::vector<at::Tensor> tensors, views;
        std::vector<Shape> offsets;
        for (size_t r = 0; r < count; ++r) {
          const bool is_other = way == 2 || (way == 3 && r == 1);
          // The block is dense in [n, 1, 5], and has gaps in [n, 3, 7].
          at::Tensor t =
              addend(is_other ? at::IntArrayRef{6, 3, 7} : at::IntArrayRef{6, 1, 5}, dtype, static_cast<int64_t>(r));
          if (way == 1 && r == count - 1) t = at::neg(t)._neg_view();
          const auto begin = static_cast<int64_t>(r % 4);
          offsets.push_back(is_other ? Shape{begin, 2, 1} : Shape{begin, 0, 0});
          views.push_back(t.narrow(0, begin, 2).narrow(1, is_other ? 2 : 0, 1).narrow(2, is_other ? 1 : 0, 5));
          tensors.push_back(std::move(t));
        }
        std::vector<TensorBlock> blocks;
        for (size_t r = 0; r < count; ++r) blocks.push_back({&tensors[r], &offsets[r]});
        const at::Tensor out = at::full({4, 1, 5}, 9, tensors[0].options());
        const Shape at_row{1, 0, 0};
        reduce_blocks_in_order({&out, &at_row}, blocks, sizes, ReduceOp::kSum);
        CHECK(same_values(out.narrow(0, 1, 2), expected_of(views, ReduceOp::kSum)));
        CHECK((out.select(0, 0) == 9).all().item<bool>());
        CHECK((out.select(0, 3) == 9).all().item<bool>());
      }
    }
  }
}

TEST_CASE("reductions of sizes near their chunks, and of large ones in several threads", "[mesh][reduce]") {
  const int64_t many = kPastCaches / (3 * static_cast<int64_t>(sizeof(float))) + 5;  // three results past the caches
  for (const int threads : {1, 3}) {
#if defined(__SANITIZE_THREAD__)
    if (threads > 1) {
      WARN("not under ThreadSanitizer, which cannot see how OpenMP's threads wait");
      continue;
    }
#endif
    const testing::IntraOpThreads scope(threads);
    for (const int64_t numel :
         {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513}, int64_t{1537}, int64_t{70001}, many}) {
      for (const int64_t begin : {0, 1}) {  // aligned to nothing but an element
        CAPTURE(threads, numel, begin);
        std::vector<at::Tensor> addends, outputs;
        for (int64_t r : {0, 1, 2}) {
          addends.push_back(addend({numel + begin}, at::kFloat, r).narrow(0, begin, numel));
          outputs.push_back(at::full({numel + begin + 1}, -1, at::kFloat));
        }
        const auto expected = expected_of(addends, ReduceOp::kAvg);
        std::vector<at::Tensor> places;
        for (const at::Tensor& out : outputs) places.push_back(out.narrow(0, begin, numel));
        reduce_in_order(places, addends, ReduceOp::kAvg);
        for (int64_t r : {0, 1, 2}) {
          CHECK(at::equal(places[r], expected));
          CHECK(outputs[r][numel + begin].item<float>() == -1);  // elements behind the end are unchanged
          if (begin == 1) CHECK(outputs[r][0].item<float>() == -1);
        }
      }
    }
  }
}

TEST_CASE("reductions of large strided tensors", "[mesh][reduce]") {
  for (const int64_t columns : {3, 2000}) {  // rows that are short, and rows that go past the caches
    const int64_t rows = 6'000'000 / columns;
    CAPTURE(columns);
    std::vector<at::Tensor> addends, outputs, whole;
    for (int64_t r : {0, 1}) {
      addends.push_back(addend({rows, columns + 1}, at::kFloat, r).narrow(1, r, columns));
      whole.push_back(at::full({rows, columns + 3}, -1, at::kFloat));
      outputs.push_back(whole.back().narrow(1, 1 + r, columns));
    }
    const auto expected = expected_of(addends, ReduceOp::kSum);
    reduce_in_order(outputs, addends, ReduceOp::kSum);
    for (int64_t r : {0, 1}) {
      CHECK(at::equal(outputs[r], expected));
      CHECK((whole[r].narrow(1, 0, 1 + r) == -1).all().item<bool>());
      CHECK((whole[r].narrow(1, 1 + r + columns, 2 - r) == -1).all().item<bool>());
    }
  }
}

TEST_CASE("reductions need the stated memory", "[mesh][reduce]") {
  for (const auto dtype : {at::kFloat, at::kLong, at::kHalf, at::kBFloat16, at::kShort, at::kByte, at::kUInt16,
                           at::kUInt32, at::kUInt64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      CAPTURE(c10::toString(dtype), to_string(op));
      std::vector<at::Tensor> addends;
      for (int64_t r : {0, 1, 2}) addends.push_back(addend({1000}, at::kLong, r).to(dtype));
      const auto out = at::empty_like(addends[0]);
      const auto memory = std::make_shared<testing::AllocatedMemory>();
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
      reduce_in_order({out}, addends, op);
      const int64_t more = memory->peak() - 1000 * reduce_in_order_bytes(dtype, op);
      CHECK(more >= 0);
      CHECK(more <= 16);  // the number that turns first bits over, as a tensor of int64 and of the dtype
    }
  }
}

TEST_CASE("loops for AVX2 run only where LibTorch's do", "[mesh][reduce]") {
#ifdef DTENSOR_HAVE_AVX2
  const char* const capability = std::getenv("ATEN_CPU_CAPABILITY");
  if (capability != nullptr && std::string(capability) == "default") CHECK_FALSE(has_avx2());
  if (at::get_cpu_capability() == "AVX2" || at::get_cpu_capability() == "AVX512") CHECK(has_avx2());
#endif
}

TEST_CASE("minimum and maximum of a NaN are NaN, and sums of integers wrap", "[mesh][reduce]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<at::Tensor> addends = {at::tensor({nan, 1.F, 2.F}), at::tensor({3.F, nan, -4.F})};
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto out = at::empty_like(addends[0]);
    reduce_in_order({out}, addends, op);
    CHECK(same_values(out, expected_of(addends, op)));
    CHECK(out.isnan().sum().item<int64_t>() == 2);
  }
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto out = at::tensor({int64_t{0}, int64_t{0}});
  reduce_in_order({out}, std::vector<at::Tensor>{at::tensor({most, int64_t{-2}}), at::tensor({int64_t{1}, most})},
                  ReduceOp::kSum);
  CHECK(out[0].item<int64_t>() == std::numeric_limits<int64_t>::min());
  CHECK(out[1].item<int64_t>() == most - 2);
}

}  // namespace
}  // namespace dtensor
