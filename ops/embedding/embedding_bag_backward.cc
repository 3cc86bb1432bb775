// Gradients of embedding bags: of the table, and of the weights of single ids.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_embedding_bag_dense_backward.h>
#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/embedding_bag.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// One strategy: some inputs by name, the others replicated.
DimStrategy strategy(const OpCall& call, const Placement& output,
                     const std::vector<std::pair<const char*, Placement>>& given) {
  DimStrategy s{{output}, Placements(call.inputs.size(), Replicate())};
  for (const auto& [name, placement] : given) {
    const int i = call.input_index(name);
    if (i >= 0 && call.inputs[i]) s.inputs[i] = placement;
  }
  return s;
}

bool splits_first_dim(const OpCall& call, const char* name, int64_t mesh_dim) {
  const Spec* spec = call.input(name);
  return spec != nullptr && spec->ndim() > 0 && spec->placements()[mesh_dim] == Shard(0);
}

// ------------------------------------------------------------ the table

std::vector<DimStrategy> table_strategies(const OpCall& call, int64_t mesh_dim) {
  const int64_t mode = call.get_int("mode");
  const Placement s = Shard(0);
  // The frequency of an id depends on the whole batch; ATen's kernel indexes it by the id's position in the batch.
  const bool splits = !call.get_bool("scale_grad_by_freq");
  std::vector<DimStrategy> result;
  // A row-sharded table needs only its own rows, unless the batch has more.
  if (splits && mode != kBagMax && wants_own_rows(call, mesh_dim)) {
    result.push_back(strategy(call, s, {}));
    if (call.input("indices")->meta().numel() <= call.get_int("num_weights")) return result;
  }
  result.push_back(strategy(call, Replicate(), {}));
  if (splits && splits_first_dim(call, "indices", mesh_dim) && splits_first_dim(call, "offset2bag", mesh_dim)) {
    if (splits_first_dim(call, "bag_size", mesh_dim))  // whole bags
      result.push_back(strategy(call, Partial(),
                                {{"grad", s},
                                 {"indices", s},
                                 {"offset2bag", s},
                                 {"bag_size", s},
                                 {"maximum_indices", s},
                                 {"per_sample_weights", s}}));
    if (mode != kBagMax)
      result.push_back(strategy(call, Partial(), {{"indices", s}, {"offset2bag", s}, {"per_sample_weights", s}}));
  }
  std::vector<std::pair<const char*, Placement>> columns = {{"grad", Shard(1)}};
  if (mode == kBagMax) columns.push_back({"maximum_indices", Shard(1)});
  result.push_back(strategy(call, Shard(1), columns));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg})
    result.push_back(strategy(call, Partial(op), {{"grad", Partial(op)}}));
  return result;
}

OutputMetas table_metas(const OpCall& call) {
  const Spec& grad = *call.input("grad");
  TORCH_CHECK(grad.ndim() == 2, "embedding_bag: expected a gradient of 2 dims, but got ", call.to_string());
  return contiguous_metas({call.get_int("num_weights"), grad.sizes()[1]}, {grad.dtype()});
}

void table_local(const LocalCall& call, Stack& stack) {
  Arguments args(call.op, stack);
  const Spec& result = *call.outputs[0];
  // Bags are counted from the first one that this rank has gradients of.
  const int64_t first_bag = first_of(*call.inputs[0], call.i);
  if (first_bag > 0) args.set("offset2bag", args.tensor("offset2bag") - first_bag);
  const at::Tensor grad = args.tensor("grad"), ids = args.tensor("indices");
  const TableRows rows = table_rows(result, call.i, args["padding_idx"].toInt());
  const bool nothing = ids.numel() == 0 || grad.numel() == 0;
  if (!nothing && rows.size == rows.num_rows) {
    for (const char* name : {"grad", "indices", "offset2bag"}) args.set(name, args.tensor(name).contiguous());
    return call.op.callBoxed(stack);
  }
  const BagsOfIds bags{ids,
                       args.tensor("offset2bag"),
                       optional_tensor(args["per_sample_weights"]),
                       args.tensor("bag_size"),
                       args.tensor("maximum_indices"),
                       args["mode"].toInt()};
  return_tensors(
      call.op, stack,
      {nothing ? grad.new_zeros(result.local_shape(call.i)) : fused_masked_embedding_bag_backward(grad, bags, rows)});
}

// ------------------------------------------------------------ weights of single ids

std::vector<DimStrategy> weights_strategies(const OpCall& call, int64_t mesh_dim) {
  std::vector<DimStrategy> result = {strategy(call, Replicate(), {})};
  if (splits_first_dim(call, "indices", mesh_dim))
    result.push_back(strategy(call, Shard(0), {{"indices", Shard(0)}, {"offset2bag", Shard(0)}}));
  result.push_back(strategy(call, Partial(), {{"grad", Shard(1)}, {"weight", Shard(1)}}));
  result.push_back(strategy(call, Partial(), {{"weight", Shard(0)}}));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    for (const char* name : {"grad", "weight"}) result.push_back(strategy(call, Partial(op), {{name, Partial(op)}}));
  }
  return result;
}

OutputMetas weights_metas(const OpCall& call) {
  return contiguous_metas(call.input("indices")->sizes(), {call.input("grad")->dtype()});
}

// Ids in rows of other ranks get 0 here.
void weights_local(const LocalCall& call, Stack& stack) {
  const Arguments args(call.op, stack);
  return_tensors(call.op, stack,
                 {fused_masked_embedding_bag_weights_backward(
                     args.tensor("grad"), args.tensor("weight"), args.tensor("indices"), args.tensor("offset2bag"),
                     table_rows(*call.inputs[1], call.i, args["padding_idx"].toInt()))});
}

// ------------------------------------------------------------ handlers

// The bag of each id if the forward kernel did not return it, laid out like the ids.
at::Tensor bag_of_each_id(const c10::OperatorHandle& op, const Arguments& args) {
  const at::Tensor ids = args.tensor("indices"), given = args.tensor("offset2bag");
  if (ids.numel() == 0 || given.numel() > 0) return given;
  const Spec& spec = *spec_of(ids);
  const at::Tensor offsets = redistribute_below_autograd(
      args.tensor("offsets"), Placements(spec.placements().size(), Replicate()),
      {c10::toString(op.operator_name()), "offsets", current_scope().module_path, /*implicit=*/true});
  LocalGuard guard;
  RankTensors locals;
  const RankTensors& all = meta_for_read(offsets).locals;
  for (size_t i = 0; i < all.size(); ++i) {
    const LocalLayout part = spec.local_layout(static_cast<int64_t>(i));
    at::Tensor bags = bags_of(all[i], 0, spec.sizes()[0]);
    std::vector<at::Tensor> own;
    for (const IndexRange& run : part.dims[0]) own.push_back(bags.narrow(0, run.begin, run.size));
    locals.push_back(own.empty() ? bags.narrow(0, 0, 0).clone() : at::cat(own));
  }
  const auto dtype = c10::promoteTypes(ids.scalar_type(), offsets.scalar_type());
  for (at::Tensor& local : locals) local = local.to(dtype);
  return make_dtensor(Spec::get(spec.mesh(), spec.placements(), spec.sizes(), dtype), std::move(locals));
}

// _embedding_bag_backward(grad, indices, offsets, offset2bag, ...): the gradient of the table.
void embedding_bag_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  TORCH_CHECK_NOT_IMPLEMENTED(!args["sparse"].toBool(), op.operator_name(),
                              ": gives a tensor of layout Sparse, which cannot be distributed. Call embedding_bag() "
                              "with sparse = false.");
  const at::Tensor bags = bag_of_each_id(op, args);
  const at::Tensor ids = args.tensor("indices").to(bags.scalar_type());  // offsets may have a wider integer type
  const auto optional = args["per_sample_weights"].toOptional<at::Tensor>();
  const at::Tensor result = at::_embedding_bag_dense_backward(
      args.tensor("grad"), ids, bags, args.tensor("bag_size"), args.tensor("maximum_indices"),
      args["num_weights"].toInt(), args["scale_grad_by_freq"].toBool(), args["mode"].toInt(), optional,
      args["padding_idx"].toInt());
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

void weights_backward(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  args.set("offset2bag", bag_of_each_id(op, args));
  dispatch_by_rule(op, stack);
}

}  // namespace

const RuleFamily embedding_bag_backward_rules("embedding_bag_backward", [](RuleRegistry& registry) {
  OpRule table;
  table.per_dim = table_strategies;
  table.metas = table_metas;
  table.local = table_local;
  table.uses_gradient_target = true;
  registry.add("aten::_embedding_bag_dense_backward", std::move(table));
  registry.add_handler("aten::_embedding_bag_backward", embedding_bag_backward);

  OpRule weights;
  weights.per_dim = weights_strategies;
  weights.metas = weights_metas;
  weights.local = weights_local;
  registry.add("aten::_embedding_bag_per_sample_weights_backward", std::move(weights));
  registry.add_handler("aten::_embedding_bag_per_sample_weights_backward", weights_backward);
});

}  // namespace dtensor::internal
