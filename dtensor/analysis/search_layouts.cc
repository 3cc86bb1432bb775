#include "dtensor/search_layouts.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "dtensor/analysis/check_settings.h"
#include "dtensor/analysis/mesh_shapes.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/text_table.h"
#include "dtensor/predict_step.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr int64_t kExplained = 3;  // candidates that explain() compares with the best

void check_options(const SearchLayoutsOptions& o) {
  TORCH_CHECK_VALUE(o.ranks >= 1, "[search_layouts] ranks is ", o.ranks, "; it must be at least 1");
  TORCH_CHECK_VALUE(!o.mesh_dims.empty(), "[search_layouts] mesh_dims is empty; name the dims, as {\"dp\", \"tp\"}");
  check_settings("search_layouts", o.mesh_dims, o.settings);
}

DeviceMesh make_mesh(const std::vector<int64_t>& shape, const SearchLayoutsOptions& options) {
  return DeviceMesh(World::abstract(options.ranks, options.device_type), shape, options.mesh_dims);
}

struct Arrangement {
  std::vector<int64_t> shape;
  NamedNumbers settings;
};

std::vector<Arrangement> allowed_arrangements(const SearchLayoutsOptions& options) {
  const std::vector<std::vector<int64_t>> shapes = mesh_shapes(options.ranks, options.mesh_dims.size());
  const int64_t of_shape = num_combinations(options.settings),
                all = product_or_most(static_cast<int64_t>(shapes.size()), of_shape);
  TORCH_CHECK_VALUE(options.allows || all <= options.max_choices, "[search_layouts] there are ", all,
                    " choices, more than max_choices = ", options.max_choices,
                    ": try fewer values, exclude some by `allows`, or raise it");
  std::vector<Arrangement> allowed;
  for (const auto& s : shapes) {
    const DeviceMesh mesh = make_mesh(s, options);
    for (int64_t n = 0; n < of_shape; ++n) {
      NamedNumbers numbers = combination(options.settings, n);
      if (options.allows && !options.allows({mesh, numbers})) continue;
      TORCH_CHECK_VALUE(static_cast<int64_t>(allowed.size()) < options.max_choices, "[search_layouts] of ", all,
                        " choices `allows` allows more than max_choices = ", options.max_choices,
                        ": try fewer values, exclude more, or raise it");
      allowed.push_back({s, std::move(numbers)});
    }
  }
  TORCH_CHECK_VALUE(!allowed.empty(), "[search_layouts] `allows` allows none of the ", all, " choices");
  return allowed;
}

LayoutCandidate try_arrangement(const std::function<std::function<void()>(const LayoutChoice&)>& make_step,
                                const Arrangement& a, const SearchLayoutsOptions& options) {
  LayoutCandidate candidate;
  for (size_t d = 0; d < a.shape.size(); ++d) candidate.mesh.emplace_back(options.mesh_dims[d], a.shape[d]);
  candidate.settings = a.settings;
  const DeviceMesh mesh = make_mesh(a.shape, options);
  if (options.cost_model) set_cost_model(mesh.world(), *options.cost_model);
  candidate.failure = error_of([&] {
    const std::function<void()> step = make_step({mesh, a.settings});
    TORCH_CHECK_VALUE(step, "make_step returned an empty function");
    step();
    candidate.step = predict_step(step, mesh.world());
    candidate.fits = candidate.step.peak_bytes <= options.max_bytes;
  });
  return candidate;
}

auto order_of(const LayoutCandidate& c) {
  const int rank = c.fits ? 0 : c.failure.empty() ? 1 : 2;
  return std::tuple(rank, c.fits ? c.step.seconds() : 0., c.step.peak_bytes);
}

using Json = nlohmann::ordered_json;

Json json_of(const NamedNumbers& numbers) {
  Json json = Json::object();
  for (const auto& [name, value] : numbers) json[name] = value;
  return json;
}

Json json_of(const PredictedCollectives& c) {
  return {{"collective", std::string(to_string(c.collective))},
          {"mesh_dims", c.mesh_dims},
          {"between_nodes", c.between_nodes},
          {"count", c.count},
          {"bytes", c.bytes},
          {"seconds", c.seconds}};
}

Json json_of(const LayoutCandidate& c) {
  Json json{{"mesh", json_of(c.mesh)}, {"settings", json_of(c.settings)}, {"fits", c.fits}};
  if (!c.failure.empty()) {
    json["failure"] = c.failure;
    return json;
  }
  const StepPrediction& s = c.step;
  json.update(Json{{"seconds", s.seconds()},
                   {"product_seconds", s.product_seconds},
                   {"operator_seconds", s.operator_seconds},
                   {"communication_seconds", s.communication_seconds()},
                   {"overlapped_seconds", s.overlapped_seconds},
                   {"operators", s.operators},
                   {"start_seconds", s.start_seconds},
                   {"flops", s.flops},
                   {"memory_traffic", s.memory_traffic},
                   {"live_bytes", s.live_bytes},
                   {"peak_bytes", s.peak_bytes},
                   {"communication", Json::array()}});
  for (const PredictedCollectives& row : s.communication) json["communication"].push_back(json_of(row));
  return json;
}

}  // namespace

int64_t LayoutChoice::setting(const std::string& name) const {
  return setting_of(settings, name, "LayoutChoice::setting");
}

std::string LayoutCandidate::name() const {
  return absl::StrCat(numbers_text(mesh), settings.empty() ? "" : " ", numbers_text(settings));
}

const LayoutCandidate& LayoutSearch::best() const {
  TORCH_CHECK_VALUE(!candidates.empty(), "[LayoutSearch::best] there are no candidates");
  const LayoutCandidate& first = candidates.front();
  TORCH_CHECK_VALUE(first.failure.empty(), "[LayoutSearch::best] every choice failed; ", first.name(), ": ",
                    first.failure);
  TORCH_CHECK_VALUE(first.fits, "[LayoutSearch::best] no choice fits: ", first.name(), " needs least, ",
                    bytes_text(first.step.peak_bytes), " of ", bytes_text(max_bytes));
  return first;
}

std::string LayoutSearch::explain(int64_t most) const {
  std::string text;
  std::vector<const LayoutCandidate*> fitting, large, failed;
  for (const LayoutCandidate& c : candidates) (c.fits ? fitting : c.failure.empty() ? large : failed).push_back(&c);
  if (!fitting.empty()) {
    const StepPrediction& best = fitting[0]->step;
    absl::StrAppendFormat(&text, "best of %d: %s, %s a step, at most %s on a rank\n", candidates.size(),
                          fitting[0]->name(), seconds_text(best.seconds()), bytes_text(best.peak_bytes));
    std::vector<TextRow> rows = {
        {"choice", "time", "matrix products", "other operators", "communication", "peak memory"}};
    for (size_t i = 0; i < fitting.size() && static_cast<int64_t>(i) < most; ++i) {
      const StepPrediction& s = fitting[i]->step;
      rows.push_back({fitting[i]->name(), seconds_text(s.seconds()), seconds_text(s.product_seconds),
                      seconds_text(s.operator_seconds), seconds_text(s.communication_seconds()),
                      bytes_text(s.peak_bytes)});
    }
    absl::StrAppend(&text, text_table(rows, "  "));
    for (size_t i = 1; i < fitting.size() && static_cast<int64_t>(i) <= kExplained; ++i) {
      absl::StrAppendFormat(&text, "%s takes %s more: %s\n", fitting[i]->name(),
                            seconds_text(fitting[i]->step.seconds() - best.seconds()),
                            step_difference(best, fitting[i]->step));
    }
  }
  if (!large.empty()) {
    absl::StrAppendFormat(&text, "%d need more than %s, of which %s needs least: %s\n", large.size(),
                          bytes_text(max_bytes), large[0]->name(), bytes_text(large[0]->step.peak_bytes));
  }
  for (const LayoutCandidate* c : failed) {
    absl::StrAppendFormat(&text, "%s failed: %s\n", c->name(), first_line(c->failure));
  }
  return text;
}

std::string LayoutSearch::to_json() const {
  Json json{{"max_bytes", max_bytes}, {"candidates", Json::array()}};
  for (const LayoutCandidate& c : candidates) json["candidates"].push_back(json_of(c));
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);  // errors may have any bytes
}

LayoutSearch search_layouts(const std::function<std::function<void()>(const LayoutChoice&)>& make_step,
                            const SearchLayoutsOptions& options) {
  TORCH_CHECK_VALUE(make_step, "[search_layouts] make_step is an empty function");
  check_options(options);
  LayoutSearch search;
  search.max_bytes = options.max_bytes;
  const std::vector<Arrangement> arrangements = allowed_arrangements(options);
  for (const Arrangement& arrangement : arrangements) {
    search.candidates.push_back(try_arrangement(make_step, arrangement, options));
    if (options.progress) {
      options.progress(static_cast<int64_t>(search.candidates.size()), static_cast<int64_t>(arrangements.size()));
    }
  }
  absl::c_stable_sort(search.candidates, [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
  return search;
}

}  // namespace dtensor
