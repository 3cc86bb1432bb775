#include "dtensor/parallel/style_json.h"

#include <c10/util/Exception.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "dtensor/parallel/plan_file.h"
#include "placement/parse_placements.h"

namespace dtensor::internal {
namespace {

using StyleJson = nlohmann::ordered_json;

StyleJson json_of(const ParallelPlan::Entry& entry) {
  const ParallelStyle& style = entry.style;
  StyleJson json{{"pattern", entry.pattern}, {"style", style.kind}};
  if (style.layouts.input) json["input"] = to_string(*style.layouts.input);
  if (style.layouts.output) json["output"] = to_string(*style.layouts.output);
  for (const ParameterPlacement& p : style.parameters) json["parameters"][p.name] = to_string(p.placement);
  return json;
}

Placement one_placement(const StyleJson& json, const std::string& field) {
  const std::string text = text_of_json(json, field);
  const auto placements = parse_placements(text);
  TORCH_CHECK_VALUE(placements.ok(), std::string(placements.status().message()));
  TORCH_CHECK_VALUE(placements->size() == 1, "'", text, "' is not one placement, such as S(0) or R");
  return placements->front();
}

ParallelPlan::Entry entry_of(const StyleJson& json, const std::string& field) {
  TORCH_CHECK_VALUE(json.is_object(), "'", field, "' has ", json.dump(), "; expected objects");
  ParallelPlan::Entry entry{text_of_json(json.at("pattern"), "pattern"), {text_of_json(json.at("style"), "style"), {}}};
  ParallelStyle& style = entry.style;
  for (const auto& [key, value] : json.items()) {
    if (key == "input") style.layouts.input = one_placement(value, key);
    if (key == "output") style.layouts.output = one_placement(value, key);
    if (key == "parameters") {
      for (const auto& [name, placement] : value.items())
        style.parameters.push_back({name, one_placement(placement, name)});
    }
    const bool known = key == "pattern" || key == "style" || key == "input" || key == "output" || key == "parameters";
    TORCH_CHECK_VALUE(known, "the entry of '", entry.pattern, "' has the unknown key '", key, "'");
  }
  const std::string fault = fault_of(style);
  TORCH_CHECK_VALUE(fault.empty(), "the entry of '", entry.pattern, "': ", fault);
  return entry;
}

}  // namespace

StyleJson json_of_entries(const std::vector<ParallelPlan::Entry>& entries) {
  StyleJson list = StyleJson::array();
  for (const ParallelPlan::Entry& entry : entries) list.push_back(json_of(entry));
  return list;
}

std::vector<ParallelPlan::Entry> entries_of(const StyleJson& json, const std::string& field) {
  TORCH_CHECK_VALUE(json.is_array(), "'", field, "' is ", json.dump(), "; expected a list");
  std::vector<ParallelPlan::Entry> entries;
  for (const StyleJson& entry : json) entries.push_back(entry_of(entry, field));
  return entries;
}

std::string text_of_json(const StyleJson& json, const std::string& field) {
  TORCH_CHECK_VALUE(json.is_string(), "'", field, "' is ", json.dump(), "; expected a text");
  return json.get<std::string>();
}

int64_t number_of_json(const StyleJson& json, const std::string& field, int64_t least) {
  TORCH_CHECK_VALUE(json.is_number_integer(), "'", field, "' is ", json.dump(), "; expected a whole number");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TORCH_CHECK_VALUE(!json.is_number_unsigned() || json.get<uint64_t>() <= static_cast<uint64_t>(kMost), "'", field,
                    "' is ", json.dump(), "; it must be at most ", kMost);
  const auto number = json.get<int64_t>();
  TORCH_CHECK_VALUE(number >= least, "'", field, "' is ", number, "; it must be at least ", least);
  return number;
}

}  // namespace dtensor::internal

namespace dtensor {

namespace {

constexpr const char* kPlanKind = "parallel plan";

}  // namespace

void ParallelPlan::save(const std::string& path) const {
  internal::save_plan_file(path, kPlanKind, {{"entries", internal::json_of_entries(entries)}}, "ParallelPlan::save");
}

ParallelPlan ParallelPlan::load(const std::string& path) {
  ParallelPlan plan;
  internal::load_plan_file(path, kPlanKind, "ParallelPlan::load", [&](const nlohmann::ordered_json& json) {
    plan.entries = internal::entries_of(json.at("entries"), "entries");
  });
  return plan;
}

}  // namespace dtensor
