// Improves the styles of a model's classes of modules for one arrangement.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "dtensor/analysis/layout_trials.h"

namespace dtensor::internal {

class StyleSearch {
 public:
  // `stop`: whether no more steps may be run. `ran`: called after each. `trials` outlives this.
  StyleSearch(LayoutTrials& trials, size_t classes, std::function<bool()> stop,
              std::function<void(const LayoutTrial&)> ran)
      : trials_(trials), classes_(classes), stop_(std::move(stop)), ran_(std::move(ran)) {}

  // From six first choices, in one class, until nothing is found that is better.
  void search();
  // From `first`, in one class.
  void improve(const ClassStyles& first);
  // From `first`, in two classes that are near each other, and in one, until nothing is found that is better.
  void improve_pairs(const ClassStyles& first);

 private:
  const LayoutTrial* run(const ClassStyles& styles);
  const LayoutTrial* better(const LayoutTrial* at, const ClassStyles& styles);
  const LayoutTrial* improve_one(const LayoutTrial* at);
  const LayoutTrial* improve_two(const LayoutTrial* at);
  const LayoutTrial* improve_both(const LayoutTrial* at, size_t a, size_t b);

  LayoutTrials& trials_;
  const size_t classes_;
  const std::function<bool()> stop_;
  const std::function<void(const LayoutTrial&)> ran_;
};

}  // namespace dtensor::internal
