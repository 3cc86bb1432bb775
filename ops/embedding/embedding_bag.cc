// Embedding bags: sums, means or maxima of rows of a table. Tables may be replicated, column-wise (each rank some
// features) and, for sums and means, row-wise (each rank adds up the rows that it has). Bags stay split where each rank
// holds all ids of its bags.
#include "ops/embedding/embedding_bag.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/embedding/embedding.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/plain_numbers.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {

int64_t first_of(const Spec& spec, int64_t i) { return spec.local_layout(i).offsets[0]; }

TableRows table_rows(const Spec& table, int64_t i, int64_t padding_idx) {
  const IndexRange own = own_rows(table, i);
  return {own.begin, own.size, table.sizes()[0], padding_idx};
}

namespace {

using torch::jit::Stack;

// Arguments of _embedding_bag and _embedding_bag_forward_only among the inputs, and the results.
enum Input { kWeight, kIds, kOffsets, kSampleWeights };
enum Output { kResult, kBagOfId, kBagSize, kMaxIds };

// ------------------------------------------------------------ the rule

bool has_sample_weights(const OpCall& call) {
  return call.inputs.size() > kSampleWeights && call.inputs[kSampleWeights];
}

// ATen's kernels for sums of float tables do not need the bag of each id.
bool names_no_bags(const OpCall& call) {
  const Spec& weight = *call.inputs[kWeight];
  const bool fast = weight.dtype() == at::kFloat || weight.dtype() == at::kHalf || weight.dtype() == at::kBFloat16;
  return call.mesh.world().device_type() == c10::DeviceType::CPU && call.get_int("mode") == kBagSum && fast &&
         weight.strides()[1] == 1 && call.get_int("padding_idx") < 0;
}

OutputMetas embedding_bag_metas(const OpCall& call) {
  const Spec &weight = *call.inputs[kWeight], &ids = *call.inputs[kIds], &offsets = *call.inputs[kOffsets];
  const int64_t mode = call.get_int("mode");
  TORCH_CHECK(weight.ndim() == 2 && ids.ndim() == 1 && offsets.ndim() == 1 && mode >= kBagSum && mode <= kBagMax,
              "embedding_bag: expected a table of 2 dims, ids and offsets of 1, and a mode from 0 to 2, but got ",
              call.to_string());
  TORCH_CHECK(!has_sample_weights(call) || mode == kBagSum,
              "embedding_bag: per_sample_weights only supported with mode='sum'");
  TORCH_CHECK(!has_sample_weights(call) || call.inputs[kSampleWeights]->sizes() == ids.sizes(),
              "embedding_bag: per_sample_weights must be one per id, in ", call.to_string());
  const int64_t last = call.get_bool("include_last_offset") ? 1 : 0;
  const int64_t bags = offsets.sizes()[0] - last;
  TORCH_CHECK(bags >= 0, "include_last_offset: number of offset should be at least 1");
  const bool counted = mode != kBagSum || call.schema().name() == "aten::_embedding_bag";
  const auto index = c10::promoteTypes(ids.dtype(), offsets.dtype());
  const std::vector<int64_t> features = {bags, weight.sizes()[1]}, sizes = {counted ? bags : bags + last};
  const std::vector<int64_t> named = {names_no_bags(call) ? 0 : ids.sizes()[0]};
  OutputMetas result;
  for (const auto& [shape, dtype] : std::vector<std::pair<std::vector<int64_t>, c10::ScalarType>>{
           {features, weight.dtype()}, {named, index}, {sizes, index}, {mode == kBagMax ? features : sizes, index}}) {
    result.tensors.push_back(contiguous_metas(shape, {dtype}).tensors[0]);
    result.counts.push_back(-1);
  }
  return result;
}

std::vector<DimStrategy> embedding_bag_strategies(const OpCall& call, int64_t mesh_dim) {
  const int64_t mode = call.get_int("mode");
  const Placement r = Replicate();
  const Placements whole(call.inputs.size(), r);
  std::vector<DimStrategy> result = {{{r, r, r, r}, whole}};
  const auto add = [&](Input input, const Placement& in, Placements outputs) {
    result.push_back({std::move(outputs), whole});
    result.back().inputs[input] = in;
  };
  if (call.inputs[kIds]->placements()[mesh_dim] == Shard(0) &&
      call.inputs[kOffsets]->placements()[mesh_dim] == Shard(0)) {  // whole bags
    const Placement s = Shard(0);
    result.push_back({{s, names_no_bags(call) ? r : s, s, s}, {r, s, s, s}});
    result.back().inputs.resize(call.inputs.size(), r);
  }
  add(kWeight, Shard(1), {Shard(1), r, r, mode == kBagMax ? Shard(1) : r});
  if (mode == kBagMax) return result;
  add(kWeight, Shard(0), {Partial(), r, r, r});
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    add(kWeight, Partial(op), {Partial(op), r, r, r});
    if (has_sample_weights(call)) add(kSampleWeights, Partial(op), {Partial(op), r, r, r});
  }
  return result;
}

// ------------------------------------------------------------ on one rank

// ATen's kernel, for a rank that has all rows.
std::vector<at::Tensor> run(const at::Tensor& weight, const Bags& b, int64_t padding_idx) {
  const auto [result, bag_of_id, size, max_ids] =
      at::_embedding_bag(weight, b.ids, b.offsets, false, b.mode, false, b.weights, b.include_last_offset, padding_idx);
  return {result, bag_of_id, size, max_ids};
}

// All results but the bags, as ATen gives them, from a table without memory that has the right number of rows.
std::vector<at::Tensor> run_without_rows(const at::Tensor& weight, Bags b, const TableRows& rows) {
  b.weights = at::Tensor();
  return run(at::zeros({1, 1}, weight.options().dtype(at::kDouble)).expand({rows.num_rows, 1}), b, rows.padding_idx);
}

// Makes a result match its spec: some kernels leave it unfilled.
at::Tensor fitted(const at::Tensor& t, const Spec& spec, int64_t i) {
  const Shape sizes = spec.local_shape(i);
  const bool fits = t.sizes() == at::IntArrayRef(sizes) && t.scalar_type() == spec.dtype();
  return fits ? t : t.new_zeros(sizes, t.options().dtype(spec.dtype()));
}

void embedding_bag_local(const LocalCall& call, Stack& stack) {
  const Arguments args(call.op, stack);
  const Spec& table = *call.inputs[kWeight];
  const at::Tensor weight = args.tensor("weight");
  Bags b{args.tensor("indices"), args.tensor("offsets"), optional_tensor(args["per_sample_weights"]),
         args["mode"].toInt(), args["include_last_offset"].toBool()};
  const int64_t first_id = first_of(*call.inputs[kIds], call.i), first_bag = first_of(*call.inputs[kOffsets], call.i);
  if (b.offsets.size(0) < call.inputs[kOffsets]->sizes()[0]) b.offsets = b.offsets - first_id;
  const TableRows rows = table_rows(table, call.i, args["padding_idx"].toInt());
  torch::jit::drop(stack, call.op.schema().arguments().size());
  std::vector<at::Tensor> results;
  if (b.offsets.size(0) == 0 || b.ids.numel() == 0) {
    results.assign(4, b.offsets);
    results[kResult] = weight;
    for (size_t o = 0; o < 4; ++o)
      results[o] = results[o].new_zeros(call.outputs[o]->local_shape(call.i),
                                        results[o].options().dtype(call.outputs[o]->dtype()));
  } else if (rows.size == rows.num_rows && weight.size(1) > 0) {
    results = run(weight, b, rows.padding_idx);
  } else {
    results = run_without_rows(weight, b, rows);
    results[kResult] = fused_masked_embedding_bag(weight, b, rows).result;
  }
  at::Tensor& bag_of_id = results[kBagOfId];
  const int64_t named = call.outputs[kBagOfId]->local_shape(call.i)[0];
  if (bag_of_id.numel() != named) bag_of_id = bags_of(b.offsets, 0, named);
  if (bag_of_id.numel() > 0 && first_bag > 0) bag_of_id = bag_of_id + first_bag;
  for (size_t o = 0; o < 4; ++o) stack.emplace_back(fitted(results[o], *call.outputs[o], call.i));
}

// ------------------------------------------------------------ handlers

// Whether every rank, with ids in their layout and bags likewise, gets all ids of its bags.
bool holds_whole_bags(const Spec& ids, const at::Tensor& offsets, const Placements& layout) {
  const int64_t bags = offsets.numel(), total = ids.sizes()[0];
  const int64_t* begins = offsets.const_data_ptr<int64_t>();
  const auto begin = [&](int64_t bag) { return bag == bags ? total : begins[bag]; };
  const auto& shape = ids.mesh().shape();
  std::vector<int64_t> coordinate(shape.size(), 0);
  for (int64_t k = 0; k < ids.mesh().size(); ++k) {
    int64_t rest = k;
    for (size_t m = shape.size(); m-- > 0; rest /= shape[m]) coordinate[m] = rest % shape[m];
    const IndexRanges own = local_layout(ids.sizes(), shape, layout, coordinate).dims[0];
    const IndexRanges own_bags = local_layout(Shape{bags}, shape, layout, coordinate).dims[0];
    if (own.size() > 1 || own_bags.size() > 1) return false;
    if (own_bags.empty() && !own.empty()) return false;
    if (own_bags.empty()) continue;
    const int64_t from = begin(own_bags[0].begin), to = begin(own_bags[0].begin + own_bags[0].size);
    if (own.empty() ? from != to : from != own[0].begin || to != own[0].begin + own[0].size) return false;
  }
  return true;
}

// Offsets in the layout of the ids if that cuts no bag, else replicated.
at::Tensor lay_out_offsets(const c10::OperatorHandle& op, const at::Tensor& ids, const at::Tensor& offsets, bool all) {
  const Spec& spec = *spec_of(ids);
  Placements layout(spec.placements().size(), Replicate());
  bool split = false;
  for (size_t m = 0; m < layout.size(); ++m) {
    if (spec.placements()[m] == Shard(0)) layout[m] = Shard(0), split = true;
  }
  const bool readable = spec.mesh().world().has_data() && offsets.dim() == 1;
  if (split && (!all || !readable ||
                !holds_whole_bags(spec, plain_numbers(offsets, op, "offsets").to(at::kLong).contiguous(), layout)))
    layout.assign(layout.size(), Replicate());
  return redistribute_below_autograd(
      offsets, layout, {c10::toString(op.operator_name()), "offsets", current_scope().module_path, /*implicit=*/true});
}

// _embedding_bag, _embedding_bag_forward_only.
void embedding_bag(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor ids = args.tensor("indices"), offsets = args.tensor("offsets");
  if (is_dtensor(ids) && is_dtensor(offsets) && ids.dim() == 1)
    args.set("offsets", lay_out_offsets(op, ids, offsets, !args["include_last_offset"].toBool()));
  dispatch_by_rule(op, stack);
}

// The composite. For 2-d ids, torch::nn makes plain offsets from shapes alone: they are the same on all ranks.
void composite(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor ids = args.tensor("indices"), offsets = args.tensor("offsets");
  if (is_dtensor(ids) && !is_dtensor(offsets) && offsets.dim() == 1 && offsets.numel() > 0) {
    LocalGuard guard;
    const int64_t bags = offsets.size(0), each = ids.numel() / bags;
    const at::Tensor regular = at::arange(0, bags * each, std::max<int64_t>(each, 1), offsets.options());
    if (each > 0 && ids.numel() % bags == 0 && offsets.equal(regular))
      args.set("offsets", replicate_plain(offsets, spec_of(ids)->mesh()));
  }
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
}

}  // namespace

const RuleFamily embedding_bag_rules("embedding_bag", [](RuleRegistry& registry) {
  OpRule rule;
  rule.per_dim = embedding_bag_strategies;
  rule.metas = embedding_bag_metas;
  rule.local = embedding_bag_local;
  for (const char* op : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}) {
    registry.add(op, rule);
    registry.add_handler(op, embedding_bag);
  }
  registry.add_handler("aten::embedding_bag", composite);
});

}  // namespace dtensor::internal
