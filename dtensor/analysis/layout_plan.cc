#include "dtensor/layout_plan.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/parallel/plan_file.h"
#include "placement/parse_placements.h"

namespace dtensor {
using namespace internal;

namespace {

std::string inputs_text(const std::vector<Placements>& inputs) {
  return absl::StrJoin(inputs, ", ", [](std::string* out, const Placements& placements) {
    absl::StrAppend(out, placements.empty() ? "None" : to_string(placements));
  });
}

using Json = nlohmann::ordered_json;

constexpr const char* kLayoutPlan = "layout plan";

Json json_of(const StepCost& c) {
  return {{"seconds", c.seconds},
          {"collectives", c.collectives},
          {"bytes", c.bytes},
          {"flops", c.flops},
          {"peak_bytes", c.peak_bytes}};
}

StepCost cost_of(const Json& json) {
  return {json.at("seconds").get<double>(), json.at("collectives").get<int64_t>(), json.at("bytes").get<int64_t>(),
          json.at("flops").get<double>(), json.at("peak_bytes").get<int64_t>()};
}

Json json_of(const LayoutPin& pin) {
  Json inputs = Json::array();
  for (const Placements& placements : pin.inputs) {
    inputs.push_back(placements.empty() ? Json(nullptr) : Json(to_string(placements)));
  }
  return {{"call", pin.call}, {"as_called", pin.as_called}, {"inputs", inputs}, {"seconds", pin.seconds}};
}

LayoutPin pin_of(const Json& json) {
  LayoutPin pin{
      json.at("call").get<int64_t>(), json.at("as_called").get<std::string>(), {}, json.at("seconds").get<double>()};
  for (const Json& input : json.at("inputs")) {
    if (input.is_null()) {
      pin.inputs.emplace_back();
      continue;
    }
    auto placements = parse_placements(input.get<std::string>());
    TORCH_CHECK_VALUE(placements.ok(), std::string(placements.status().message()));
    pin.inputs.push_back(*std::move(placements));
  }
  return pin;
}

}  // namespace

std::string StepCost::to_string() const {
  return absl::StrFormat("%.1f us, %d collectives, %d bytes, %.3g FLOP, peak %d bytes", seconds * 1e6, collectives,
                         bytes, flops, peak_bytes);
}

std::string LayoutPlan::explain() const {
  if (pins.empty()) {
    return absl::StrFormat("the engine's own choices: nothing better in %d trials\n  %s\n", trials, before.to_string());
  }
  std::string text = absl::StrFormat("%d decisions changed in %d trials\n  before: %s\n  after:  %s\n", pins.size(),
                                     trials, before.to_string(), after.to_string());
  for (const LayoutPin& pin : pins) {
    absl::StrAppendFormat(&text, "  call %d, %s: computed on %s, spares %.1f us\n", pin.call, pin.as_called,
                          inputs_text(pin.inputs), pin.seconds * 1e6);
  }
  return text;
}

void LayoutPlan::save(const std::string& path) const {
  Json json{{"before", json_of(before)}, {"after", json_of(after)}, {"trials", trials}, {"pins", Json::array()}};
  for (const LayoutPin& pin : pins) json["pins"].push_back(json_of(pin));
  save_plan_file(path, kLayoutPlan, json, "LayoutPlan::save");
}

LayoutPlan LayoutPlan::load(const std::string& path) {
  LayoutPlan plan;
  load_plan_file(path, kLayoutPlan, "LayoutPlan::load", [&](const Json& json) {
    plan.before = cost_of(json.at("before"));
    plan.after = cost_of(json.at("after"));
    plan.trials = json.at("trials").get<int64_t>();
    for (const Json& pin : json.at("pins")) plan.pins.push_back(pin_of(pin));
  });
  return plan;
}

}  // namespace dtensor
