#include "dtensor/advise_module_layouts.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/text_table.h"
#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel/path_patterns.h"
#include "dtensor/parallel/style_of_module.h"
#include "dtensor/scopes.h"
#include "dtensor/search_module_layouts.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kChanges = 3;      // of an advice
constexpr double kRounding = 1e-9;  // of times that follow from models of few layers

// Modules of one class that have one style now.
struct StyledModules {
  const ModuleClass* module_class;
  std::vector<std::string> patterns;  // match these modules and no others
  std::optional<ParallelStyle> style;
};

std::string style_text(const std::optional<ParallelStyle>& style) { return style ? style->to_string() : "replicated"; }

// The classes with the styles that `now` gives them; one whose modules have several styles, once for each.
std::vector<StyledModules> styles_now(const TriedModel& tried, const ModuleLayouts& now) {
  const SearchModuleLayoutsOptions& o = tried.options;
  const DeviceMesh mesh = make_one_rank_mesh(o);
  const MeshScope on_mesh(mesh);
  const ModelWithLoss made = tried.make({o.layers, tried.settings});
  apply_layouts(*made.model, mesh, now);
  std::map<std::string, torch::nn::Module*> modules;
  made.model->apply([&](const std::string& path, torch::nn::Module& m) { modules.emplace(path, &m); }, std::string());
  std::vector<StyledModules> result;
  for (const ModuleClass& c : tried.classes.classes) {
    const size_t first = result.size();
    for (const std::string& path : c.paths) {
      const auto present = own_style(*modules.at(path));
      const std::optional<ParallelStyle> style =
          present && present->given() ? std::optional(present->style) : std::nullopt;
      const auto same =
          std::find_if(result.begin() + first, result.end(), [&](const auto& s) { return s.style == style; });
      if (same == result.end()) {
        result.push_back({&c, {pattern_of_path(path)}, style});
      } else {
        same->patterns.push_back(pattern_of_path(path));
      }
    }
    if (result.size() == first + 1) result.back().patterns = c.patterns;
  }
  return result;
}

// The plan of the styles, in which those at `changed` have `style`.
ParallelPlan plan_with(const std::vector<StyledModules>& now, size_t changed,
                       const std::optional<ParallelStyle>& style) {
  ParallelPlan plan;
  for (size_t i = 0; i < now.size(); ++i) {
    const std::optional<ParallelStyle>& of = i == changed ? style : now[i].style;
    if (!of) continue;
    for (const std::string& pattern : now[i].patterns) plan.entries.push_back({pattern, *of});
  }
  return plan;
}

// All styles that a search tries for the class.
std::vector<std::optional<ParallelStyle>> styles_for(const ModuleClass& c) {
  std::vector<std::optional<ParallelStyle>> styles;
  for (const bool sequence : {false, true}) {
    for (const ClassStyle style : kClassStyles) {
      auto next = style_of_class(c, style, sequence);
      if (!absl::c_linear_search(styles, next)) styles.push_back(std::move(next));
    }
  }
  return styles;
}

// "dp=4 tp=2 stages=2 1F1B".
std::string mesh_text(const NamedNumbers& mesh, int64_t stages, int64_t stages_per_rank, const std::string& schedule) {
  ModuleLayouts layouts;
  layouts.mesh = mesh;
  layouts.stages = stages, layouts.stages_per_rank = stages_per_rank, layouts.schedule = schedule;
  return layouts.name();
}

// "checkpoint=1": what the arrangement has instead of `now`, if that is one thing; else "".
std::string single_difference(const ModuleLayouts& now, const ModelArrangement& other) {
  std::vector<std::string> differences;
  const std::string mesh = mesh_text(mesh_sizes(other.mesh), other.stages(), other.stages_per_rank(),
                                     other.schedule ? other.schedule->name : "");
  if (mesh != mesh_text(now.mesh, now.stages, now.stages_per_rank, now.schedule))
    differences.push_back(absl::StrCat("the mesh ", mesh));
  for (const auto& setting : other.settings) {
    if (!absl::c_linear_search(now.settings, setting)) differences.push_back(numbers_text({setting}));
  }
  if (other.micro_batches != now.micro_batches)
    differences.push_back(absl::StrCat("micro_batches=", other.micro_batches));
  return differences.size() == 1 ? differences[0] : "";
}

// Tries changes and keeps those that are better.
class Changes {
 public:
  explicit Changes(const LayoutTrial& now) : now_(now) {}

  void add(std::string what, const LayoutTrial& trial) {
    if (!is_better(trial, now_)) return;
    changes_.push_back({std::move(what), &trial});
  }

  std::vector<AdvisedChange> best() {
    absl::c_stable_sort(changes_, [](const auto& a, const auto& b) { return is_better(*a.trial, *b.trial); });
    std::vector<AdvisedChange> result;
    for (const Change& c : changes_) {
      if (result.size() == kChanges) break;
      const StepPrediction& with = c.trial->layouts.step;
      AdvisedChange change{c.what, c.trial->layouts, c.trial->fits, 0, ""};
      if (now_.fits) {
        change.seconds = now_.layouts.step.seconds() - with.seconds();
        change.reason = step_difference(with, now_.layouts.step);
      } else {
        change.reason = absl::StrCat("needs ", c.trial->memory_text(), " instead of ", now_.memory_text(),
                                     c.trial->fits ? ", which fits" : "");
      }
      result.push_back(std::move(change));
    }
    return result;
  }

 private:
  struct Change {
    std::string what;
    const LayoutTrial* trial;
  };
  const LayoutTrial& now_;
  std::vector<Change> changes_;
};

// Changes of the mesh, of a setting, or of the number of micro-batches. `kept`: where their trials are.
void add_arrangements(Changes& changes, TriedModels& models, const TriedModel& tried, const ModuleLayouts& now,
                      std::vector<std::unique_ptr<LayoutTrials>>& kept) {
  for (const ModelArrangement& other : model_arrangements(tried.options, tried.inputs)) {
    const std::string what = single_difference(now, other);
    if (what.empty()) continue;
    const TriedModel& model = tried_model(models, {tried.make, tried.inputs, tried.options, other.settings});
    kept.push_back(std::make_unique<LayoutTrials>(model, other));
    changes.add(what, kept.back()->run(now));
  }
}

// Changes of one style, fully_shard() or not, and overlap or not. `now` has the styles `styles`.
void add_layouts(Changes& changes, const TriedModel& tried, const ModuleLayouts& now,
                 const std::vector<StyledModules>& styles, LayoutTrials& trials) {
  for (size_t i = 0; i < styles.size(); ++i) {
    for (const auto& style : styles_for(*styles[i].module_class)) {
      if (style == styles[i].style) continue;
      ModuleLayouts changed = now;
      changed.styles = plan_with(styles, i, style);
      changes.add(absl::StrCat(patterns_text(styles[i].patterns), ": ", style_text(style), " instead of ",
                               style_text(styles[i].style)),
                  trials.run(std::move(changed)));
    }
  }
  for (const auto& groups : {tried.classes.groups, std::vector<std::string>()}) {
    if (groups == now.groups) continue;
    ModuleLayouts grouped = now;
    grouped.groups = groups;
    changes.add(groups.empty() ? "no fully_shard()" : absl::StrCat("fully_shard(", patterns_text(groups), ")"),
                trials.run(std::move(grouped)));
  }
  ModuleLayouts overlapped = now;
  overlapped.overlap = !now.overlap;
  changes.add(now.overlap ? "no overlap" : "overlap", trials.run(std::move(overlapped)));
}

}  // namespace

std::string LayoutAdvice::explain() const {
  const double seconds = now.step.seconds(), least = best.step.seconds();
  std::string text =
      absl::StrCat(now.name(), ", ", ran ? seconds_text(seconds) + " a step, at most " : "at least ",
                   bytes_text(now.step.peak_bytes), " on a rank", fits ? "" : ", which does not fit", "\n");
  if (changes.empty()) {
    absl::StrAppend(&text, "no single change is better\n");
  } else {
    std::vector<TextRow> rows = {{"one change", "saves", "by"}};
    for (const AdvisedChange& c : changes) rows.push_back({c.what, fits ? seconds_text(c.seconds) : "-", c.reason});
    absl::StrAppend(&text, text_table(rows, "  "));
  }
  if (fits && least >= seconds) return absl::StrCat(text, "the search found nothing better\n");
  absl::StrAppend(&text, "the best that was found is ", best.name(), ", ", seconds_text(least), " a step");
  if (fits) absl::StrAppendFormat(&text, ", %.0f %% less", 100 * (1 - least / seconds));
  return absl::StrCat(text, "; its styles:\n", best.styles.to_string());
}

LayoutAdvice advise_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                   const ModuleLayouts& now, const SearchModuleLayoutsOptions& given) {
  TORCH_CHECK_VALUE(make, "[advise_module_layouts] make is an empty function");
  SearchModuleLayoutsOptions options = given;
  options.overlap = now.overlap;
  check_options(options, inputs);
  const ModelArrangement arrangement = arrangement_of("advise_module_layouts", now, options, inputs);
  TriedModels models;
  const TriedModel& tried = tried_model(models, {make, inputs, options, now.settings});
  const std::vector<StyledModules> styles = styles_now(tried, now);
  TORCH_CHECK_VALUE(
      options.layers <= 3 || styles.size() == tried.classes.classes.size(),
      "[advise_module_layouts] modules at one place of repeated layers have different styles, which models "
      "of 2 and 3 layers do not show: leave options.layers 0");
  ModuleLayouts by_class = now;  // the same layouts, in entries that can be changed one by one
  by_class.styles = plan_with(styles, styles.size(), std::nullopt);
  LayoutTrials trials(tried, arrangement);
  const LayoutTrial& at = trials.run(by_class);
  TORCH_CHECK_VALUE(at.failure.empty(), "[advise_module_layouts] a step in the layouts ", now.name(),
                    " fails: ", at.failure);
  const ModuleLayoutSearch found = search_module_layouts(make, inputs, options);
  LayoutAdvice advice;
  advice.now = now;
  advice.now.step = at.layouts.step;
  advice.now.memory = at.layouts.memory;
  advice.ran = at.ran;
  advice.fits = at.fits;
  Changes changes(at);
  std::vector<std::unique_ptr<LayoutTrials>> in_other_arrangements;
  add_layouts(changes, tried, by_class, styles, trials);
  add_arrangements(changes, models, tried, by_class, in_other_arrangements);
  advice.changes = changes.best();
  advice.best = found.best;
  for (const AdvisedChange& c : advice.changes) {
    if (c.fits && c.layouts.step.seconds() < advice.best.step.seconds() * (1 - kRounding)) advice.best = c.layouts;
  }
  if (at.fits && at.layouts.step.seconds() <= advice.best.step.seconds() * (1 + kRounding)) advice.best = advice.now;
  return advice;
}

}  // namespace dtensor
