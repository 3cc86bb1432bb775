#include "ops/support/movement.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace dtensor::internal {

int64_t ndim(const OpCall& call) { return call.inputs[0]->ndim(); }

int64_t dim_arg(const OpCall& call, const char* name, int64_t extra) {
  return wrap_dim(call.get_int(name), ndim(call) + extra);
}

OutputDims same_dims(int64_t n) {
  OutputDims dims(n);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

void pass_all_partials(FactorRule& rule, const std::vector<int>& inputs) {
  for (ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kNorm2}) {
    rule.passthroughs.push_back({inputs, op, op, PartialSemantics::kCopy});
  }
}

FactorRule movement(const OpCall& call, const OutputDims& output, int num_outputs, Passing passing) {
  FactorRule rule;
  rule.inputs.resize(call.inputs.size());
  rule.inputs[0] = same_dims(call.inputs[0]->ndim());
  rule.outputs.assign(num_outputs, output);
  if (call.inputs[0]->meta().numel() == 0 && !call.schema().is_mutable()) return rule;
  if (passing == Passing::kAll) pass_all_partials(rule, {0});
  if (passing == Passing::kLinear) rule.terms = {{0}};
  return rule;
}

OpRule factor_op_by_ranks(std::function<FactorRule(const OpCall&, bool one_rank)> rule) {
  OpRule result;
  result.per_dim = [rule = std::move(rule)](const OpCall& call, int64_t mesh_dim) {
    return strategies(rule(call, mesh_dim >= 0 && call.mesh.size(mesh_dim) == 1), call, mesh_dim);
  };
  return result;
}

void takes_nothing_if_empty(OpRule& rule) {
  rule.per_dim = [per_dim = std::move(rule.per_dim)](const OpCall& call, int64_t mesh_dim) {
    std::vector<DimStrategy> all = per_dim(call, mesh_dim);
    const auto* result = mesh_dim >= 0 && call.results ? &call.results->tensors.at(0) : nullptr;
    if (result == nullptr || !*result || (*result)->numel() > 0) return all;
    // Nothing is left to add up.
    all.erase(std::remove_if(all.begin(), all.end(), [](const DimStrategy& s) { return s.outputs[0].is_partial(); }),
              all.end());
    DimStrategy stays{{Replicate()}, Placements(call.inputs.size())};
    stays.inputs[0] = call.inputs[0]->placements()[mesh_dim];
    all.push_back(std::move(stays));
    return all;
  };
  if (!rule.local) return;
  rule.local = [otherwise = std::move(rule.local)](const LocalCall& call, torch::jit::Stack& stack) {
    const bool is_whole = call.inputs[0]->is_replicated() || call.outputs[0]->meta().numel() > 0;
    if (is_whole) return otherwise(call, stack);
    const Shape sizes = call.outputs[0]->local_shape(call.i);
    const auto options = stack[0].toTensor().options().dtype(call.outputs[0]->dtype());
    leave_result(call, stack, at::empty(c10::IntArrayRef(sizes.data(), sizes.size()), options));
  };
}

bool adds_places(const std::vector<int64_t>& pad) {
  return std::any_of(pad.begin(), pad.end(), [](int64_t n) { return n > 0; });
}

size_t stack_index(const LocalCall& call, const std::string& name) {
  return static_cast<size_t>(call.op.schema().argumentIndexWithName(name).value());
}

std::function<void(const LocalCall&, torch::jit::Stack&)> with_local_sizes(const std::string& name) {
  return [name](const LocalCall& call, torch::jit::Stack& stack) {
    const Shape sizes = call.outputs[0]->local_shape(call.i);
    stack[stack_index(call, name)] = c10::List<int64_t>(c10::IntArrayRef(sizes.data(), sizes.size()));
    call.op.callBoxed(stack);
  };
}

void leave_result(const LocalCall& call, torch::jit::Stack& stack, at::Tensor result) {
  const auto& arguments = call.op.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (arguments[a].alias_info() == nullptr || !arguments[a].alias_info()->isWrite()) continue;
    result = stack[a].toTensor().copy_(result);
  }
  stack.clear();
  stack.emplace_back(std::move(result));
}

}  // namespace dtensor::internal
