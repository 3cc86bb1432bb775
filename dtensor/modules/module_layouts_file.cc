// ModuleLayouts as a JSON file.
#include <c10/util/Exception.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/parallel/plan_file.h"
#include "dtensor/parallel/style_json.h"
#include "dtensor/pipeline_schedule.h"

namespace dtensor {
using namespace internal;

namespace {

using LayoutsJson = nlohmann::ordered_json;

constexpr const char* kModuleLayouts = "module layouts";

LayoutsJson json_of_numbers(const NamedNumbers& numbers) {
  LayoutsJson json = LayoutsJson::object();
  for (const auto& [name, number] : numbers) json[name] = number;
  return json;
}

NamedNumbers numbers_of(const LayoutsJson& json, const std::string& field, int64_t least) {
  TORCH_CHECK_VALUE(json.is_object(), "'", field, "' is ", json.dump(), "; expected an object with numbers");
  NamedNumbers numbers;
  for (const auto& [name, number] : json.items())
    numbers.emplace_back(name, number_of_json(number, field + "." + name, least));
  return numbers;
}

std::vector<std::string> texts_of(const LayoutsJson& json, const std::string& field) {
  TORCH_CHECK_VALUE(json.is_array(), "'", field, "' is ", json.dump(), "; expected a list of texts");
  std::vector<std::string> texts;
  for (const LayoutsJson& text : json) texts.push_back(text_of_json(text, field));
  return texts;
}

// For people.
LayoutsJson prediction_of(const ModuleLayouts& layouts) {
  const std::vector<std::string> lines = absl::StrSplit(layouts.step.to_string(), '\n', absl::SkipEmpty());
  const LayoutMemory& memory = layouts.memory;
  return {{"seconds", layouts.step.seconds()},
          {"step", lines},
          {"bytes",
           {{"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer_states", memory.optimizer_states},
            {"gathered", memory.gathered},
            {"activations", memory.activations}}}};
}

LayoutsJson members_of(const ModuleLayouts& layouts) {
  return {{"mesh", json_of_numbers(layouts.mesh)},
          {"styles", json_of_entries(layouts.styles.entries)},
          {"groups", layouts.groups},
          {"settings", json_of_numbers(layouts.settings)},
          {"micro_batches", layouts.micro_batches},
          {"stages", layouts.stages},
          {"stages_per_rank", layouts.stages_per_rank},
          {"schedule", layouts.schedule},
          {"experts", layouts.experts},
          {"context_dim", layouts.context_dim},
          {"shard_dim", layouts.shard_dim},
          {"overlap", layouts.overlap},
          {"predicted", prediction_of(layouts)}};
}

void set_field(ModuleLayouts& layouts, const std::string& key, const LayoutsJson& value) {
  if (key == "mesh") {
    layouts.mesh = numbers_of(value, key, 1);
  } else if (key == "styles") {
    layouts.styles.entries = entries_of(value, key);
  } else if (key == "groups") {
    layouts.groups = texts_of(value, key);
  } else if (key == "settings") {
    layouts.settings = numbers_of(value, key, std::numeric_limits<int64_t>::min());
  } else if (key == "micro_batches") {
    layouts.micro_batches = number_of_json(value, key, 1);
  } else if (key == "stages") {
    layouts.stages = number_of_json(value, key, 1);
  } else if (key == "stages_per_rank") {
    layouts.stages_per_rank = number_of_json(value, key, 1);
  } else if (key == "schedule") {
    layouts.schedule = text_of_json(value, key);
  } else if (key == "experts") {
    layouts.experts = texts_of(value, key);
  } else if (key == "context_dim") {
    layouts.context_dim = text_of_json(value, key);
  } else if (key == "shard_dim") {
    layouts.shard_dim = text_of_json(value, key);
  } else if (key == "overlap") {
    TORCH_CHECK_VALUE(value.is_boolean(), "'overlap' is ", value.dump(), "; expected true or false");
    layouts.overlap = value.get<bool>();
  } else {
    TORCH_CHECK_VALUE(key == "format" || key == "version" || key == "predicted", "unknown field '", key, "'");
  }
}

// Errors (ValueError): see load().
ModuleLayouts layouts_of_json(const LayoutsJson& json) {
  ModuleLayouts layouts;
  for (const auto& [key, value] : json.items()) set_field(layouts, key, value);
  for (const std::string& fault : {mesh_fault(layouts), pipeline_fault(layouts)}) {
    TORCH_CHECK_VALUE(fault.empty(), fault);
  }
  return layouts;
}

}  // namespace

std::string internal::pipeline_fault(const ModuleLayouts& layouts) {
  const int64_t stages = layouts.stages, per_rank = layouts.stages_per_rank;
  for (const auto& [name, number] :
       NamedNumbers{{"stages", stages}, {"stages_per_rank", per_rank}, {"micro_batches", layouts.micro_batches}}) {
    if (number < 1) return absl::StrCat("'", name, "' is ", number, "; it must be at least 1");
  }
  if (stages == 1) {
    const char* no_pipeline = ", and 'stages' is 1, which is no pipeline";
    if (per_rank != 1) return absl::StrCat("'stages_per_rank' is ", per_rank, no_pipeline);
    return layouts.schedule.empty() ? "" : absl::StrCat("'schedule' is '", layouts.schedule, "'", no_pipeline);
  }
  if (stages % per_rank != 0)
    return absl::StrCat("'stages_per_rank', ", per_rank, ", does not divide 'stages', ", stages);
  return pipeline_schedule_fault(layouts.schedule, stages / per_rank, per_rank, layouts.micro_batches);
}

std::string ModuleLayouts::to_json() const { return plan_file_text(kModuleLayouts, members_of(*this)); }

void ModuleLayouts::save(const std::string& path) const {
  const LayoutsJson members = members_of(*this);
  const std::string fault = error_of([&] { layouts_of_json(members); });
  TORCH_CHECK_VALUE(fault.empty(), "[ModuleLayouts::save] ", fault);
  save_plan_file(path, kModuleLayouts, members, "ModuleLayouts::save");
}

ModuleLayouts ModuleLayouts::load(const std::string& path) {
  ModuleLayouts layouts;
  load_plan_file(path, kModuleLayouts, "ModuleLayouts::load",
                 [&](const LayoutsJson& json) { layouts = layouts_of_json(json); });
  return layouts;
}

}  // namespace dtensor
