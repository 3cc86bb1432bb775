// A product of rows and a matrix next to one exchange, in chunks of rows: the rows are gathered while others are
// multiplied, or the results are reduced and scattered while others are computed. Below autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "dtensor/redistribution/internal/chunked_exchange.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Which dim of the matrix is summed over: of a weight [outputs, inputs] the inputs in forward, the outputs in backward.
enum class SummedDim : uint8_t { kFirst = 0, kSecond = 1 };

// Of the product of rows and a matrix in these layouts, if each rank multiplies its parts; `last`: the last dim of the
// rows. nullopt: the parts do not fit.
std::optional<Placements> product_placements(const Placements& rows, const Placements& matrix, SummedDim summed,
                                             int64_t last);

// How one product is computed, the same on all ranks.
struct ProductPlan {
  SpecPtr rows;                                     // as they are multiplied, [..., n]
  SpecPtr product;                                  // as the kernels compute it, [..., m]
  SpecPtr result;                                   // as it is given
  std::shared_ptr<const RedistributePlan> gather;   // to `rows`; null: they are there
  std::shared_ptr<const RedistributePlan> scatter;  // from `product` to `result`; null: the two are the same
  ChunkCut cut;                                     // of the one of the two that is not null
};

// Of rows in the layout `rows` that are multiplied in the layout `computed`, with a result in the layout `result`, or
// as it is computed. nullopt: not exactly one of the two is to be moved, or that cannot be cut (cut_into_chunks()); or
// the kernels cannot compute each rank's share from its parts of rows and matrix.
std::optional<ProductPlan> plan_product(const SpecPtr& rows, const Placements& computed, const Spec& matrix,
                                        SummedDim summed, const std::optional<Placements>& result, int64_t max_chunks);

struct ProductTensors {
  at::Tensor rows;
  at::Tensor matrix;
  at::Tensor bias;  // [m], laid out as the last dim of `result`; undefined: none
};
struct ProductResult {
  at::Tensor rows;    // laid out as plan.rows
  at::Tensor result;  // laid out as plan.result
};
// plan.cut.chunks collectives, called `cause`. `meanwhile`, if any, is called once, with the rows as they are
// multiplied, and computes with distributed tensors: after all products, and where results are scattered before the
// last of them have arrived. What it throws ends the call; the chunks that have begun go on by themselves. REQUIRES:
// with a bias, plan.result has no Partial.
ProductResult run_product(const ProductPlan& plan, const ProductTensors& tensors, SummedDim summed,
                          const CommCause& cause,
                          const std::function<void(const at::Tensor& rows)>& meanwhile = nullptr);

// The same on local tensors, where the rows are gathered. Below the distributed dispatch key.
struct ProductParts {
  RankTensors rows;      // before they are gathered
  RankTensors matrices;  // one per owned rank
  RankTensors biases;    // likewise; or empty
};
struct GatheredProduct {
  RankTensors rows, result;
};
GatheredProduct gather_and_multiply(const ProductPlan& plan, const ProductParts& parts, SummedDim summed,
                                    const CommCause& cause);

}  // namespace dtensor::internal
