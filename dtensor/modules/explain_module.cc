// What became of the styles of a module.
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/analysis/text_table.h"
#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel/style_of_module.h"
#include "dtensor/parallelize_module.h"

namespace dtensor {
using namespace internal;

namespace {

void for_each_module(const torch::nn::Module& module,
                     const std::function<void(const std::string&, const torch::nn::Module&)>& f) {
  module.apply(f, std::string());
}

std::string layout_text(const at::Tensor& t) { return is_dtensor(t) ? to_string(spec_of(t)->placements()) : "plain"; }

// "RS(2) (style)"
std::string layout_and_decider(const SpecPtr& seen, bool by_style) {
  if (!seen) return "-";
  return absl::StrCat(to_string(seen->placements()), by_style ? " (style)" : " (engine)");
}

// Module, who decided, parameters, input, output, operators.
TextRow row_of_module(const std::string& path, const torch::nn::Module& module) {
  std::vector<std::string> parameters;
  bool all_replicated = true;
  for (const auto& p : module.named_parameters(/*recurse=*/false)) {
    if (!p.value().defined()) continue;
    parameters.push_back(p.key() + " " + layout_text(p.value()));
    all_replicated = all_replicated && is_dtensor(p.value()) && spec_of(p.value())->is_replicated();
  }
  const auto style = present_style(module, path);
  TextRow row{path.empty() ? "(itself)" : path,
              all_replicated ? "engine" : "user",
              absl::StrJoin(parameters, ", "),
              "-",
              "-",
              "-"};
  if (!style) return row;
  if (style->given()) row[1] = style->style.to_string();
  const ModuleStyle::Seen seen = style->seen();
  row[3] = layout_and_decider(seen.input, style->input.has_value());
  row[4] = layout_and_decider(seen.output, style->output.has_value());
  row[5] = seen.calls == 0 ? "never ran" : std::to_string(seen.calls);
  return row;
}

}  // namespace

void check_styles_ran(const torch::nn::Module& module) {
  std::vector<std::string> missing;
  std::vector<std::shared_ptr<ModuleStyle>> styles;
  for_each_module(module, [&](const std::string& path, const torch::nn::Module& m) {
    const auto style = present_style(m, path);
    if (!style || !style->given()) return;
    styles.push_back(style);
    if (!style->seen().since_check) missing.push_back("'" + path + "', " + style->style.to_string());
  });
  for (const auto& style : styles) style->begin_check();
  TORCH_CHECK_VALUE(missing.empty(),
                    "[check_styles_ran] no operator followed these styles since parallelize_module() or the "
                    "last check: ",
                    absl::StrJoin(missing, "; "),
                    ". An operator follows a style if it takes a parameter of the module itself, not a copy, and "
                    "another distributed tensor on the style's mesh; one that writes (in place, out=), a custom one, "
                    "and one that parallelize_module.h does not list follow none: call one that is listed, such as "
                    "linear or matmul, or leave the module out of the plan.");
}

std::string explain_module(const torch::nn::Module& module) {
  std::vector<TextRow> rows{{"module", "decided by", "parameters", "input", "output", "operators"}};
  for_each_module(module, [&](const std::string& path, const torch::nn::Module& m) {
    if (!own_parameters(m).empty()) rows.push_back(row_of_module(path, m));
  });
  return text_table(rows);
}

}  // namespace dtensor
