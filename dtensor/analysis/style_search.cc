#include "dtensor/analysis/style_search.h"

#include <vector>

namespace dtensor::internal {
namespace {

constexpr size_t kNear = 3;  // two classes change together if they are so many places apart at most

}  // namespace

void StyleSearch::search() {
  for (const bool sequence : {false, true}) {
    for (const ClassStyle style : kClassStyles) improve({false, sequence, std::vector<ClassStyle>(classes_, style)});
  }
}

void StyleSearch::improve(const ClassStyles& first) {
  if (const LayoutTrial* at = run(first)) improve_one(at);
}

void StyleSearch::improve_pairs(const ClassStyles& first) {
  const LayoutTrial* at = run(first);
  for (const LayoutTrial* before = nullptr; at != before;) {
    before = at;
    const LayoutTrial* improved = improve_two(at);
    if (improved != at) at = improve_one(improved);
  }
}

// Null: it was not run before, and no more steps may be run.
const LayoutTrial* StyleSearch::run(const ClassStyles& styles) {
  if (const LayoutTrial* known = trials_.find(styles)) return known;
  if (stop_()) return nullptr;
  const LayoutTrial& trial = trials_.run(styles);
  ran_(trial);
  return &trial;
}

// The better one of `at` and of the result of these styles.
const LayoutTrial* StyleSearch::better(const LayoutTrial* at, const ClassStyles& styles) {
  const LayoutTrial* other = run(styles);
  return other != nullptr && is_better(*other, *at) ? other : at;
}

// Changes one class, or what all have in common, until that does not help.
const LayoutTrial* StyleSearch::improve_one(const LayoutTrial* at) {
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

// Changes two classes, with or without the layout of the activations between modules, if that helps.
const LayoutTrial* StyleSearch::improve_two(const LayoutTrial* at) {
  for (size_t a = 0; a < classes_; ++a) {
    for (size_t b = a + 1; b < classes_ && b <= a + kNear; ++b) at = improve_both(at, a, b);
  }
  return at;
}

const LayoutTrial* StyleSearch::improve_both(const LayoutTrial* at, size_t a, size_t b) {
  ClassStyles styles = at->styles;
  for (const bool sequence : {at->styles.sequence, !at->styles.sequence}) {
    styles.sequence = sequence;
    for (const ClassStyle of_a : kClassStyles) {
      for (const ClassStyle of_b : kClassStyles) {
        styles.classes[a] = of_a;
        styles.classes[b] = of_b;
        at = better(at, styles);
      }
    }
  }
  return at;
}

}  // namespace dtensor::internal
