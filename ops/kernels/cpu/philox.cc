#include "ops/kernels/cpu/philox.h"

#include <ATen/Dispatch.h>

#include "comm/parallel_for.h"

namespace dtensor::cpu {
using namespace internal;

namespace {

constexpr int64_t kGrain = 4096;  // elements per task

// Calls f(local element, global element) for every element of the part.
template <typename F>
void for_each_element(const GlobalOffsets& offsets, int64_t numel, const F& f) {
  static const std::vector<int64_t> kScalar = {0};
  const auto& last = offsets.empty() ? kScalar : offsets.back();
  const int64_t row = static_cast<int64_t>(last.size());
  if (numel == 0) return;
  parallel_for(0, numel / row, std::max<int64_t>(1, kGrain / row), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t base = 0, rest = r;
      for (int64_t d = static_cast<int64_t>(offsets.size()) - 2; d >= 0; --d) {
        const int64_t size = static_cast<int64_t>(offsets[d].size());
        base += offsets[d][rest % size];
        rest /= size;
      }
      for (int64_t j = 0; j < row; ++j) f(r * row + j, base + last[j]);
    }
  });
}

}  // namespace

void philox_fill(const at::Tensor& part, const GlobalOffsets& offsets, const RandomDraw& draw, uint64_t key,
                 uint64_t stream) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, part.scalar_type(), "philox_fill", [&] {
    auto* out = part.mutable_data_ptr<scalar_t>();
    for_each_element(offsets, part.numel(), [&](int64_t i, int64_t g) {
      out[i] = draw_value<scalar_t>(draw, key, static_cast<uint64_t>(g), stream);
    });
  });
}

void philox_bernoulli(const at::Tensor& part, const at::Tensor& probabilities, const GlobalOffsets& offsets,
                      uint64_t key) {
  const double* p = probabilities.const_data_ptr<double>();
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, part.scalar_type(), "philox_bernoulli", [&] {
    auto* out = part.mutable_data_ptr<scalar_t>();
    for_each_element(offsets, part.numel(), [&](int64_t i, int64_t g) {
      RandomDraw draw;
      draw.kind = RandomKind::kBernoulli;
      draw.a = p[i];
      out[i] = draw_value<scalar_t>(draw, key, static_cast<uint64_t>(g), 0);
    });
  });
}

}  // namespace dtensor::cpu
