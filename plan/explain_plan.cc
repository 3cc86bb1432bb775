// RedistributePlan::explain() and to_json(): the plan next to the routes that were not taken, which are planned for
// that.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plan/plan_text.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = RedistributeStep::Kind;

constexpr size_t kMaxShown = 5;  // routes not taken

std::string why_not(const RedistributePlan& plan, const Route& route) {
  std::vector<std::string> reasons;
  if (route.peak_bytes > plan.limits.max_bytes) {
    reasons.push_back(absl::StrCat("needs ", bytes_text(route.peak_bytes), ", more than the limit"));
  }
  if (route.bytes > plan.bytes) {
    reasons.push_back(plan.bytes == 0 ? std::string("communicates for nothing")
                                      : absl::StrFormat("%.1f times the bytes", static_cast<double>(route.bytes) /
                                                                                    static_cast<double>(plan.bytes)));
  }
  int64_t collectives = 0;
  for (const RedistributeStep& step : route.steps) collectives += step.is_local() ? 0 : 1;
  const int64_t more = collectives - plan.num_collectives();
  if (more > 0) reasons.push_back(absl::StrCat(more, more == 1 ? " more collective" : " more collectives"));
  if (reasons.empty()) reasons.push_back(route.seconds > plan.seconds ? "takes longer" : "not better");
  return absl::StrJoin(reasons, ", ");
}

// The best one per list of steps.
std::vector<std::pair<std::string, Route>> routes_not_taken(const RedistributePlan& plan) {
  std::vector<std::pair<std::string, Route>> others;
  const std::string taken = steps_text(plan, plan.steps, /*abbreviated=*/false);
  for (Route& route : routes(plan)) {
    std::string text = steps_text(plan, route.steps, /*abbreviated=*/false);
    if (text == taken) continue;
    const bool known =
        std::any_of(others.begin(), others.end(), [&](const auto& other) { return other.first == text; });
    if (!known) others.emplace_back(std::move(text), std::move(route));
    if (others.size() == kMaxShown) break;
  }
  return others;
}

}  // namespace

std::string RedistributePlan::explain() const {
  const bool one_mesh = !from.is_boxes() && !to.is_boxes() && from.mesh() == to.mesh();
  std::string text = dtensor::to_string(tensor) + ": ";
  if (one_mesh) {
    absl::StrAppend(&text, layout_text(from), " -> ", layout_text(to), " on ", from.mesh().to_string(), "\n");
  } else {
    absl::StrAppend(&text, from.to_string(), " -> ", to.to_string(), "\n");
  }
  if (steps.empty()) return text + "  nothing to do: every rank has its part already\n";
  Meshes meshes(*this);
  for (size_t i = 0; i < steps.size(); ++i) {
    const RedistributeStep& step = steps[i];
    const int64_t group = step.is_local() ? 1 : meshes.group_size(step);
    absl::StrAppend(&text, "  ", i + 1, ". ", call_text(step, meshes, /*abbreviated=*/false));
    if (!step.before.empty() && !step.after.empty()) {
      absl::StrAppend(&text, ": ", dtensor::to_string(step.before), " -> ", dtensor::to_string(step.after));
    }
    if (step.is_local()) {
      absl::StrAppend(&text, ", no communication");
    } else {
      absl::StrAppend(&text, ", groups of ", group, ", ", bytes_text(step.bytes), " to a rank");
    }
    if (step.chunks > 1) absl::StrAppend(&text, " in ", step.chunks, " rounds");
    absl::StrAppend(&text, ", peak ", bytes_text(step.peak_bytes), ", ", seconds_text(step.seconds), "\n");
  }
  absl::StrAppend(&text, "  in all ", bytes_text(bytes), " to a rank, peak ", bytes_text(peak_bytes), ", ",
                  seconds_text(seconds), "\n");
  const auto others = routes_not_taken(*this);
  if (!others.empty()) absl::StrAppend(&text, "not taken:\n");
  for (const auto& [steps_of_route, route] : others) {
    absl::StrAppend(&text, "  ", steps_of_route, ": ", bytes_text(route.bytes), ", ", seconds_text(route.seconds), ": ",
                    why_not(*this, route), "\n");
  }
  return text;
}

std::string RedistributePlan::to_json() const {
  using Json = nlohmann::ordered_json;
  const auto layout_json = [](const Layout& layout) {
    Json json;
    if (layout.is_boxes()) {
      for (const RankBox& box : layout.boxes()) {
        json["boxes"].push_back({{"rank", box.rank},
                                 {"offsets", std::vector<int64_t>(box.offsets.begin(), box.offsets.end())},
                                 {"sizes", std::vector<int64_t>(box.sizes.begin(), box.sizes.end())}});
      }
    } else {
      json["placements"] = dtensor::to_string(layout.placements());
      json["mesh"] = {{"names", layout.mesh().names()}, {"shape", layout.mesh().shape()}};
    }
    return json;
  };
  const auto steps_json = [&](const std::vector<RedistributeStep>& list) {
    Json json = Json::array();
    Meshes meshes(*this);
    for (const RedistributeStep& step : list) {
      Json entry = {{"step", name_of(step.kind)}};
      const int64_t group = step.is_local() ? 1 : meshes.group_size(step);
      entry["mesh_dims"] = meshes.dim_names(step);
      entry["group_size"] = group;
      if (step.kind == Kind::kAllReduce || step.kind == Kind::kReduceScatter || step.kind == Kind::kFill) {
        entry["op"] = std::string(dtensor::to_string(step.op));
      }
      if (!step.before.empty()) entry["before"] = dtensor::to_string(step.before);
      if (!step.after.empty()) entry["after"] = dtensor::to_string(step.after);
      entry["chunks"] = step.chunks;
      entry["bytes"] = step.bytes;
      entry["peak_bytes"] = step.peak_bytes;
      entry["seconds"] = step.seconds;
      json.push_back(std::move(entry));
    }
    return json;
  };
  Json json = {{"tensor",
                {{"dtype", std::string(short_name(tensor.dtype))},
                 {"sizes", std::vector<int64_t>(tensor.sizes.begin(), tensor.sizes.end())}}},
               {"from", layout_json(from)},
               {"to", layout_json(to)},
               {"steps", steps_json(steps)},
               {"bytes", bytes},
               {"peak_bytes", peak_bytes},
               {"seconds", seconds},
               {"not_taken", Json::array()}};
  for (const auto& [text, route] : routes_not_taken(*this)) {
    json["not_taken"].push_back({{"steps", steps_json(route.steps)},
                                 {"bytes", route.bytes},
                                 {"peak_bytes", route.peak_bytes},
                                 {"seconds", route.seconds},
                                 {"why_not", why_not(*this, route)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace dtensor
