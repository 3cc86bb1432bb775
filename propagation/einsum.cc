// Reads the equations of the rule language.
#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "propagation/factor_rule.h"

namespace dtensor {
namespace {

using Factors = std::vector<int>;
// "b...mk": letters before and after the ellipsis.
struct Operand {
  std::string before, after;
  bool ellipsis = false;

  int64_t num_letters() const { return static_cast<int64_t>(before.size() + after.size()); }
};

Operand parse_operand(std::string_view text, std::string_view equation) {
  Operand result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    if (c == '.') {
      TORCH_CHECK(text.substr(i, 3) == "..." && !result.ellipsis, "einsum rule \"", equation,
                  "\": \"...\" expected at \"", text.substr(i), "\"");
      result.ellipsis = true;
      i += 2;
      continue;
    }
    TORCH_CHECK(std::isalpha(static_cast<unsigned char>(c)) || c == '1', "einsum rule \"", equation, "\": '", c,
                "' is not a letter");
    (result.ellipsis ? result.after : result.before) += c;
  }
  return result;
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(text.substr(0, end));
  }
  parts.push_back(text);
  return parts;
}

std::vector<Operand> parse_operands(std::string_view text, std::string_view equation) {
  std::vector<Operand> result;
  for (std::string_view operand : split_at(text, ',')) result.push_back(parse_operand(operand, equation));
  return result;
}

// What one dim of an operand is called: a letter, the k-th ellipsis dim counted from the right, or '1'.
struct Label {
  char letter;
  int64_t ellipsis;
  bool operator<(const Label& o) const { return std::tie(letter, ellipsis) < std::tie(o.letter, o.ellipsis); }
};

using Labels = std::vector<Label>;

Labels labels(const Operand& operand, int64_t ellipsis_dims) {
  Labels result;
  for (char c : operand.before) result.push_back({c, 0});
  for (int64_t k = ellipsis_dims; operand.ellipsis && k > 0; --k) result.push_back({'.', k});
  for (char c : operand.after) result.push_back({c, 0});
  return result;
}

// "mn+mk,kn->mn".
struct Equation {
  std::string_view text;
  std::vector<Operand> inputs, outputs;
  std::vector<std::vector<int>> terms;  // of inputs
  std::vector<bool> alone;              // the only input of its term, of several: it broadcasts to the result
};

Equation parse_equation(std::string_view text) {
  const size_t arrow = text.find("->");
  TORCH_CHECK(arrow != std::string_view::npos, "einsum rule \"", text, "\": no \"->\"");
  Equation equation;
  equation.text = text;
  const std::vector<std::string_view> terms = split_at(text.substr(0, arrow), '+');
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

// Of every input's dims, from the right where the input has fewer than letters. `ellipsis_dims`: that "..." stands for,
// at most.
std::vector<Labels> label_inputs(const OpCall& call, const Equation& equation, int64_t& ellipsis_dims) {
  TORCH_CHECK(equation.inputs.size() == call.inputs.size(), call.name(), ": the rule \"", equation.text, "\" has ",
              equation.inputs.size(), " inputs, the call ", call.inputs.size());
  ellipsis_dims = 0;
  std::vector<Labels> result(equation.inputs.size());
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

// Broadcast dims are of no factor.
void leave_out_broadcast(const OpCall& call, size_t num_factors, FactorRule& rule) {
  std::vector<int64_t> sizes(num_factors, 1);
  std::vector<bool> in_input(num_factors, false);
  const auto each_dim = [&](auto&& visit) {
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      for (size_t d = 0; d < rule.inputs[i].size(); ++d) {
        if (rule.inputs[i][d] != kNoFactor) visit(rule.inputs[i][d], call.inputs[i]->sizes()[d]);
      }
    }
  };
  each_dim([&](int& factor, int64_t size) {
    in_input[factor] = true;
    if (size != 1) sizes[factor] = size;
  });
  each_dim([&](int& factor, int64_t size) {
    if (size != sizes[factor]) factor = kNoFactor;
  });
  for (Factors& dims : rule.outputs) {
    for (int& factor : dims) {
      if (factor != kNoFactor && !in_input[factor]) factor = kNoFactor;
    }
  }
}

}  // namespace

FactorRule einsum(const OpCall& call, std::string_view text, bool linear) {
  const Equation equation = parse_equation(text);
  int64_t ellipsis_dims;
  const std::vector<Labels> input_labels = label_inputs(call, equation, ellipsis_dims);
  FactorRule rule;
  if (linear) rule.terms = equation.terms;

  // Numbers: the dims of the results first, so that among equals a split that leaves no Partial comes first.
  std::map<Label, int> factors;
  const auto numbered = [&](const Labels& dims) {
    Factors result;
    for (const Label& label : dims) {
      const bool none = label.letter == '1';
      result.push_back(none ? kNoFactor : factors.emplace(label, static_cast<int>(factors.size())).first->second);
    }
    return result;
  };
  for (const Operand& output : equation.outputs) rule.outputs.push_back(numbered(labels(output, ellipsis_dims)));
  for (const Labels& dims : input_labels) rule.inputs.push_back(numbered(dims));
  leave_out_broadcast(call, factors.size(), rule);

  for (const auto& [label, factor] : factors) {
    const bool blocked = std::isupper(static_cast<unsigned char>(label.letter));
    bool contracted = false;
    for (const Factors& dims : rule.outputs)
      contracted = contracted || std::find(dims.begin(), dims.end(), factor) == dims.end();
    if (blocked || (contracted && !linear)) {
      rule.blocked.push_back(factor);
    } else if (contracted) {
      rule.contractions.push_back({factor, ReduceOp::kSum});
    }
  }
  return rule;
}

}  // namespace dtensor
