#include "dtensor/parallel_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

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
  const std::string fault = fault_of(style);
  TORCH_CHECK_VALUE(fault.empty(), "the entry of '", entry.pattern, "': ", fault);
  return entry;
}

// Keys that an object has twice would be one: of "parameters", the last one's placement.
StyleJson parsed_plan(std::istream& file) {
  std::vector<std::set<std::string>> keys;  // of the objects around the position
  const auto no_key_twice = [&](int, StyleJson::parse_event_t event, StyleJson& parsed) {
    if (event == StyleJson::parse_event_t::object_start) keys.emplace_back();
    if (event == StyleJson::parse_event_t::object_end) keys.pop_back();
    if (event == StyleJson::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      TORCH_CHECK_VALUE(keys.back().insert(key).second, "an object has the key '", key, "' twice");
    }
    return true;
  };
  return StyleJson::parse(file, no_key_twice);
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

namespace internal {

std::string fault_of(const ParallelStyle& style) {
  if (std::find(kStyleKinds.begin(), kStyleKinds.end(), style.kind) == kStyleKinds.end())
    return absl::StrCat("no style is called '", style.kind, "'; there are ", absl::StrJoin(kStyleKinds, ", "));
  if (style.kind == "PrepareInput" && !style.layouts.input)
    return "PrepareInput has no layout of the input: PrepareInput({.input = Shard(0)}), in a file \"input\": \"S(0)\"";
  if (style.kind == "PrepareOutput" && !style.layouts.output)
    return "PrepareOutput has no layout of the output: PrepareOutput({.output = Replicate()}), in a file "
           "\"output\": \"R\"";
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
    const StyleJson json = parsed_plan(file);
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
