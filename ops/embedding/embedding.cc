// Embedding tables: replicated, column-wise (each rank some features) and row-wise (each rank some of the vocabulary).
//
// A row-wise lookup gives a MaskPartial: at each position at most one rank holds the row, and the others hold zeros, so
// that their sum is the result. Its gradient needs no communication: a rank adds up only the rows that it owns. Ids and
// padding_idx always mean rows of the whole table.
#include "ops/embedding/embedding.h"

#include "ops/embedding/mask_buffer.h"
#include "ops/embedding/masked_embedding.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {

IndexRange own_rows(const Spec& table, int64_t i) {
  const IndexRanges runs = table.local_layout(i).dims[0];
  return runs.empty() ? IndexRange{} : runs.front();
}

namespace {

std::vector<DimStrategy> embedding_strategies(const OpCall& call, int64_t mesh_dim) {
  TORCH_CHECK(call.input("weight")->ndim() == 2, "'weight' must be 2-D");
  auto result = strategies(einsum(call, "Vd,...->...d", /*linear=*/false), call, mesh_dim);
  result.push_back({{MaskPartial(call.input("weight")->sizes(), 0)}, {Shard(0), Replicate()}});
  return result;
}

OutputMetas embedding_metas(const OpCall& call) {
  Shape sizes = call.input("indices")->sizes();
  sizes.push_back(call.input("weight")->sizes().back());
  return metas_of({meta_tensor(*call.input("weight")).new_empty(sizes)});
}

void embedding_local(const LocalCall& local, torch::jit::Stack& stack) {
  const Spec& table = *local.inputs[0];
  const IndexRange rows = own_rows(table, local.i);
  const int64_t num_rows = table.sizes()[0];
  if (rows.size == num_rows) return local.op.callBoxed(stack);
  const size_t num_args = local.op.schema().arguments().size();
  const auto args = torch::jit::last(stack, num_args);
  const at::Tensor part = args[0].toTensor(), ids = args[1].toTensor();
  at::Tensor result = fused_masked_embedding(part, ids, rows.begin, num_rows);
  if (args.back().isTensor()) result = args.back().toTensor().copy_(result);  // out=
  torch::jit::drop(stack, num_args);
  stack.emplace_back(std::move(result));
}

std::vector<DimStrategy> embedding_backward_strategies(const OpCall& call, int64_t mesh_dim) {
  FactorRule rule = einsum(call, "...d,...->Vd");
  rule.terms = {{call.input_index("grad_output")}};
  // The frequency of an id depends on the whole batch.
  if (call.get_bool("scale_grad_by_freq")) {
    for (const auto& c : rule.contractions) rule.need_replication.push_back(c.factor);
  }
  // A row-sharded table needs only its own rows' gradient, from the whole batch: any other layout would be a gradient
  // of the whole table. Not if the batch has more rows than the table.
  std::vector<DimStrategy> all;
  if (wants_own_rows(call, mesh_dim)) {
    all.push_back({{Shard(0)}, {Replicate(), Replicate()}});
    if (call.input("indices")->meta().numel() <= call.get_int("num_weights")) return all;
  }
  for (DimStrategy& s : strategies(rule, call, mesh_dim)) all.push_back(std::move(s));
  return all;
}

OutputMetas embedding_backward_metas(const OpCall& call) {
  const Spec& grad = *call.input("grad_output");
  return metas_of({meta_tensor(grad).new_empty({call.get_int("num_weights"), grad.sizes().back()})});
}

// Gradient of a rank's own rows.
void embedding_backward_local(const LocalCall& local, torch::jit::Stack& stack) {
  const IndexRange rows = own_rows(*local.outputs[0], local.i);
  const size_t num_args = local.op.schema().arguments().size();
  const auto args = torch::jit::last(stack, num_args);
  const int64_t num_weights = args[2].toInt(), padding_idx = args[3].toInt();
  const at::Tensor grad = args[0].toTensor(), ids = args[1].toTensor();
  const bool has_features = !grad.is_cuda() || grad.size(-1) > 0;  // without any, ATen's kernel reads what is not there
  if (rows.size == num_weights && has_features) return local.op.callBoxed(stack);
  const bool scale_grad_by_freq = args[4].toBool();
  at::Tensor result;
  if (!has_features) {
    result = grad.new_empty({rows.size, 0});
  } else if (scale_grad_by_freq) {
    result = masked_embedding_backward(grad, ids, rows.begin, rows.size, padding_idx, scale_grad_by_freq);
  } else {
    result = fused_masked_embedding_backward(grad, ids, rows.begin, rows.size, num_weights, padding_idx);
  }
  if (args.back().isTensor()) result = args.back().toTensor().copy_(result);  // out=
  torch::jit::drop(stack, num_args);
  stack.emplace_back(std::move(result));
}

}  // namespace

bool wants_own_rows(const OpCall& call, int64_t mesh_dim) {
  const Spec* target = call.context.gradient_target.get();
  return target != nullptr && target->mesh() == call.mesh && target->ndim() == 2 &&
         target->sizes()[0] == call.get_int("num_weights") && target->placements()[mesh_dim] == Shard(0);
}

const RuleFamily embedding_rules("embedding", [](RuleRegistry& registry) {
  OpRule forward;
  forward.per_dim = embedding_strategies;
  forward.metas = embedding_metas;
  forward.local = embedding_local;
  forward.value_free = {"padding_idx"};
  registry.add("aten::embedding", std::move(forward));

  OpRule backward;
  backward.per_dim = embedding_backward_strategies;
  backward.metas = embedding_backward_metas;
  backward.local = embedding_backward_local;
  backward.uses_gradient_target = true;
  registry.add("aten::embedding_dense_backward", std::move(backward));
});

}  // namespace dtensor::internal
