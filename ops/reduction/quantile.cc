// quantile and nanquantile by tensor operators: since 2.15, LibTorch's own code reads memory.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using at::Tensor;
using torch::jit::Stack;

struct Request {
  bool skips_nan = false;
  Tensor self, q;
  std::optional<int64_t> dim;
  bool keepdim = false;
  std::string interpolation;

  const char* name() const { return skips_nan ? "nanquantile()" : "quantile()"; }
};

void check(const Request& r) {
  TORCH_CHECK(r.self.numel() > 0, r.name(), " input tensor must be non-empty");
  TORCH_CHECK(r.q.dim() <= 1, r.name(), " q must be a scalar or 1D tensor, not one of ", r.q.dim(), " dims");
  // A q whose elements are sharded is not read, as that would communicate: gather() rejects values out of range.
  const bool readable = !is_dtensor(r.q) || (spec_of(r.q)->is_replicated() && spec_of(r.q)->mesh().world().has_data());
  TORCH_CHECK_VALUE(!readable || ((r.q >= 0) & (r.q <= 1)).all().item<bool>(), r.name(),
                    " q values must be in the range [0, 1]");
  TORCH_CHECK(r.self.scalar_type() == at::kFloat || r.self.scalar_type() == at::kDouble, r.name(),
              " input tensor must be either float or double dtype, not ", r.self.scalar_type());
  TORCH_CHECK(r.q.scalar_type() == r.self.scalar_type(), r.name(),
              " q tensor must be same dtype as the input tensor: ", r.q.scalar_type(), " and ", r.self.scalar_type());
  for (const char* known : {"linear", "lower", "higher", "midpoint", "nearest"}) {
    if (r.interpolation == known) return;
  }
  TORCH_CHECK(false, r.name(), " interpolation must be one of linear, lower, higher, midpoint or nearest, but got ",
              r.interpolation);
}

// The position of each quantile in its row, usually between two values. A nan in the row is the quantile, or is
// skipped.
Tensor places(const Request& r, const Tensor& rows) {
  const int64_t last = rows.size(-1) - 1;
  if (r.skips_nan) {
    const Tensor place = r.q * (rows.isnan().logical_not().sum(-1, /*keepdim=*/true) - 1);
    return place.masked_fill(place < 0, 0);
  }
  const std::vector<Tensor> alike = at::broadcast_tensors({r.q * last, rows.isnan().any(-1, /*keepdim=*/true)});
  return alike[0].masked_fill(alike[1], last);
}

Tensor values_at(const Request& r, const Tensor& rows, Tensor place) {
  if (r.interpolation == "lower") place = place.floor();
  if (r.interpolation == "higher") place = place.ceil();
  if (r.interpolation == "nearest") place = place.round();
  const Tensor below = place.to(at::kLong);
  const Tensor values = rows.gather(-1, below);
  if (r.interpolation != "linear" && r.interpolation != "midpoint") return values;
  const Tensor weights = r.interpolation == "midpoint" ? at::full_like(place, 0.5) : place - below;
  return values.lerp(rows.gather(-1, place.ceil().to(at::kLong)), weights);
}

Tensor compute(const Request& r) {
  check(r);
  const int64_t ndim = r.self.dim(), dim = at::maybe_wrap_dim(r.dim.value_or(0), ndim);
  const bool is_flat = !r.dim || ndim == 0, is_last = dim == ndim - 1;
  const Tensor rows = is_flat   ? std::get<0>(r.self.flatten().sort())
                      : is_last ? std::get<0>(r.self.sort())
                                : std::get<0>(r.self.unsqueeze(-1).transpose(dim, -1).sort());
  Tensor result = values_at(r, rows, places(r, rows));  // the quantiles of a row are its last dim
  if (is_flat) {
    for (int64_t d = 0; r.keepdim && d < ndim; ++d) result = result.unsqueeze(0);
  } else if (is_last) {
    if (r.keepdim) result = result.unsqueeze(-2);
  } else if (!r.keepdim) {
    result = result.squeeze(dim);
  }
  return r.q.dim() == 0 ? result.squeeze(-1) : result.movedim(-1, 0);
}

void run(const c10::OperatorHandle& op, Stack& stack) {
  auto args = torch::jit::pop(stack, op.schema().arguments().size());
  Request r{op.schema().name() == "aten::nanquantile",
            args[0].toTensor(),
            {},
            args[2].toOptional<int64_t>(),
            args[3].toBool(),
            args[4].toStringRef()};
  if (args[1].isTensor()) {
    r.q = args[1].toTensor();
  } else {
    const double q = args[1].toDouble();
    TORCH_CHECK_VALUE(q >= 0 && q <= 1, r.name(), " q must be in the range [0, 1] but got ", q);
    r.q = at::scalar_tensor(q, r.self.options());
  }
  stack.emplace_back(compute(r));
}

}  // namespace

const RuleFamily quantile_handlers("quantile", [](RuleRegistry& registry) {
  for (const char* op : {"aten::quantile", "aten::quantile.scalar", "aten::nanquantile", "aten::nanquantile.scalar"})
    registry.add_handler(op, run);
});

}  // namespace dtensor::internal
