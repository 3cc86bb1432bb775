#include "dtensor/parallel_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel/plan_file.h"
#include "placement/parse_placements.h"

namespace dtensor {
using namespace internal;

namespace {

using StyleJson = nlohmann::ordered_json;

constexpr std::array<const char*, 6> kStyleKinds{"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                                 "PrepareInput",    "PrepareOutput",   "ParameterStyle"};
constexpr const char* kPlanKind = "parallel plan";

StyleJson json_of(const ParallelPlan::Entry& entry) {
  const ParallelStyle& style = entry.style;
  StyleJson json{{"pattern", entry.pattern}, {"style", style.kind}};
  if (style.layouts.input) json["input"] = to_string(*style.layouts.input);
  if (style.layouts.output) json["output"] = to_string(*style.layouts.output);
  for (const ParameterPlacement& p : style.parameters) json["parameters"][p.name] = to_string(p.placement);
  return json;
}

Placement one_placement(const std::string& text) {
  const auto placements = parse_placements(text);
  TORCH_CHECK_VALUE(placements.ok(), std::string(placements.status().message()));
  TORCH_CHECK_VALUE(placements->size() == 1, "'", text, "' is not one placement, such as S(0) or R");
  return placements->front();
}

ParallelPlan::Entry entry_of(const StyleJson& json) {
  ParallelPlan::Entry entry{json.at("pattern").get<std::string>(), {json.at("style").get<std::string>(), {}}};
  ParallelStyle& style = entry.style;
  for (const auto& [key, value] : json.items()) {
    if (key == "input") style.layouts.input = one_placement(value.get<std::string>());
    if (key == "output") style.layouts.output = one_placement(value.get<std::string>());
    if (key == "parameters") {
      for (const auto& [name, placement] : value.items()) {
        style.parameters.push_back({name, one_placement(placement.get<std::string>())});
      }
    }
    const bool known = key == "pattern" || key == "style" || key == "input" || key == "output" || key == "parameters";
    TORCH_CHECK_VALUE(known, "the entry of '", entry.pattern, "' has the unknown key '", key, "'");
  }
  const std::string fault = fault_of(style);
  TORCH_CHECK_VALUE(fault.empty(), "the entry of '", entry.pattern, "': ", fault);
  return entry;
}

// "no layout of the input: PrepareInput({.input = Shard(0)})"; "": the style has the layout in its name, if any.
std::string missing_layout(const ParallelStyle& style) {
  if (style.kind == "PrepareInput" && !style.layouts.input)
    return "no layout of the input: PrepareInput({.input = Shard(0)})";
  if (style.kind == "PrepareOutput" && !style.layouts.output)
    return "no layout of the output: PrepareOutput({.output = Replicate()})";
  return "";
}

ParallelStyle with_layout(ParallelStyle style) {
  const std::string missing = missing_layout(style);
  TORCH_CHECK_VALUE(missing.empty(), "[", style.kind, "] ", missing);
  return style;
}

}  // namespace

ParallelStyle ColwiseParallel(StyleLayouts layouts) { return {"ColwiseParallel", std::move(layouts)}; }
ParallelStyle RowwiseParallel(StyleLayouts layouts) { return {"RowwiseParallel", std::move(layouts)}; }
ParallelStyle SequenceParallel(StyleLayouts layouts) { return {"SequenceParallel", std::move(layouts)}; }

ParallelStyle PrepareInput(StyleLayouts layouts) { return with_layout({"PrepareInput", std::move(layouts)}); }
ParallelStyle PrepareOutput(StyleLayouts layouts) { return with_layout({"PrepareOutput", std::move(layouts)}); }

ParallelStyle ParameterStyle(std::vector<ParameterPlacement> parameters, StyleLayouts layouts) {
  return {"ParameterStyle", std::move(layouts), std::move(parameters)};
}

namespace internal {

std::string fault_of(const ParallelStyle& style) {
  if (std::find(kStyleKinds.begin(), kStyleKinds.end(), style.kind) == kStyleKinds.end())
    return absl::StrCat("no style is called '", style.kind, "'; there are ", absl::StrJoin(kStyleKinds, ", "));
  if (const std::string missing = missing_layout(style); !missing.empty())
    return absl::StrCat(style.kind, " has ", missing, ", in a file ",
                        style.kind == "PrepareInput" ? "\"input\": \"S(0)\"" : "\"output\": \"R\"");
  if (style.kind != "ParameterStyle" && !style.parameters.empty())
    return absl::StrCat(style.kind, " takes no placements of parameters, but has one of '",
                        style.parameters.front().name, "': use ParameterStyle");
  std::set<std::string> names;
  for (const ParameterPlacement& p : style.parameters) {
    if (!names.insert(p.name).second) return absl::StrCat("it places the parameter '", p.name, "' twice: do so once");
  }
  return "";
}

}  // namespace internal

std::string ParallelStyle::to_string() const {
  std::vector<std::string> parts;
  for (const ParameterPlacement& p : parameters) parts.push_back(p.name + " " + dtensor::to_string(p.placement));
  if (layouts.input) parts.push_back("input " + dtensor::to_string(*layouts.input));
  if (layouts.output) parts.push_back("output " + dtensor::to_string(*layouts.output));
  return kind + (parts.empty() ? "" : "(" + absl::StrJoin(parts, ", ") + ")");
}

std::string ParallelPlan::to_string() const {
  std::string text;
  for (const Entry& e : entries) absl::StrAppend(&text, e.pattern, ": ", e.style.to_string(), "\n");
  return text;
}

void ParallelPlan::save(const std::string& path) const {
  StyleJson list = StyleJson::array();
  for (const Entry& entry : entries) list.push_back(json_of(entry));
  save_plan_file(path, kPlanKind, {{"entries", std::move(list)}}, "ParallelPlan::save");
}

ParallelPlan ParallelPlan::load(const std::string& path) {
  ParallelPlan plan;
  load_plan_file(path, kPlanKind, "ParallelPlan::load", [&](const StyleJson& json) {
    for (const StyleJson& entry : json.at("entries")) plan.entries.push_back(entry_of(entry));
  });
  return plan;
}

}  // namespace dtensor
