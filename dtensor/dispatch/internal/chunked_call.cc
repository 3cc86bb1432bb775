#include "dtensor/dispatch/internal/chunked_call.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <utility>

#include "dtensor/dispatch/report_work.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/parallel/chunked_product.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/match_strides.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// Which inputs of a call are what. REQUIRES of the others: they are in their places.
struct ProductInputs {
  size_t rows = 0, matrix = 1;
  std::optional<size_t> bias;
};

std::optional<ProductInputs> product_inputs(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  if (info.name == "aten::mm") return ProductInputs{};
  const bool adds = info.name == "aten::addmm" && args[3].toScalar().equal(1) && args[4].toScalar().equal(1);
  if (!adds || in.tensors[0].dim() != 1) return std::nullopt;
  return ProductInputs{1, 2, 0};
}

// The plan of the rows, if only they move.
std::shared_ptr<const RedistributePlan> plan_of_rows(const Decision& decision, size_t rows) {
  for (size_t k = 0; k < decision.input_plans.size(); ++k) {
    if (k != rows && decision.input_plans[k]) return nullptr;
  }
  return decision.input_plans[rows];
}

}  // namespace

std::optional<std::vector<RankTensors>> run_in_chunks(const OpInfo& info, const Decided& decided, const Inputs& in,
                                                      c10::ArrayRef<c10::IValue> args) {
  const int64_t chunks = current_dispatch_scope().communication_chunks;
  const Decision& decision = *decided.decision;
  const auto inputs = product_inputs(info, in, args);
  if (!inputs || !c10::isFloatingType(decision.outputs[0]->dtype())) return std::nullopt;
  const auto plan = plan_of_rows(decision, inputs->rows);
  const at::Tensor& rows = in.tensors[inputs->rows];
  if (!plan || plan->tensor.sizes != spec_of(rows)->sizes()) return std::nullopt;
  const auto cut = cut_into_chunks(*plan, chunks);
  if (!cut || plan->steps[0].kind != RedistributeStep::Kind::kAllGather || find_cached_layout(rows, *plan))
    return std::nullopt;
  PendingMove move = choose_move(rows, plan);
  if (move.plan != plan) return std::nullopt;

  const CommCause cause{info.name, arg_name(info, in, static_cast<int>(inputs->rows)), module_of_call(in.tensors),
                        /*implicit=*/true};
  const ProductParts parts{meta_for_read(rows).locals, meta_for_read(in.tensors[inputs->matrix]).locals,
                           inputs->bias ? meta_for_read(in.tensors[*inputs->bias]).locals : RankTensors()};
  ProductPlan product{decision.computed[inputs->rows], decision.outputs[0], decision.outputs[0], plan, nullptr, *cut};
  GatheredProduct result = [&] {
    const LocalGuard guard;
    return gather_and_multiply(product, parts, SummedDim::kFirst, cause);
  }();
  match_strides(*Spec::get(plan->to.mesh(), plan->to.placements(), in_own_memory(plan->tensor)), result.rows);
  finish_move(rows, plan->to.placements(), std::move(move), std::move(result.rows));
  note_work_elsewhere();
  keep_decision(in, decided);
  return std::vector<RankTensors>{std::move(result.result)};
}

}  // namespace dtensor::internal
