#include "ops/support/core_dims.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "ops/support/meta_tensor.h"
#include "propagation/functional_form.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

using Factors = std::vector<int>;

bool has_factor(const std::vector<int>& all, int x) { return std::find(all.begin(), all.end(), x) != all.end(); }

// ------------------------------------------------------------ strategies

// All strategies of the rule except splits of the factors `aside`, then those, on which some results do not depend.
std::vector<DimStrategy> strategies_of(const CoreDims& dims, const OpCall& call, int64_t mesh_dim) {
  FactorRule all = dims.rule;
  all.need_replication.insert(all.need_replication.end(), dims.aside.begin(), dims.aside.end());
  std::vector<DimStrategy> result = strategies(all, call, mesh_dim);
  int num_factors = 0;
  for (const Factors& input : dims.rule.inputs) {
    for (const int factor : input) num_factors = std::max(num_factors, factor + 1);
  }
  for (const int aside : dims.aside) {
    if (has_factor(dims.rule.need_replication, aside)) continue;
    FactorRule one = dims.rule;
    one.outputs.clear();
    one.terms.clear();
    one.passthroughs.clear();
    std::vector<size_t> whole;
    for (size_t o = 0; o < dims.rule.outputs.size(); ++o) {
      if (has_factor(dims.rule.outputs[o], aside)) {
        one.outputs.push_back(dims.rule.outputs[o]);
      } else {
        whole.push_back(o);
      }
    }
    for (int factor = 0; factor < num_factors; ++factor) {
      if (factor != aside) one.need_replication.push_back(factor);
    }
    std::vector<DimStrategy> split = strategies(one, call, mesh_dim);
    for (size_t s = 1; s < split.size(); ++s) {  // the first is: all replicated
      for (const size_t o : whole) split[s].outputs.insert(split[s].outputs.begin() + o, Replicate());
      result.push_back(std::move(split[s]));
    }
  }
  return result;
}

// ------------------------------------------------------------ on one rank

// Zeros, with ones on the diagonals of matrices, as kernels may need invertible ones. LAPACK's pivots, int32 tensors
// next to floating-point matrices, count from 1.
at::Tensor stand_in(at::IntArrayRef sizes, const at::TensorOptions& options, bool invertible, bool may_be_pivots) {
  at::Tensor result = at::zeros(sizes, options);
  if (may_be_pivots && result.scalar_type() == at::kInt) result.fill_(1);
  if (invertible && sizes.size() >= 2 && result.numel() > 0 && (result.is_floating_point() || result.is_complex()))
    result.diagonal(0, -2, -1).fill_(1);
  return result;
}

int64_t stood_in(int64_t local, int64_t global) { return local == 0 && global > 0 ? 1 : local; }

// Replaces tensors that are empty on this rank only by stand-ins. Returns whether there are any.
bool replace_empty(const LocalCall& local, torch::jit::Stack& stack, bool invertible) {
  bool any = false;
  size_t input = 0;
  const size_t base = stack.size() - local.op.schema().arguments().size();
  const bool may_have_pivots = std::any_of(local.inputs.begin(), local.inputs.end(), [](const SpecPtr& spec) {
    return spec && (at::isFloatingType(spec->dtype()) || at::isComplexType(spec->dtype()));
  });
  for (size_t a = base; a < stack.size(); ++a) {
    const auto& type = *local.op.schema().arguments()[a - base].type();
    if (type.str().find("Tensor") == std::string::npos) continue;
    TORCH_INTERNAL_ASSERT(!stack[a].isList(), local.op.schema().name(), ": lists of tensors have no core dims");
    const SpecPtr& spec = input < local.inputs.size() ? local.inputs[input] : nullptr;
    ++input;
    if (!spec || !stack[a].isTensor() || !stack[a].toTensor().defined()) continue;
    const at::Tensor t = stack[a].toTensor();
    std::vector<int64_t> sizes = t.sizes().vec();
    for (size_t d = 0; d < sizes.size(); ++d) sizes[d] = stood_in(sizes[d], spec->sizes()[d]);
    if (t.sizes() == at::IntArrayRef(sizes)) continue;
    stack[a] = stand_in(sizes, t.options(), invertible, may_have_pivots);
    any = true;
  }
  return any;
}

// The rank's part of a result: nothing of a stand-in's, all if replicated.
at::Tensor kept_of(at::Tensor result, const Spec& spec, int64_t rank_index) {
  const Shape sizes = spec.local_shape(rank_index);
  for (int64_t d = 0; d < result.dim(); ++d) {
    if (sizes[d] < result.size(d)) result = result.narrow(d, 0, sizes[d]);
  }
  return result;
}

// Runs the operator with stand-ins for some of the inputs. `given`: the original arguments.
void run_on_stand_ins(const LocalCall& local, const torch::jit::Stack& given, torch::jit::Stack& stack) {
  const auto& schema = local.op.schema();
  // The results of an out= form are written to the original arguments, after cutting.
  if (const auto functional = has_outs(schema) ? functional_form(local.op) : std::nullopt) {
    torch::jit::Stack arguments;
    for (const auto& argument : functional->schema().arguments()) {
      const auto a = schema.argumentIndexWithName(argument.name());
      arguments.push_back(a ? stack[*a] : *argument.default_value());
    }
    functional->callBoxed(arguments);
    stack = std::move(arguments);
  } else {
    local.op.callBoxed(stack);
  }
  size_t output = 0;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    if (!stack[r].isTensor()) continue;
    const SpecPtr& spec = local.outputs[output++];
    if (!spec) continue;
    const at::Tensor kept = kept_of(stack[r].toTensor(), *spec, local.i);
    stack[r] = kept;
    const auto* alias = schema.returns()[r].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for (size_t a = 0; a < given.size(); ++a) {
      const auto* written = schema.arguments()[a].alias_info();
      if (written == nullptr || written->beforeSet() != alias->beforeSet()) continue;
      at::Tensor target = given[a].toTensor();
      if (target.numel() > 0) target.copy_(kept);
      stack[r] = target;
    }
  }
}

// ------------------------------------------------------------ lines of tables

// The equation for the number of dims of the first input.
std::string equation_for(const CoreDimsOp& op, const OpCall& call) {
  if (op.choose != nullptr) return op.choose(call);
  const std::vector<std::string> all = absl::StrSplit(op.equation, '|');
  for (const std::string& equation : all) {
    const std::string first = equation.substr(0, equation.find_first_of(",+-"));
    if (first.find('.') != first.npos || !call.inputs[0] ||
        call.inputs[0]->ndim() == static_cast<int64_t>(first.size()))
      return equation;
  }
  return all.back();
}

// Empty for integers: most of these operators divide, and round.
std::vector<std::vector<int>> terms_of(const CoreDimsOp& op, const OpCall& call) {
  std::vector<std::vector<int>> terms;
  for (const absl::string_view term : absl::StrSplit(op.linear, '+', absl::SkipEmpty())) {
    std::vector<int>& inputs = terms.emplace_back();
    for (const absl::string_view name : absl::StrSplit(term, ' ', absl::SkipEmpty())) {
      const int input = call.input_index(std::string(name));
      if (input < 0) return {};  // another overload's argument
      const auto dtype = call.inputs[input] ? call.inputs[input]->dtype() : c10::ScalarType::Undefined;
      if (c10::isIntegralType(dtype, /*includeBool=*/true)) return {};
      inputs.push_back(input);
    }
  }
  return terms;
}

int64_t size_of(const FactorRule& rule, const OpCall& call, int factor) {
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    const auto d = std::find(rule.inputs[i].begin(), rule.inputs[i].end(), factor) - rule.inputs[i].begin();
    if (d < static_cast<std::ptrdiff_t>(rule.inputs[i].size())) return call.inputs[i]->sizes()[d];
  }
  return -1;
}

// Whether a dim that changes its size can be split into equal pieces on all ranks, before and after.
bool goes_along(const OpCall& call, int64_t in, int64_t out) {
  int64_t pieces = call.mesh.size(), interleaved = 1;
  for (const SpecPtr& input : call.inputs) {
    for (int64_t m = 0; input && m < call.mesh.ndim(); ++m) {
      const Placement& p = input->placements()[m];
      if (p.is_strided_shard()) interleaved = std::max(interleaved, p.split_factor());
    }
  }
  pieces *= interleaved;
  return in > 0 && out > 0 && in % pieces == 0 && out % pieces == 0 && (in % out == 0 || out % in == 0);
}

// The factor of a letter in the core dims of some input; kNoFactor: of none.
int factor_of(const FactorRule& rule, const std::string& equation, char letter) {
  const std::vector<std::string> inputs = absl::StrSplit(equation.substr(0, equation.find("->")), ',');
  for (size_t i = 0; i < inputs.size() && i < rule.inputs.size(); ++i) {
    const size_t at = inputs[i].rfind(letter);
    if (at == inputs[i].npos) continue;
    const size_t from_end = inputs[i].size() - at;
    if (from_end <= rule.inputs[i].size()) return rule.inputs[i][rule.inputs[i].size() - from_end];
  }
  return kNoFactor;
}

// Matches the results in the equation with the actual results.
CoreDims fitted(const CoreDimsOp& op, const OpCall& call, const OutputMetas& metas) {
  const std::string equation = equation_for(op, call);
  CoreDims dims{einsum(call, equation), {}};
  FactorRule& rule = dims.rule;
  rule.terms = terms_of(op, call);
  if (const int factor = op.aside ? factor_of(rule, equation, op.aside) : kNoFactor; factor != kNoFactor) {
    dims.aside.push_back(factor);
    const auto is_aside = [&](const auto& contraction) { return contraction.factor == factor; };
    rule.contractions.erase(std::remove_if(rule.contractions.begin(), rule.contractions.end(), is_aside),
                            rule.contractions.end());
  }
  const std::vector<std::string> operands = absl::StrSplit(equation.substr(equation.find("->") + 2), ',');
  for (size_t o = 0; o < rule.outputs.size(); ++o) {
    if (o >= metas.tensors.size() || !metas.tensors[o]) continue;
    const Shape& sizes = metas.tensors[o]->sizes;
    const Factors labelled = rule.outputs[o];
    const int64_t letters = std::count_if(operands[o].begin(), operands[o].end(), [](char c) { return c != '.'; });
    const auto skipped = static_cast<int64_t>(labelled.size()) - static_cast<int64_t>(sizes.size());
    TORCH_INTERNAL_ASSERT(skipped >= 0, call.name(), ": result ", o, " has ", sizes.size(), " dims, the rule \"",
                          equation, "\" says ", labelled.size());
    Factors& fit = rule.outputs[o];
    fit.assign(sizes.size(), kNoFactor);
    for (int64_t d = 0; d < static_cast<int64_t>(labelled.size()); ++d) {
      const int factor = labelled[d];
      if (factor == kNoFactor) continue;
      const bool of_ellipsis = d < static_cast<int64_t>(labelled.size()) - letters;
      const int64_t in = size_of(rule, call, factor), out = d < skipped ? -1 : sizes[d - skipped];
      if (in == out || (!of_ellipsis && goes_along(call, in, out))) {
        fit[d - skipped] = factor;
      } else if (!of_ellipsis && has_factor(dims.aside, factor) && metas.tensors[o]->numel() == 0) {
        continue;  // not computed in this case: there is nothing to split
      } else if (!of_ellipsis) {
        rule.need_replication.push_back(factor);
      } else if (!has_factor(dims.aside, factor)) {
        dims.aside.push_back(factor);
      }
    }
  }
  return dims;
}

// For operators without a meta kernel: the metadata of a run on a batch of two on the CPU.
OutputMetas try_small(const CoreDimsOp& op, const OpCall& call) {
  const FactorRule rule = einsum(call, equation_for(op, call));
  // A letter that no input has is a size that depends on those of the core dims.
  bool any_size = op.any_size;
  for (const Factors& output : rule.outputs) any_size = any_size && !has_factor(output, kNoFactor);
  const auto small = [&](int factor, int64_t size) {
    if (factor == kNoFactor) return size;
    // Not size one: its stride would not show where in memory the dim comes.
    return any_size || !has_factor(rule.need_replication, factor) ? std::min<int64_t>(size, 2) : size;
  };
  OutputMetas metas = trial_run(call, c10::DeviceType::CPU, [&](int i) {
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < call.inputs[i]->ndim(); ++d)
      sizes.push_back(small(rule.inputs[i][d], call.inputs[i]->sizes()[d]));
    return stand_in(sizes, at::TensorOptions(call.inputs[i]->dtype()), /*invertible=*/true,
                    /*may_be_pivots=*/true);
  });
  for (size_t o = 0; o < rule.outputs.size(); ++o) {
    if (!metas.tensors[o]) continue;
    TensorMeta& meta = *metas.tensors[o];
    if (meta.sizes.size() == rule.outputs[o].size()) {
      for (size_t d = 0; d < meta.sizes.size(); ++d) {
        const int factor = rule.outputs[o][d];
        const int64_t size = factor == kNoFactor ? 0 : size_of(rule, call, factor);
        if (size > 0) meta.sizes[d] = meta.sizes[d] * size / small(factor, size);
      }
    }
    const auto strides = local_strides(meta.sizes, meta.strides);
    meta.strides.assign(strides.begin(), strides.end());
  }
  return metas;
}

OutputMetas metas_of_line(const CoreDimsOp& op, const OpCall& call) {
  try {
    if (auto metas = run_meta(call)) return *std::move(metas);
  } catch (const c10::Error&) {
    if (has_meta_kernel(call.op)) throw;  // else: composite of operators without one
  }
  return try_small(op, call);
}

}  // namespace

OpRule core_dims_rule(std::function<CoreDims(const OpCall&)> dims, std::function<OutputMetas(const OpCall&)> metas,
                      std::function<void(const LocalCall&, Arguments&)> adjust) {
  OpRule rule;
  rule.per_dim = [dims](const OpCall& call, int64_t mesh_dim) { return strategies_of(dims(call), call, mesh_dim); };
  rule.metas = std::move(metas);
  rule.local = [adjust = std::move(adjust)](const LocalCall& local, torch::jit::Stack& stack) {
    const torch::jit::Stack given = stack;
    // Addends computed from an empty batch must be zero: they come from gradients over batches.
    bool addends = false;
    for (const SpecPtr& output : local.outputs) addends = addends || (output && output->has_partial());
    const bool stands_in = replace_empty(local, stack, /*invertible=*/!addends);
    if (adjust) {
      Arguments args(local.op, stack);
      adjust(local, args);
    }
    if (stands_in) return run_on_stand_ins(local, given, stack);
    local.op.callBoxed(stack);
  };
  return rule;
}

OpRule core_dims_rule(const CoreDimsOp& op) {
  const auto adjust = [op](const LocalCall& local, Arguments& args) {
    if (*op.sizes == '\0') return;
    const Spec& result = *local.outputs[0];
    const Shape own = result.local_shape(local.i);
    std::vector<int64_t> sizes = args[op.sizes].toIntVector();
    for (size_t d = 0; d < std::min(sizes.size(), own.size()); ++d) {
      if (own[d] != result.sizes()[d]) sizes[d] = stood_in(own[d], result.sizes()[d]);
    }
    args.set(op.sizes, sizes);
  };
  const auto metas = [op](const OpCall& call) {
    const OpCall runnable = as_runnable(call);
    OutputMetas result = op.metas ? op.metas(runnable) : metas_of_line(op, runnable);
    const bool keeps_format = op.in_format_of_self && call.mesh.world().device_type() == c10::DeviceType::CPU;
    return keeps_format ? in_format_of(*call.input("self"), std::move(result)) : result;
  };
  const auto dims = [op, metas](const OpCall& call) {
    return fitted(op, call, call.results ? *call.results : metas(call));  // verify_rule() asks without results
  };
  return core_dims_rule(dims, metas, adjust);
}

void add_core_dims(RuleRegistry& registry, const CoreDimsOp& op) { registry.add(op.op, core_dims_rule(op)); }

}  // namespace dtensor::internal
