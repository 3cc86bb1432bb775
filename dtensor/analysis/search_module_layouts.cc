#include "dtensor/search_module_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/pipeline_step.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/style_search.h"
#include "dtensor/analysis/text_table.h"
#include "dtensor/parallel/module_classes.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kAlternatives = 3;  // of a result
constexpr size_t kDifferences = 3;   // styles of an alternative that explain() names

// Why no choice can be the best one.
void check_best(const LayoutTrial& best, int64_t max_bytes) {
  TORCH_CHECK_VALUE(best.failure.empty(), "[search_module_layouts] every choice failed; ", best.layouts.name(), ": ",
                    best.failure);
  TORCH_CHECK_VALUE(best.fits, "[search_module_layouts] no choice that was tried fits within ", bytes_text(max_bytes),
                    "; the nearest is ", best.layouts.name(), ", which needs ", best.memory_text());
}

bool predicted_alike(const LayoutTrial& a, const LayoutTrial& b) {
  return a.layouts.step.seconds() == b.layouts.step.seconds() && a.layouts.step.peak_bytes == b.layouts.step.peak_bytes;
}

using AllTrials = std::vector<std::unique_ptr<LayoutTrials>>;

std::vector<ModuleLayouts> alternatives_to(const LayoutTrial& best, const AllTrials& all) {
  std::vector<const LayoutTrial*> fitting;
  for (const auto& trials : all) {
    for (const auto& [key, trial] : trials->done()) {
      if (trial.fits) fitting.push_back(&trial);
    }
  }
  absl::c_stable_sort(fitting, [](const auto* a, const auto* b) { return is_better(*a, *b); });
  std::vector<ModuleLayouts> result;
  const LayoutTrial* last = &best;
  for (const LayoutTrial* trial : fitting) {
    if (result.size() == kAlternatives) break;
    if (predicted_alike(*trial, *last) || predicted_alike(*trial, best)) continue;
    result.push_back(trial->layouts);
    last = trial;
  }
  return result;
}

struct BestTrial {
  const LayoutTrial* trial = nullptr;
  LayoutTrials* trials = nullptr;
};

// Null: none was run.
const LayoutTrial* best_in(const LayoutTrials& trials) {
  const LayoutTrial* best = nullptr;
  for (const auto& [key, trial] : trials.done()) {
    if (best == nullptr || is_better(trial, *best)) best = &trial;
  }
  return best;
}

// Of several that are equally good, the first. REQUIRES: one was run.
BestTrial best_of(const AllTrials& all) {
  BestTrial best;
  for (const auto& trials : all) {
    const LayoutTrial* trial = best_in(*trials);
    if (trial != nullptr && (best.trial == nullptr || is_better(*trial, *best.trial))) best = {trial, trials.get()};
  }
  return best;
}

// Seconds of the best; infinity: none fits.
double least_of(const AllTrials& all) {
  const LayoutTrial& best = *best_of(all).trial;
  return best.fits ? best.layouts.step.seconds() : std::numeric_limits<double>::infinity();
}

std::vector<StyleGain> gains_of(const LayoutTrial& best, const ModuleClasses& classes, LayoutTrials& trials) {
  std::vector<StyleGain> gains;
  for (size_t c = 0; c < classes.classes.size(); ++c) {
    const ModuleClass& of = classes.classes[c];
    StyleGain gain{of.patterns, style_of_class(of, best.styles.classes[c], best.styles.sequence), 0, ""};
    if (gain.style) {
      ClassStyles without = best.styles;
      without.classes[c] = ClassStyle::kReplicated;
      const LayoutTrial& other = trials.run(without);
      if (!other.failure.empty()) {
        gain.reason = absl::StrCat("replicated it fails: ", first_line(other.failure));
      } else if (!other.fits) {
        gain.reason = absl::StrCat("replicated it needs ", other.memory_text());
      } else {
        gain.seconds = other.layouts.step.seconds() - best.layouts.step.seconds();
        gain.reason = step_difference(best.layouts.step, other.layouts.step);
      }
    }
    gains.push_back(std::move(gain));
  }
  return gains;
}

// "layers.*.wo: RowwiseParallel(output R)": the styles of `other` that `best` does not have, and the reverse.
std::string styles_difference(const ParallelPlan& best, const ParallelPlan& other) {
  std::vector<std::string> parts;
  const auto find = [](const ParallelPlan& plan, const std::string& pattern) {
    return absl::c_find_if(plan.entries, [&](const auto& e) { return e.pattern == pattern; });
  };
  for (const auto& entry : other.entries) {
    if (!absl::c_linear_search(best.entries, entry)) {
      parts.push_back(absl::StrCat(patterns_text({entry.pattern}), " ", entry.style.to_string()));
    }
  }
  for (const auto& entry : best.entries) {
    if (find(other, entry.pattern) == other.entries.end())
      parts.push_back(absl::StrCat(patterns_text({entry.pattern}), " replicated"));
  }
  if (parts.empty()) return "";
  const size_t more = parts.size() > kDifferences ? parts.size() - kDifferences : 0;
  parts.resize(parts.size() - more);
  return absl::StrCat(" with ", absl::StrJoin(parts, ", "), more > 0 ? absl::StrCat(" and ", more, " others") : "");
}

}  // namespace

std::string ModuleLayoutSearch::explain() const {
  std::string text = absl::StrFormat("%s, %s a step, at most %s on a rank; the best of %d%s\n", best.name(),
                                     seconds_text(best.step.seconds()), bytes_text(best.step.peak_bytes), steps,
                                     complete ? "" : ", after which max_steps ended the search");
  absl::StrAppend(&text, "  at the peak: ", best.memory.to_string(), "\n");
  std::vector<TextRow> rows = {{"modules", "style", "saves", "by"}};
  for (const StyleGain& gain : gains) {
    rows.push_back({patterns_text(gain.patterns), gain.style ? gain.style->to_string() : "replicated",
                    gain.seconds == 0 ? "" : seconds_text(gain.seconds), gain.reason});
  }
  absl::StrAppend(&text, text_table(rows, "  "));
  for (const ModuleLayouts& other : alternatives) {
    absl::StrAppendFormat(&text, "%s%s takes %s more: %s\n", other.name(), styles_difference(best.styles, other.styles),
                          seconds_text(other.step.seconds() - best.step.seconds()),
                          step_difference(best.step, other.step));
  }
  return text;
}

namespace {

// A search that is under way.
struct RunningSearch {
  const MakeModel& make;
  const std::vector<at::Tensor>& inputs;
  const SearchModuleLayoutsOptions& options;
  TriedModels models = {};
  AllTrials all = {};
  std::vector<std::pair<double, const ModelArrangement*>> waiting =
      {};           // pipelines, experts or sequences: with lower bounds of the time
  size_t next = 0;  // of these
  double least = std::numeric_limits<double>::infinity();  // seconds of a choice that fits
  std::set<const LayoutTrials*> improved = {};             // of `all`: in pairs of classes
  ModuleLayoutSearch result = {};

  void report() const {
    if (options.progress) options.progress(result.steps, least);
  }
  const TriedModel& model(const ModelArrangement& arrangement) {
    return tried_model(models, {make, inputs, options, arrangement.settings});
  }
};

// Runs `tries` for one arrangement, which stops after `share` steps.
template <typename Tries>
void search_styles(RunningSearch& search, LayoutTrials& trials, size_t classes, int64_t share, const Tries& tries) {
  const int64_t before = search.result.steps, own = trials.steps();
  const auto stop = [&] {
    const bool enough = trials.steps() - own >= share;
    if (enough) search.result.complete = false;
    return enough;
  };
  const auto ran = [&](const LayoutTrial& trial) {
    if (trial.fits) search.least = std::min(search.least, trial.layouts.step.seconds());
    search.result.steps = before + trials.steps() - own;
    search.report();
  };
  StyleSearch styles(trials, classes, stop, ran);
  tries(styles);
  search.result.steps = before + trials.steps() - own;
}

// Tries choices for one arrangement, with 1 / `parts` of the steps that are left. `start`: those to improve in one
// class; null: all first choices.
void search_arrangement(RunningSearch& search, LayoutTrials& trials, size_t classes, size_t parts,
                        const ClassStyles* start) {
  // What an arrangement does not need is left to those after it.
  const int64_t left = search.options.max_steps - search.result.steps;
  const int64_t share = std::min(left, std::max<int64_t>(left / static_cast<int64_t>(parts), 1));
  search_styles(search, trials, classes, share, [&](StyleSearch& styles) {
    if (start == nullptr) {
      styles.search();
    } else {
      styles.improve(*start);
    }
  });
}

// Tries choices for all arrangements, each by itself.
void search_each(RunningSearch& search, const std::vector<ModelArrangement>& arrangements) {
  for (size_t a = 0; a < arrangements.size(); ++a) {
    const TriedModel& model = search.model(arrangements[a]);
    LayoutTrials& trials = *search.all.emplace_back(std::make_unique<LayoutTrials>(model, arrangements[a]));
    search_arrangement(search, trials, model.classes.classes.size(), arrangements.size() - a, nullptr);
  }
}

// Those with pipelines by their lower bounds, those with the same in their order.
void put_in_order(RunningSearch& search, const std::vector<ModelArrangement>& arrangements, bool pipelines) {
  for (const ModelArrangement& a : arrangements)
    search.waiting.emplace_back(pipelines ? least_seconds(search.model(a), a) : 0, &a);
  absl::c_stable_sort(search.waiting, [](const auto& a, const auto& b) { return a.first < b.first; });
}

// Of the choices that fit, with a tensor dim larger than 1, in a pipeline or not; null: none does.
const LayoutTrial* best_with_styles(const AllTrials& all, bool pipeline) {
  const LayoutTrial* best = nullptr;
  for (const auto& trials : all) {
    for (const auto& [key, trial] : trials->done()) {
      const bool alike = trial.layouts.mesh.back().second > 1 && (trial.layouts.stages > 1) == pipeline;
      if (trial.fits && alike && (best == nullptr || is_better(trial, *best))) best = &trial;
    }
  }
  return best;
}

// Tries choices for the waiting arrangements, the one with the smallest lower bound of its time first, and none whose
// bound is above the best so far.
void search_waiting(RunningSearch& search) {
  for (; search.next < search.waiting.size(); ++search.next) {
    const auto& [bound, arrangement] = search.waiting[search.next];
    if (bound > search.least) return;
    const bool pipeline = arrangement->schedule.has_value();
    const LayoutTrial* best = best_with_styles(search.all, pipeline);
    const auto is_alike = [&](const ModelArrangement& a) {
      return a.mesh.size(search.options.tensor_dim) > 1 && a.schedule.has_value() == pipeline;
    };
    const auto before = search.waiting.begin() + static_cast<ptrdiff_t>(search.next);
    const bool first = is_alike(*arrangement) &&
                       std::none_of(search.waiting.begin(), before, [&](const auto& w) { return is_alike(*w.second); });
    const TriedModel& model = search.model(*arrangement);
    LayoutTrials& trials = *search.all.emplace_back(std::make_unique<LayoutTrials>(model, *arrangement));
    const size_t classes = model.classes.classes.size(), left = search.waiting.size() - search.next;
    const bool same = best != nullptr && best->styles.classes.size() == classes;
    search_arrangement(search, trials, classes, first ? std::min<size_t>(left, 2) : left,
                       same ? &best->styles : nullptr);
  }
}

// Improves the best choice of an arrangement in two classes at a time: that of the best one, and while none fits, those
// of all others, one after the other. False: there is nothing left to improve.
bool improve_pairs(RunningSearch& search, const BestTrial& best) {
  LayoutTrials* next = nullptr;
  const auto is_new = [&](LayoutTrials* trials) { return !search.improved.contains(trials); };
  if (is_new(best.trials)) {
    next = best.trials;
  } else if (!best.trial->fits) {
    const auto found = absl::c_find_if(search.all, [&](const auto& t) { return is_new(t.get()) && best_in(*t); });
    if (found != search.all.end()) next = found->get();
  }
  if (next == nullptr) return false;
  search.improved.insert(next);
  const ClassStyles styles = best_in(*next)->styles;
  const int64_t left = search.options.max_steps - search.result.steps;
  const auto others = static_cast<int64_t>(search.all.size() - search.improved.size());
  search_styles(search, *next, styles.classes.size(), best.trial->fits ? left : left / (others + 1),
                [&](StyleSearch& s) { s.improve_pairs(styles); });
  return true;
}

}  // namespace

ModuleLayoutSearch search_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const SearchModuleLayoutsOptions& options) {
  TORCH_CHECK_VALUE(make, "[search_module_layouts] make is an empty function");
  check_options(options, inputs);
  const std::vector<ModelArrangement> arrangements = model_arrangements(options, inputs);
  RunningSearch search{make, inputs, options};
  ModuleLayoutSearch& result = search.result;
  result.complete = true;
  const bool pipelines = absl::c_any_of(arrangements, [](const auto& a) { return a.schedule.has_value(); });
  if (pipelines || !options.shard_sizes.empty() || !options.expert_sizes.empty() || !options.context_sizes.empty()) {
    put_in_order(search, arrangements, pipelines);
  } else {
    search_each(search, arrangements);
  }
  BestTrial best;
  for (bool settled = false; !settled;) {
    search_waiting(search);
    best = best_of(search.all);
    if (improve_pairs(search, best)) continue;
    check_best(*best.trial, options.max_bytes);
    const int64_t steps = best.trials->steps();
    const bool checked = best.trial->is_whole;
    if (checked) {
      result.gains = gains_of(*best.trial, search.models.at(best.trial->layouts.settings).classes, *best.trials);
    } else {
      best.trials->run_whole(*best.trial);
      search.least = least_of(search.all);  // more than before where that does not fit
    }
    result.steps += best.trials->steps() - steps;
    search.report();
    settled = checked && best_of(search.all).trial == best.trial;  // no trial for a gain is better
  }
  result.best = best.trial->layouts;
  result.alternatives = alternatives_to(*best.trial, search.all);
  return std::move(result);
}

}  // namespace dtensor
