// cat and stack: the joined dim is whole, or made of blocks; the others may be split.
#include "ops/support/movement.h"
#include "ops/views/blocks.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// Every element comes from one input: all inputs may be Partials of one kind at once.
void pass_together(FactorRule& rule) {
  std::vector<int> all;
  for (size_t i = 0; i < rule.inputs.size(); ++i) all.push_back(static_cast<int>(i));
  pass_all_partials(rule, all);
}

FactorRule cat(const OpCall& call, bool one_rank) {
  int64_t ndim = 1, joined = 0;
  for (const SpecPtr& s : call.inputs) {
    if (is_skipped_by_cat(*s)) continue;
    ndim = s->ndim();
    joined += s->sizes()[wrap_dim(call.get_int("dim"), ndim)] > 0;
  }
  OutputDims dims = same_dims(ndim);
  if (joined > 1 && !one_rank) dims.at(wrap_dim(call.get_int("dim"), ndim)) = kNoFactor;  // a single one is copied
  FactorRule rule;
  for (const SpecPtr& s : call.inputs) rule.inputs.push_back(is_skipped_by_cat(*s) ? OutputDims{kNoFactor} : dims);
  rule.outputs = {dims};
  pass_together(rule);
  return rule;
}

FactorRule stack(const OpCall& call) {
  const int64_t ndim = call.inputs[0]->ndim();
  FactorRule rule;
  rule.inputs.assign(call.inputs.size(), same_dims(ndim));
  OutputDims dims = same_dims(ndim);
  dims.insert(dims.begin() + wrap_dim(call.get_int("dim"), ndim + 1), kNoFactor);
  rule.outputs = {dims};
  pass_together(rule);
  return rule;
}

}  // namespace

const RuleFamily cat_rules("cat", [](RuleRegistry& registry) {
  OpRule joined = factor_op_by_ranks(cat);
  cat_at_borders(joined);
  registry.add("aten::cat", joined);
  registry.add("aten::stack", factor_op(stack));
});

}  // namespace dtensor::internal
