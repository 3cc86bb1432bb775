#include "dtensor/parallel_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"

namespace dtensor {
using namespace internal;

namespace {

using StyleJson = nlohmann::ordered_json;

constexpr std::array<const char*, 6> kStyleKinds{"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                                 "PrepareInput",    "PrepareOutput",   "ParameterStyle"};
constexpr const char* kPlanFormat = "dtensor parallel plan";

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
  const bool is_kind = std::find(kStyleKinds.begin(), kStyleKinds.end(), style.kind) != kStyleKinds.end();
  TORCH_CHECK_VALUE(is_kind, "no style is called '", style.kind, "'; there are ", absl::StrJoin(kStyleKinds, ", "));
  return entry;
}

}  // namespace

ParallelStyle ColwiseParallel(StyleLayouts layouts) { return {"ColwiseParallel", std::move(layouts)}; }
ParallelStyle RowwiseParallel(StyleLayouts layouts) { return {"RowwiseParallel", std::move(layouts)}; }
ParallelStyle SequenceParallel(StyleLayouts layouts) { return {"SequenceParallel", std::move(layouts)}; }

ParallelStyle PrepareInput(StyleLayouts layouts) {
  TORCH_CHECK_VALUE(layouts.input, "[PrepareInput] no layout of the input: PrepareInput({.input = Shard(0)})");
  return {"PrepareInput", std::move(layouts)};
}

ParallelStyle PrepareOutput(StyleLayouts layouts) {
  TORCH_CHECK_VALUE(layouts.output, "[PrepareOutput] no layout of the output: PrepareOutput({.output = Replicate()})");
  return {"PrepareOutput", std::move(layouts)};
}

ParallelStyle ParameterStyle(std::vector<ParameterPlacement> parameters, StyleLayouts layouts) {
  return {"ParameterStyle", std::move(layouts), std::move(parameters)};
}

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
  StyleJson json{{"format", kPlanFormat}, {"version", 1}, {"entries", StyleJson::array()}};
  for (const Entry& entry : entries) json["entries"].push_back(json_of(entry));
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.flush();
  TORCH_CHECK(file.good(), "[ParallelPlan::save] cannot write '", path, "'");
}

ParallelPlan ParallelPlan::load(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "[ParallelPlan::load] cannot read '", path, "'");
  try {
    const StyleJson json = StyleJson::parse(file);
    TORCH_CHECK_VALUE(json.at("format") == kPlanFormat && json.at("version") == 1,
                      "made by another version, or no parallel plan");
    ParallelPlan plan;
    for (const StyleJson& entry : json.at("entries")) plan.entries.push_back(entry_of(entry));
    return plan;
  } catch (const StyleJson::exception& e) {
    TORCH_CHECK(false, "[ParallelPlan::load] '", path, "' is no parallel plan: ", e.what());
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, "[ParallelPlan::load] '", path, "' is no parallel plan: ", e.what_without_backtrace());
  }
}

}  // namespace dtensor
