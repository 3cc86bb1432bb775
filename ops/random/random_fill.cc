// Draws keys, and fills parts with random numbers that follow from a key and the global place of an element.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>

#include "comm/scope.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/random/random.h"
#include "ops/random/random_kernel.h"

namespace dtensor::internal {
namespace {

cpu::GlobalOffsets global_offsets(const Spec& spec, int64_t i) {
  const LocalLayout layout = spec.local_layout(i);
  cpu::GlobalOffsets offsets(layout.dims.size());
  int64_t stride = 1;
  for (int64_t d = spec.ndim() - 1; d >= 0; --d) {
    for (const IndexRange& run : layout.dims[d]) {
      for (int64_t k = 0; k < run.size; ++k) offsets[d].push_back((run.begin + k) * stride);
    }
    stride *= spec.sizes()[d];
  }
  return offsets;
}

// Of the ranks that share a Partial, the first holds the value, and the others the reduction's neutral element. For
// averages, minima and maxima, all hold the value.
void neutralize(const Spec& spec, int64_t i, const at::Tensor& part) {
  const auto coordinate = spec.mesh().local_coordinate(i);
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    const Placement& p = spec.placements()[m];
    if (!p.is_partial() || coordinate[m] == 0) continue;
    if (p.reduce_op() == ReduceOp::kSum || p.reduce_op() == ReduceOp::kNorm2) part.zero_();
    if (p.reduce_op() == ReduceOp::kProduct) part.fill_(1);
  }
}

}  // namespace

uint64_t draw_random_key(const std::optional<at::Generator>& given) {
  at::Generator generator = given && given->defined() ? *given : at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  if (generator.device().is_cpu()) return generator.get<at::CPUGeneratorImpl>()->random64();
  // A CUDA generator has a seed and an offset: advance by the four words that ATen's kernels take at least.
  const uint64_t position = generator.get_offset();
  generator.set_offset(position + 4);
  const PhiloxWords x = philox4x32(generator.current_seed(), position);
  return static_cast<uint64_t>(x.w[0]) << 32 | x.w[1];
}

void fill_random(const at::Tensor& tensor, const RandomDraw& draw, uint64_t key) {
  const DTensorMeta& meta = meta_for_write(tensor);
  check_write(tensor, "random fill");
  LocalGuard guard;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    const auto offsets = global_offsets(*meta.spec, static_cast<int64_t>(i));
    const at::Tensor& part = meta.locals[i];
    if (part.is_complex()) {
      philox_fill_part(at::real(part), offsets, draw, key, /*stream=*/0);
      philox_fill_part(at::imag(part), offsets, draw, key, /*stream=*/1);
    } else {
      philox_fill_part(part, offsets, draw, key, /*stream=*/0);
    }
    neutralize(*meta.spec, static_cast<int64_t>(i), part);
  }
  note_write(tensor, "random fill");
}

void fill_bernoulli(const at::Tensor& tensor, const at::Tensor& probability, uint64_t key) {
  const DTensorMeta& meta = meta_for_write(tensor);
  check_write(tensor, "aten::bernoulli_");
  const at::Tensor given = is_dtensor(probability) ? probability : replicate_plain(probability, meta.spec->mesh());
  const CommCause cause{"aten::bernoulli_", "p", current_scope().module_path, /*implicit=*/true};
  const at::Tensor p =
      redistribute_below_autograd(given.expand(tensor.sizes()), without_partials(meta.spec->placements()), cause);
  LocalGuard guard;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    const at::Tensor probabilities = meta_for_read(p).locals[i].to(at::kDouble).contiguous();
    const double low = probabilities.numel() > 0 ? probabilities.min().item<double>() : 0;
    const double high = probabilities.numel() > 0 ? probabilities.max().item<double>() : 0;
    TORCH_CHECK(low >= 0 && high <= 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got values from ", low, " to ",
                high);
    const auto offsets = global_offsets(*meta.spec, static_cast<int64_t>(i));
    philox_fill_part(meta.locals[i], offsets, {RandomKind::kBernoulli}, key, 0, probabilities);
    neutralize(*meta.spec, static_cast<int64_t>(i), meta.locals[i]);
  }
  note_write(tensor, "aten::bernoulli_");
}

}  // namespace dtensor::internal
