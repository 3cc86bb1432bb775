#include "dtensor/search_module_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/text_table.h"
#include "dtensor/parallel/module_classes.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kNear = 3;          // two classes change together if they are so many places apart at most
constexpr size_t kAlternatives = 3;  // of a result
constexpr size_t kDifferences = 3;   // styles of an alternative that explain() names

// Improves choices for one arrangement.
class StyleSearch {
 public:
  // `stop`: whether no more steps may be run.
  StyleSearch(LayoutTrials& trials, size_t classes, std::function<bool()> stop,
              std::function<void(const LayoutTrial&)> ran)
      : trials_(trials), classes_(classes), stop_(std::move(stop)), ran_(std::move(ran)) {}

  // Until nothing is found that is better.
  void search() {
    const LayoutTrial* best = nullptr;
    for (const bool sequence : {false, true}) {
      for (const ClassStyle style : kClassStyles) {
        const LayoutTrial* first = run({false, sequence, std::vector<ClassStyle>(classes_, style)});
        if (first == nullptr) continue;
        const LayoutTrial* improved = improve_one(first);
        if (best == nullptr || is_better(*improved, *best)) best = improved;
      }
    }
    while (best != nullptr) {
      const LayoutTrial* improved = improve_two(best);
      if (improved == best) break;
      best = improve_one(improved);
    }
  }

 private:
  // Null: it was not run before, and no more steps may be run.
  const LayoutTrial* run(const ClassStyles& styles) {
    if (const LayoutTrial* known = trials_.find(styles)) return known;
    if (stop_()) return nullptr;
    const LayoutTrial& trial = trials_.run(styles);
    ran_(trial);
    return &trial;
  }

  // The better one of `at` and of the result of these styles.
  const LayoutTrial* better(const LayoutTrial* at, const ClassStyles& styles) {
    const LayoutTrial* other = run(styles);
    return other != nullptr && is_better(*other, *at) ? other : at;
  }

  // Changes one class, or what all have in common, until that does not help.
  const LayoutTrial* improve_one(const LayoutTrial* at) {
    for (const LayoutTrial* before = nullptr; before != at;) {
      before = at;
      ClassStyles styles = at->styles;
      styles.groups = !styles.groups;
      at = better(at, styles);
      styles = at->styles;
      styles.sequence = !styles.sequence;
      at = better(at, styles);
      for (size_t c = 0; c < classes_; ++c) {
        for (const ClassStyle style : kClassStyles) {
          styles = at->styles;
          styles.classes[c] = style;
          at = better(at, styles);
        }
      }
    }
    return at;
  }

  // Changes two classes, if that helps.
  const LayoutTrial* improve_two(const LayoutTrial* at) {
    for (size_t a = 0; a < classes_; ++a) {
      for (size_t b = a + 1; b < classes_ && b <= a + kNear; ++b) {
        const LayoutTrial* before = at;
        for (const ClassStyle of_a : kClassStyles) {
          for (const ClassStyle of_b : kClassStyles) {
            ClassStyles styles = before->styles;
            styles.classes[a] = of_a;
            styles.classes[b] = of_b;
            at = better(at, styles);
          }
        }
      }
    }
    return at;
  }

  LayoutTrials& trials_;
  const size_t classes_;
  const std::function<bool()> stop_;
  const std::function<void(const LayoutTrial&)> ran_;
};

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

// Of several that are equally good, the first. REQUIRES: one was run.
BestTrial best_of(const AllTrials& all) {
  BestTrial best;
  for (const auto& trials : all) {
    for (const auto& [key, trial] : trials->done()) {
      if (best.trial == nullptr || is_better(trial, *best.trial)) best = {&trial, trials.get()};
    }
  }
  return best;
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

ModuleLayoutSearch search_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const SearchModuleLayoutsOptions& options) {
  TORCH_CHECK_VALUE(make, "[search_module_layouts] make is an empty function");
  check_options(options, inputs);
  const std::vector<ModelArrangement> arrangements = model_arrangements(options, inputs);
  TriedModels models;
  ModuleLayoutSearch result;
  result.complete = true;
  AllTrials all;
  double least = std::numeric_limits<double>::infinity();  // seconds of a choice that fits
  for (size_t a = 0; a < arrangements.size(); ++a) {
    const TriedModel& model = tried_model(models, {make, inputs, options, arrangements[a].settings});
    LayoutTrials& trials = *all.emplace_back(std::make_unique<LayoutTrials>(model, arrangements[a]));
    // What an arrangement does not need is left to those after it.
    const int64_t share = (options.max_steps - result.steps) / static_cast<int64_t>(arrangements.size() - a);
    const auto stop = [&] {
      const bool enough = trials.steps() >= share;
      if (enough) result.complete = false;
      return enough;
    };
    const auto ran = [&](const LayoutTrial& trial) {
      if (trial.fits) least = std::min(least, trial.layouts.step.seconds());
      if (options.progress) options.progress(result.steps + trials.steps(), least);
    };
    StyleSearch(trials, model.classes.classes.size(), stop, ran).search();
    result.steps += trials.steps();
  }
  BestTrial best;
  for (bool settled = false; !settled;) {
    best = best_of(all);
    check_best(*best.trial, options.max_bytes);
    const int64_t steps = best.trials->steps();
    const bool checked = best.trial->whole.has_value();
    if (checked) {
      result.gains = gains_of(*best.trial, models.at(best.trial->layouts.settings).classes, *best.trials);
    } else {
      best.trials->run_whole(*best.trial);
    }
    result.steps += best.trials->steps() - steps;
    if (options.progress) options.progress(result.steps, least);
    settled = checked && best_of(all).trial == best.trial;  // no trial for a gain is better
  }
  result.best = best.trial->layouts;
  result.best.step = *best.trial->whole;
  result.alternatives = alternatives_to(*best.trial, all);
  return result;
}

}  // namespace dtensor
