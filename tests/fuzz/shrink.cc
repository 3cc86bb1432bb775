#include "tests/fuzz/shrink.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "tests/fuzz/simplify.h"

namespace dtensor::fuzz {
namespace {

class Shrinker {
 public:
  Shrinker(const Program& program, const Outcome& outcome, double seconds, const Runner& runner)
      : best_{program, outcome},
        runner_(runner),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  Shrunk run() {
    static const std::vector<Candidates> passes = {without_a_step,      with_a_leaf_for_a_step, with_less_mesh,
                                                   with_plain_flags,    with_simpler_layouts,   with_smaller_sizes,
                                                   with_simpler_dtypes, with_simpler_values,    with_simpler_arguments};
    bool smaller = true;
    while (smaller && !late()) {
      smaller = false;
      for (const Candidates& pass : passes) {
        while (!late() && improve(pass)) smaller = true;
      }
    }
    return best_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool late() const { return Clock::now() > end_; }

  bool improve(const Candidates& pass) {
    for (Program& candidate : pass(best_.program)) {
      if (late()) return false;
      drop_dangling(candidate);
      const Outcome outcome = runner_(candidate);
      if (!is_same(outcome)) continue;
      best_ = {std::move(candidate), outcome};
      return true;
    }
    return false;
  }

  // Gradients are attributed to the last step, which need not stay.
  bool is_same(Outcome outcome) const {
    if (outcome.order > 0) outcome.op = best_.outcome.op;
    return same_finding(outcome, best_.outcome);
  }

  Shrunk best_;
  const Runner& runner_;
  Clock::time_point end_;
};

}  // namespace

Shrunk shrink(const Program& program, const Outcome& outcome, double seconds, const Runner& runner) {
  return Shrinker(program, outcome, seconds, runner).run();
}

}  // namespace dtensor::fuzz
