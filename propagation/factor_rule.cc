#include "propagation/factor_rule.h"

#include <algorithm>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"

namespace dtensor {
using namespace internal;

namespace {

using Factors = std::vector<int>;

int dim_of(const Factors& factors, int factor) {
  auto it = std::find(factors.begin(), factors.end(), factor);
  return it == factors.end() ? -1 : static_cast<int>(it - factors.begin());
}

// Derives the strategies of one rule; see strategies().
class Deriver {
 public:
  Deriver(const FactorRule& rule, const OpCall& call, int64_t mesh_dim)
      : rule_(rule), call_(call), mesh_dim_(mesh_dim) {
    TORCH_CHECK(rule.inputs.size() == call.inputs.size(), call.name(), ": the rule describes ", rule.inputs.size(),
                " inputs, the call has ", call.inputs.size());
    for (const auto& term : rule.terms) {
      Term present;
      for (int i : term) {
        if (call.inputs[i]) present.push_back(i);
      }
      if (!present.empty()) terms_.push_back(std::move(present));
    }
  }

  std::vector<DimStrategy> run() {
    result_.reserve(8);  // few rules have more
    add(replicated(), rule_.maths);
    int num_factors = 0;
    for (const auto* tensors : {&rule_.inputs, &rule_.outputs}) {
      for (const Factors& factors : *tensors) {
        for (int factor : factors) num_factors = std::max(num_factors, factor + 1);
      }
    }
    for (int factor = 0; factor < num_factors; ++factor) add_splits(factor);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      if (may_be_given(Partial(op))) add_linear(op);
    }
    for (const auto& pass : rule_.passthroughs) {
      if (!may_be_given(Partial(pass.in))) continue;
      DimStrategy s = replicated();
      for (int i : pass.inputs) {
        if (call_.inputs[i]) s.inputs[i] = Partial(pass.in);
      }
      std::fill(s.outputs.begin(), s.outputs.end(), Partial(pass.out));
      add(std::move(s), pass.maths);
    }
    return std::move(result_);
  }

 private:
  using Term = absl::InlinedVector<int, 4>;

  DimStrategy replicated() const { return {Placements(rule_.outputs.size()), Placements(rule_.inputs.size())}; }

  const Placement* given(size_t input) const {
    return mesh_dim_ >= 0 && call_.inputs[input] ? &call_.inputs[input]->placements()[mesh_dim_] : nullptr;
  }

  // Whether an input could have this Partial. Only sums are made of other placements.
  bool may_be_given(const Placement& partial) const {
    if (mesh_dim_ < 0 || partial.reduce_op() == ReduceOp::kSum) return true;
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      if (call_.inputs[i] && *given(i) == partial) return true;
    }
    return false;
  }

  bool is_partial(const DimStrategy& s, size_t input) const {
    return call_.inputs[input] && s.inputs[input].is_partial();
  }

  // The dtype of output `o`; nullopt if the results are not known yet, or the rule covers some of them only.
  std::optional<c10::ScalarType> result_dtype(size_t o) const {
    const bool is_known = call_.results && call_.results->tensors.size() == rule_.outputs.size();
    return is_known && call_.results->tensors[o] ? std::optional(call_.results->tensors[o]->dtype) : std::nullopt;
  }

  bool fits(const DimStrategy& s, PartialSemantics maths) const {
    bool any = false, leaves = false;
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      if (!s.outputs[o].is_partial()) continue;
      leaves = true;
      for (size_t i = 0; i < s.inputs.size(); ++i) {
        if (!is_partial(s, i)) continue;
        any = true;
        const c10::ScalarType from = call_.inputs[i]->dtype();
        if (!passes(maths, s.inputs[i], from, s.outputs[o], result_dtype(o).value_or(from))) return false;
      }
      if (const auto to = result_dtype(o); !any && to && !can_leave(s.outputs[o], *to)) return false;
    }
    const bool scales =
        maths == PartialSemantics::kRing || maths == PartialSemantics::kReal || maths == PartialSemantics::kShift;
    return !leaves || !scales || (!any && terms_.empty()) || factors_are_finite(s);
  }

  // Whether the numbers multiplied with Partials are finite; tensors are assumed to be.
  bool factors_are_finite(const DimStrategy& s) const {
    const auto& arguments = call_.schema().arguments();
    for (size_t a = 0; a < arguments.size(); ++a) {
      const ArgSlot& slot = call_.slots[a];
      NumberClass number = number_class(call_.args[a]);
      if (slot.kind != ArgSlot::Kind::kStatic) {
        const bool whole = slot.count == 1 && call_.inputs[slot.first] && !is_partial(s, slot.first);
        number = whole ? call_.inputs[slot.first]->meta().number : NumberClass::kOrdinary;
      }
      if (number == NumberClass::kNonFinite) return false;
      if (number == NumberClass::kZero &&
          std::find(rule_.divisors.begin(), rule_.divisors.end(), arguments[a].name()) != rule_.divisors.end())
        return false;
    }
    return true;
  }

  // The MaskPartial that input i has, if `s` takes it as a sum; else null.
  const Placement* summed_mask(const DimStrategy& s, size_t i) const {
    const Placement* p = given(i);
    const bool is_sum = p != nullptr && p->is_mask_partial() && p->reduce_op() == ReduceOp::kSum;
    return is_sum && s.inputs[i] == Partial() ? p : nullptr;
  }

  // Adds the strategy, if the dtypes allow it, and if it sums inputs that have MaskPartial also one that keeps these.
  void add(DimStrategy s, PartialSemantics maths) {
    if (!fits(s, maths)) return;
    result_.push_back(std::move(s));
    bool any = false;
    for (size_t i = 0; i < rule_.inputs.size(); ++i) any = any || summed_mask(result_.back(), i) != nullptr;
    if (any) add_masked(result_.back(), maths);
  }

  // A written MaskPartial stays one if no element has values on two ranks: then it is a result.
  void add_masked(DimStrategy s, PartialSemantics maths) {
    int64_t partial = 0;
    const Placement* mask = nullptr;
    bool one_mask = maths != PartialSemantics::kOnce;
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      const Placement* p = summed_mask(s, i);
      partial += p == nullptr && is_partial(s, i);
      if (p == nullptr) continue;
      s.inputs[i] = *p;
      one_mask = one_mask && (mask == nullptr || (*mask == *p && maths == PartialSemantics::kCopy));
      mask = p;
    }
    result_.push_back(s);
    if (!one_mask || partial > 0 || !absl::c_linear_search(call_.written(), true)) return;
    std::fill(s.outputs.begin(), s.outputs.end(), *mask);
    result_.push_back(std::move(s));
  }

  std::optional<ReduceOp> contraction(int factor) const {
    for (const auto& c : rule_.contractions) {
      if (c.factor == factor) return c.op;
    }
    return std::nullopt;
  }

  // Whether nothing is reduced over the factor: it has no elements, or the only input has none.
  bool reduces_nothing(int factor) const {
    const bool is_of_one = rule_.inputs.size() == 1 && rule_.outputs.size() == 1;
    for (size_t i = 0; i < rule_.inputs.size(); ++i) {
      const int d = call_.inputs[i] ? dim_of(rule_.inputs[i], factor) : -1;
      if (d < 0) continue;
      if (call_.inputs[i]->sizes()[d] == 0 || (is_of_one && call_.inputs[i]->meta().numel() == 0)) return true;
    }
    return false;
  }

  // Gives every tensor with the factor the placement that `split` makes for the factor's dim; nothing if it needs
  // replication.
  template <typename Split>
  std::optional<DimStrategy> split(int factor, const Split& split) const {
    if (std::find(rule_.need_replication.begin(), rule_.need_replication.end(), factor) != rule_.need_replication.end())
      return std::nullopt;
    for (const auto* tensors : {&rule_.inputs, &rule_.outputs}) {
      for (const Factors& factors : *tensors) {
        // A diagonal: local blocks do not contain it.
        if (std::count(factors.begin(), factors.end(), factor) > 1) return std::nullopt;
      }
    }
    DimStrategy s = replicated();
    bool in_input = false, in_output = false, contracted = false;
    for (size_t i = 0; i < rule_.inputs.size(); ++i) {
      int d = dim_of(rule_.inputs[i], factor);
      if (d < 0) continue;
      s.inputs[i] = split(d);
      in_input = true;
    }
    if (!in_input) return std::nullopt;
    const std::optional<ReduceOp> op = contraction(factor);
    const bool nothing = op && reduces_nothing(factor);
    for (size_t o = 0; o < rule_.outputs.size(); ++o) {
      int d = dim_of(rule_.outputs[o], factor);
      if (d >= 0) {
        s.outputs[o] = split(d);
        in_output = true;
      } else if (nothing) {
        // Every rank has the result.
      } else if (op) {
        s.outputs[o] = Partial(*op);
        contracted = true;
      } else {
        return std::nullopt;
      }
    }
    if (!contracted) return s;
    // Terms that are not split must still be Partial.
    for (const auto& term : terms_) {
      bool has = std::any_of(term.begin(), term.end(), [&](int i) { return dim_of(rule_.inputs[i], factor) >= 0; });
      if (has) continue;
      if (in_output || !is_linear(*op)) return std::nullopt;
      Placement& first = s.inputs[term.front()];
      if (first.is_sharded()) return std::nullopt;
      first = Partial(*op);
    }
    if (!consistent(s, factor)) return std::nullopt;
    return s;
  }

  // An input of several terms must not be Partial in one and replicated in another.
  bool consistent(const DimStrategy& s, int factor) const {
    for (const auto& term : terms_) {
      int64_t partial = std::count_if(term.begin(), term.end(), [&](int i) { return s.inputs[i].is_partial(); });
      bool has = std::any_of(term.begin(), term.end(), [&](int i) { return dim_of(rule_.inputs[i], factor) >= 0; });
      if (partial != (has ? 0 : 1)) return false;
    }
    return true;
  }

  void add_splits(int factor) {
    auto plain = split(factor, [](int d) { return Shard(d); });
    if (!plain) return;
    add(*std::move(plain), rule_.maths);
    std::vector<int64_t> split_factors;
    for (size_t i = 0; i < rule_.inputs.size(); ++i) {
      const Placement* p = given(i);
      if (p == nullptr || !p->is_strided_shard() || p->dim() != dim_of(rule_.inputs[i], factor)) continue;
      const int64_t sf = p->split_factor();
      if (std::find(split_factors.begin(), split_factors.end(), sf) != split_factors.end()) continue;
      split_factors.push_back(sf);
      add(*split(factor, [sf](int d) { return StridedShard(d, sf); }), rule_.maths);
    }
  }

  void add_linear(ReduceOp op) {
    if (terms_.empty()) return;
    absl::InlinedVector<size_t, 4> choice(terms_.size(), 0);
    const auto first = static_cast<std::ptrdiff_t>(result_.size());
    while (true) {
      DimStrategy s = replicated();
      for (size_t t = 0; t < terms_.size(); ++t) s.inputs[terms_[t][choice[t]]] = Partial(op);
      std::fill(s.outputs.begin(), s.outputs.end(), Partial(op));
      auto same = [&](const DimStrategy& other) { return other.inputs == s.inputs; };
      if (consistent(s, kNoFactor - 1) && std::none_of(result_.begin() + first, result_.end(), same))
        add(std::move(s), rule_.maths);
      size_t t = terms_.size();
      while (t > 0 && ++choice[t - 1] == terms_[t - 1].size()) choice[--t] = 0;
      if (t == 0) return;
    }
  }

  const FactorRule& rule_;
  const OpCall& call_;
  const int64_t mesh_dim_;
  absl::InlinedVector<Term, 4> terms_;  // without absent inputs
  std::vector<DimStrategy> result_;
};

}  // namespace

std::vector<DimStrategy> strategies(const FactorRule& rule, const OpCall& call, int64_t mesh_dim) {
  return Deriver(rule, call, mesh_dim).run();
}

FactorRule pointwise(const OpCall& call, int num_outputs) {
  FactorRule rule;
  int64_t ndim = 0;
  for (const auto& input : call.inputs) ndim = std::max(ndim, input ? input->ndim() : 0);
  Shape sizes(ndim, 1);
  for (const auto& input : call.inputs) {
    for (int64_t d = 0; input && d < input->ndim(); ++d) {
      if (input->sizes()[d] != 1) sizes[d + ndim - input->ndim()] = input->sizes()[d];
    }
  }
  rule.inputs.reserve(call.inputs.size());
  for (const auto& input : call.inputs) {
    Factors factors;
    factors.reserve(input ? input->ndim() : 0);
    for (int64_t d = 0; input && d < input->ndim(); ++d) {
      const int64_t factor = d + ndim - input->ndim();
      // Of a single element that is broadcast to none, nothing is needed.
      const bool has_factor = input->sizes()[d] == sizes[factor] || sizes[factor] == 0;
      factors.push_back(has_factor ? static_cast<int>(factor) : kNoFactor);
    }
    rule.inputs.push_back(std::move(factors));
  }
  Factors all(ndim);
  std::iota(all.begin(), all.end(), 0);
  rule.outputs.assign(num_outputs, all);
  return rule;
}

FactorRule reduction(const OpCall& call, int input, const std::vector<int64_t>& dims, bool keepdim,
                     std::optional<ReduceOp> op, int num_outputs) {
  FactorRule rule;
  for (const auto& other : call.inputs) rule.inputs.emplace_back(other ? other->ndim() : 0, kNoFactor);
  Factors output;
  for (int d = 0; d < static_cast<int>(rule.inputs[input].size()); ++d) {
    rule.inputs[input][d] = d;
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      output.push_back(d);
      continue;
    }
    if (keepdim) output.push_back(kNoFactor);
    if (op) {
      rule.contractions.push_back({d, *op});
    } else {
      rule.need_replication.push_back(d);
    }
  }
  rule.outputs.assign(num_outputs, output);
  if (op && is_linear(*op)) {
    rule.terms = {{input}};
  } else if (op) {
    rule.passthroughs.push_back({{input}, *op, *op, PartialSemantics::kCopy});
  }
  return rule;
}

OpRule factor_op(std::function<FactorRule(const OpCall&)> rule) {
  OpRule result;
  result.flops = [rule](const OpCall& call) { return flops(rule(call)); };
  result.per_dim = [rule = std::move(rule)](const OpCall& call, int64_t mesh_dim) {
    return strategies(rule(call), call, mesh_dim);
  };
  return result;
}

}  // namespace dtensor
