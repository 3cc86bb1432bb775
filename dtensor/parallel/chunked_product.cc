#include "dtensor/parallel/chunked_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <functional>
#include <optional>
#include <utility>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "plan/largest_part.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

SpecPtr spec_of_product(const Spec& rows, int64_t width, const Placements& placements) {
  Shape sizes = rows.sizes();
  sizes.back() = width;
  return Spec::get(rows.mesh(), placements, sizes, rows.dtype());
}

// The rows of one chunk that one owned rank multiplies; into the same rows of `result`. Both are contiguous.
struct LocalProduct {
  at::Tensor rows, matrix, bias, result;  // bias: undefined if there is none

  void multiply(int64_t dim, const IndexRange& run) const {
    const auto sizes = rows.sizes();
    const int64_t before = c10::multiply_integers(sizes.slice(0, dim)),
                  after = c10::multiply_integers(sizes.slice(dim + 1, sizes.size() - dim - 2));
    const auto some = [&](const at::Tensor& t, int64_t i) {
      return t.view({before, sizes[dim], after * t.size(-1)})
          .select(0, i)
          .narrow(0, run.begin, run.size)
          .view({run.size * after, t.size(-1)});
    };
    for (int64_t i = 0; i < before; ++i) {
      at::Tensor to = some(result, i);
      if (bias.defined()) {
        at::addmm_out(to, bias, some(rows, i), matrix);
      } else {
        at::mm_out(to, some(rows, i), matrix);
      }
    }
  }
};

std::vector<LocalProduct> local_products(const RankTensors& rows, const ProductParts& parts, bool biased,
                                         SummedDim summed, const RankTensors& results) {
  std::vector<LocalProduct> products;
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& matrix = parts.matrices[i];
    products.push_back({rows[i].contiguous(), summed == SummedDim::kFirst ? matrix : matrix.t(),
                        biased ? parts.biases[i] : at::Tensor(), results[i]});
    if (rows[i].numel() > 0) continue;
    results[i].zero_();  // no chunk has rows of a rank without features
    if (biased) results[i].add_(parts.biases[i]);
  }
  return products;
}

// Reports each chunk's share of the floating-point operations and of the rows that are read and written. Each chunk
// reads the whole matrix.
class ChunkReports {
 public:
  ChunkReports(const ProductPlan& plan, bool biased, const CommCause& cause)
      : event_{biased ? "aten::addmm" : "aten::mm", cause.module_path, in_backward()}, chunks_(plan.cut.chunks) {
    if (!has_listeners()) return;
    event_.ranks = plan.rows->mesh().size();
    const auto& mesh = plan.rows->mesh().shape();
    const auto elements = [](const Shape& sizes) { return c10::multiply_integers(sizes.begin(), sizes.end()); };
    const Shape rows = largest_part(plan.rows->sizes(), mesh, plan.rows->placements()),
                product = largest_part(plan.product->sizes(), mesh, plan.product->placements());
    of_rank_ = 2 * rows.back() * elements(product);
    whole_ = 2 * plan.rows->sizes().back() * elements(plan.product->sizes());
    event_.dtype = plan.rows->dtype();
    const auto size = static_cast<int64_t>(c10::elementSize(event_.dtype));
    row_bytes_ = size * (elements(rows) + elements(product));
    matrix_bytes_ = size * rows.back() * product.back();
  }
  void done(int64_t k) {
    if (!has_listeners()) return;
    const auto share = [&](int64_t all) { return all * (k + 1) / chunks_ - all * k / chunks_; };
    event_.flops = static_cast<double>(share(of_rank_));
    event_.whole_flops = static_cast<double>(share(whole_));
    event_.bytes = share(row_bytes_) + matrix_bytes_;
    report(event_);
  }

 private:
  WorkEvent event_;
  int64_t chunks_, of_rank_ = 0, whole_ = 0, row_bytes_ = 0, matrix_bytes_ = 0;
};

RankTensors new_parts(const SpecPtr& spec, const RankTensors& like) {
  RankTensors parts;
  for (size_t i = 0; i < like.size(); ++i) {
    const Shape sizes = spec->local_shape(static_cast<int64_t>(i));
    parts.push_back(at::empty({sizes.data(), sizes.size()}, like[i].options()));
  }
  return parts;
}

RankTensors multiply_and_scatter(const ProductPlan& plan, const ProductParts& parts, SummedDim summed,
                                 const CommCause& cause, const std::function<void()>& meanwhile) {
  std::optional<LocalGuard> guard(std::in_place);
  const RankTensors addends = new_parts(plan.product, parts.rows);
  const MemoryHold hold(plan.product->mesh().world().memory(), plan.product->max_local_bytes());
  ChunkedExchange exchange(plan.scatter, plan.cut, addends, cause);
  const auto products = local_products(parts.rows, parts, /*biased=*/false, summed, addends);
  ChunkReports reports(plan, !parts.biases.empty(), cause);
  for (int64_t k = 0; k < plan.cut.chunks; ++k) {
    for (size_t i = 0; i < products.size(); ++i) {
      for (const IndexRange& run : exchange.rows(i, k)) products[i].multiply(plan.cut.dim, run);
    }
    reports.done(k);
    exchange.begin(k);
  }
  guard.reset();  // `meanwhile` computes with distributed tensors
  meanwhile();
  guard.emplace();
  for (int64_t k = 0; k < plan.cut.chunks; ++k) exchange.wait(k);
  for (size_t i = 0; i < parts.biases.size(); ++i) exchange.outputs()[i].add_(parts.biases[i]);
  return exchange.outputs();
}

}  // namespace

std::optional<Placements> product_placements(const Placements& rows, const Placements& matrix, SummedDim summed,
                                             int64_t last) {
  const auto summed_dim = static_cast<int64_t>(summed);
  Placements result;
  for (size_t m = 0; m < rows.size(); ++m) {
    const Placement &a = rows[m], &w = matrix[m];
    const bool cuts_rows = a.is_sharded() && a.dim() < last;
    if (w.is_replicate() && (a.is_replicate() || cuts_rows)) {
      result.push_back(a);
    } else if (w == Shard(1 - summed_dim) && a.is_replicate()) {
      result.push_back(Shard(last));
    } else if (w == Shard(summed_dim) && a == Shard(last)) {
      result.push_back(Partial());
    } else {
      return std::nullopt;
    }
  }
  return result;
}

std::optional<ProductPlan> plan_product(const SpecPtr& rows, const Placements& computed, const Spec& matrix,
                                        SummedDim summed, const std::optional<Placements>& result, int64_t max_chunks) {
  const auto summed_dim = static_cast<int64_t>(summed);
  const int64_t last = rows->ndim() - 1;
  const auto placements = product_placements(computed, matrix.placements(), summed, last);
  if (!placements) return std::nullopt;
  const SpecPtr product = spec_of_product(*rows, matrix.sizes()[1 - summed_dim], *placements);
  ProductPlan plan{Spec::get(rows->mesh(), computed, in_own_memory(rows->meta())), product, product, {}, {}, {}};
  if (result) plan.result = product->with_placements(*result);
  const bool gathers = rows->placements() != plan.rows->placements(), scatters = plan.result != product;
  if (gathers == scatters) return std::nullopt;
  const auto& limits = current_dispatch_scope().hints.limits;
  auto& moves = gathers ? plan.gather : plan.scatter;
  moves = gathers ? cached_plan_within(rows, computed, limits)
                  : cached_plan_within(product, plan.result->placements(), limits);
  const auto cut = moves ? cut_into_chunks(*moves, max_chunks) : std::nullopt;
  if (!cut) return std::nullopt;
  plan.cut = *cut;
  return plan;
}

GatheredProduct gather_and_multiply(const ProductPlan& plan, const ProductParts& parts, SummedDim summed,
                                    const CommCause& cause) {
  ChunkedExchange exchange(plan.gather, plan.cut, parts.rows, cause);
  const RankTensors results = new_parts(plan.product, parts.rows);
  const auto products = local_products(exchange.outputs(), parts, !parts.biases.empty(), summed, results);
  ChunkReports reports(plan, !parts.biases.empty(), cause);
  exchange.begin(0);
  for (int64_t k = 0; k < plan.cut.chunks; ++k) {
    if (k + 1 < plan.cut.chunks) exchange.begin(k + 1);
    exchange.wait(k);
    for (size_t i = 0; i < products.size(); ++i) {
      for (const IndexRange& run : exchange.rows(i, k)) products[i].multiply(plan.cut.dim, run);
    }
    reports.done(k);
  }
  return {exchange.outputs(), results};
}

ProductResult run_product(const ProductPlan& plan, const ProductTensors& tensors, SummedDim summed,
                          const CommCause& cause, const std::function<void(const at::Tensor& rows)>& meanwhile) {
  const ProductParts parts{meta_for_read(tensors.rows).locals, meta_for_read(tensors.matrix).locals,
                           tensors.bias.defined() ? meta_for_read(tensors.bias).locals : RankTensors()};
  ProductResult result;
  const auto compute_meanwhile = [&] {
    if (meanwhile) meanwhile(result.rows);
  };
  if (plan.gather) {
    GatheredProduct product = [&] {
      const LocalGuard guard;
      return gather_and_multiply(plan, parts, summed, cause);
    }();
    result = {make_dtensor(plan.rows, std::move(product.rows)), make_result(plan.result, std::move(product.result))};
    compute_meanwhile();
  } else {
    result.rows = tensors.rows;
    result.result = make_dtensor(plan.result, multiply_and_scatter(plan, parts, summed, cause, compute_meanwhile));
  }
  return result;
}

}  // namespace dtensor::internal
