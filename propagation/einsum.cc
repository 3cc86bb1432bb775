// Reads the equations of the rule language.
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "propagation/factor_rule.h"

namespace dtensor {
namespace {

using Factors = std::vector<int>;

// "b...mk": the letters and spaces before and after the ellipsis.
struct Operand {
  std::string_view before, after;
  bool ellipsis = false;

  int64_t num_letters() const {
    const auto is_letter = [](char c) { return c != ' '; };
    return std::count_if(before.begin(), before.end(), is_letter) +
           std::count_if(after.begin(), after.end(), is_letter);
  }
};

using Operands = absl::InlinedVector<Operand, 4>;

Operand parse_operand(std::string_view text, std::string_view equation) {
  constexpr std::string_view kEllipsis = "...";
  Operand result{text, {}, false};
  if (const size_t at = text.find(kEllipsis); at != std::string_view::npos) {
    result = {text.substr(0, at), text.substr(at + kEllipsis.size()), true};
  }
  for (const std::string_view part : {result.before, result.after}) {
    for (const char c : part) {
      TORCH_CHECK(c != '.', "einsum rule \"", equation, "\": one \"...\" expected in \"", text, "\"");
      TORCH_CHECK(std::isalpha(static_cast<unsigned char>(c)) || c == '1' || c == ' ', "einsum rule \"", equation,
                  "\": '", c, "' is not a letter");
    }
  }
  return result;
}

absl::InlinedVector<std::string_view, 4> split_at(std::string_view text, char separator) {
  absl::InlinedVector<std::string_view, 4> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

Operands parse_operands(std::string_view text, std::string_view equation) {
  Operands result;
  for (std::string_view operand : split_at(text, ',')) result.push_back(parse_operand(operand, equation));
  return result;
}

// The label of a dim of an operand: a letter, the k-th ellipsis dim counted from the right, or '1'.
struct Label {
  char letter;
  int64_t ellipsis;
  bool operator==(const Label& o) const { return letter == o.letter && ellipsis == o.ellipsis; }
};

using Labels = absl::InlinedVector<Label, 8>;

Labels labels(const Operand& operand, int64_t ellipsis_dims) {
  Labels result;
  const auto append = [&](std::string_view letters) {
    for (const char c : letters) {
      if (c != ' ') result.push_back({c, 0});
    }
  };
  append(operand.before);
  for (int64_t k = ellipsis_dims; operand.ellipsis && k > 0; --k) result.push_back({'.', k});
  append(operand.after);
  return result;
}

// "mn+mk,kn->mn". The operands refer to the text.
struct Equation {
  std::string_view text;
  Operands inputs, outputs;
  std::vector<std::vector<int>> terms;  // of inputs
  absl::InlinedVector<bool, 4> alone;   // the only input of its term, among several terms: it broadcasts to the result
};

Equation parse_equation(std::string_view text) {
  const size_t arrow = text.find("->");
  TORCH_CHECK(arrow != std::string_view::npos, "einsum rule \"", text, "\": no \"->\"");
  Equation equation;
  equation.text = text;
  const auto terms = split_at(text.substr(0, arrow), '+');
  for (std::string_view term : terms) {
    std::vector<int>& indices = equation.terms.emplace_back();
    for (Operand& operand : parse_operands(term, text)) {
      indices.push_back(static_cast<int>(equation.inputs.size()));
      equation.inputs.push_back(std::move(operand));
    }
    for (size_t i = 0; i < indices.size(); ++i) equation.alone.push_back(indices.size() == 1 && terms.size() > 1);
  }
  equation.outputs = parse_operands(text.substr(arrow + 2), text);
  return equation;
}

// Labels of every input's dims, aligned at the right if the input has fewer dims than letters. `ellipsis_dims`: the
// maximum that "..." stands for.
absl::InlinedVector<Labels, 4> label_inputs(const OpCall& call, const Equation& equation, int64_t& ellipsis_dims) {
  TORCH_CHECK(equation.inputs.size() == call.inputs.size(), call.name(), ": the rule \"", equation.text, "\" has ",
              equation.inputs.size(), " inputs, the call ", call.inputs.size());
  ellipsis_dims = 0;
  absl::InlinedVector<Labels, 4> result(equation.inputs.size());
  for (size_t i = 0; i < equation.inputs.size(); ++i) {
    if (!call.inputs[i]) continue;
    const Operand& operand = equation.inputs[i];
    const int64_t ndim = call.inputs[i]->ndim(), letters = operand.num_letters();
    TORCH_CHECK(ndim == letters || (ndim > letters && operand.ellipsis) || (ndim < letters && equation.alone[i]),
                call.name(), ": argument '", call.input_name(static_cast<int>(i)), "' has ", ndim, " dims, the rule \"",
                equation.text, "\" asks for ", letters, operand.ellipsis ? " or more" : "");
    const int64_t extra = std::max<int64_t>(0, ndim - letters);
    ellipsis_dims = std::max(ellipsis_dims, extra);
    result[i] = labels(operand, extra);
    result[i].erase(result[i].begin(), result[i].end() - ndim);
  }
  return result;
}

// Broadcast dims have no factor. Error: other sizes that differ where the equation has one letter.
void leave_out_broadcast(const OpCall& call, std::string_view text, size_t num_factors, FactorRule& rule) {
  struct Dim {
    size_t input = 0, dim = 0;
    int64_t size = 1;
  };
  absl::InlinedVector<Dim, 8> sizes(num_factors);  // of each factor, the dim that has its size
  absl::InlinedVector<bool, 8> in_input(num_factors, false);
  const auto each_dim = [&](auto&& visit) {
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      for (size_t d = 0; d < rule.inputs[i].size(); ++d) {
        if (rule.inputs[i][d] != kNoFactor) visit(rule.inputs[i][d], Dim{i, d, call.inputs[i]->sizes()[d]});
      }
    }
  };
  each_dim([&](int& factor, const Dim& dim) {
    in_input[factor] = true;
    if (dim.size != 1 && sizes[factor].size == 1) sizes[factor] = dim;
  });
  const auto name = [&](const Dim& dim) {
    return c10::str("dim ", dim.dim, " of '", call.input_name(static_cast<int>(dim.input)), "'");
  };
  each_dim([&](int& factor, const Dim& dim) {
    const Dim& first = sizes[factor];
    if (dim.size == first.size) return;
    // Where sizes differ, the ranks' parts might still fit on some ranks, which would go on alone.
    TORCH_CHECK(dim.size == 1, call.name(), ": ", name(first), " and ", name(dim), " should have the same size, not ",
                first.size, " and ", dim.size, ", by the rule \"", text, "\", in ", call.to_string());
    factor = kNoFactor;
  });
  for (Factors& dims : rule.outputs) {
    for (int& factor : dims) {
      if (factor != kNoFactor && !in_input[factor]) factor = kNoFactor;
    }
  }
}

FactorRule rule_of(const Equation& equation, const OpCall& call, bool linear) {
  int64_t ellipsis_dims;
  const auto input_labels = label_inputs(call, equation, ellipsis_dims);
  FactorRule rule;
  if (linear) rule.terms = equation.terms;

  // Factors are numbered in order of appearance, those of the results first, so that among equals a split without a
  // Partial result comes first.
  Labels factors;
  const auto number = [&](const Label& label) {
    if (label.letter == '1') return kNoFactor;
    const auto it = std::find(factors.begin(), factors.end(), label);
    const int factor = static_cast<int>(it - factors.begin());
    if (it == factors.end()) factors.push_back(label);
    return factor;
  };
  const auto numbered = [&](const Labels& dims) {
    Factors result(dims.size());
    std::transform(dims.begin(), dims.end(), result.begin(), number);
    return result;
  };
  rule.outputs.reserve(equation.outputs.size());
  rule.inputs.reserve(input_labels.size());
  for (const Operand& output : equation.outputs) rule.outputs.push_back(numbered(labels(output, ellipsis_dims)));
  for (const Labels& dims : input_labels) rule.inputs.push_back(numbered(dims));
  leave_out_broadcast(call, equation.text, factors.size(), rule);

  for (int factor = 0; factor < static_cast<int>(factors.size()); ++factor) {
    const bool needs_replication = std::isupper(static_cast<unsigned char>(factors[factor].letter));
    bool contracted = false;
    for (const Factors& dims : rule.outputs)
      contracted = contracted || std::find(dims.begin(), dims.end(), factor) == dims.end();
    if (needs_replication || (contracted && !linear)) {
      rule.need_replication.push_back(factor);
    } else if (contracted) {
      rule.contractions.push_back({factor, ReduceOp::kSum});
    }
  }
  return rule;
}

}  // namespace

FactorRule einsum(const OpCall& call, std::string_view equation, bool linear) {
  return rule_of(parse_equation(equation), call, linear);
}

std::function<FactorRule(const OpCall&)> einsum_rule(std::string_view equation, bool linear) {
  struct Parsed {
    explicit Parsed(std::string_view given) : text(given), equation(parse_equation(text)) {}
    const std::string text;
    const Equation equation;
  };
  return [parsed = std::make_shared<const Parsed>(equation), linear](const OpCall& call) {
    return rule_of(parsed->equation, call, linear);
  };
}

}  // namespace dtensor
