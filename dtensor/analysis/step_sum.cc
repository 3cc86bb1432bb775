#include "dtensor/analysis/step_sum.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/algorithm/container.h"

namespace dtensor::internal {
namespace {

int64_t sum_of(int64_t a, int64_t b, double times) {
  return static_cast<int64_t>(std::llround(static_cast<double>(a) + times * static_cast<double>(b)));
}

}  // namespace

PredictedCollectives& row_like(std::vector<PredictedCollectives>& rows, const PredictedCollectives& row) {
  const auto kind = [](const PredictedCollectives& c) { return std::tie(c.collective, c.mesh_dims, c.between_nodes); };
  const auto found = absl::c_find_if(rows, [&](const auto& other) { return kind(other) == kind(row); });
  if (found != rows.end()) return *found;
  rows.push_back({row.collective, row.mesh_dims, row.between_nodes});
  return rows.back();
}

void add_step(StepPrediction& sum, const StepPrediction& part, double times) {
  sum.product_seconds += times * part.product_seconds;
  sum.operator_seconds += times * part.operator_seconds;
  sum.flops += times * part.flops;
  sum.memory_traffic = sum_of(sum.memory_traffic, part.memory_traffic, times);
  sum.operators = sum_of(sum.operators, part.operators, times);
  sum.start_seconds += times * part.start_seconds;
  sum.bubble_seconds += times * part.bubble_seconds;
  sum.overlapped_seconds += times * part.overlapped_seconds;
  for (const PredictedCollectives& row : part.communication) {
    PredictedCollectives& found = row_like(sum.communication, row);
    found.count = sum_of(found.count, row.count, times);
    found.bytes = sum_of(found.bytes, row.bytes, times);
    found.seconds += times * row.seconds;
  }
  absl::c_stable_sort(sum.communication, [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
}

namespace {

bool alike(const StepSpan& a, const StepSpan& b) { return a.kind == b.kind && a.name == b.name; }

// The most that an operator of the phase has alive. With d operators for a layer, the phase of two layers has a before
// the first and b after the last: a + 2 d + b, and that of three d more. So the first a + 2 d of both are the same
// operators, and the last 2 d + b; a and b are not known, and what more is alike is so by chance. The first a + d are
// compared, and the last d + b: a layer at an end of the phase is compared with none that has layers on both sides.
int64_t peak_of_phase(const std::vector<StepSpan>& two, const std::vector<StepSpan>& three, int64_t layers) {
  if (two.size() > three.size()) return 0;  // not made up of equal layers
  const auto count_alike = [](auto at, auto end, auto other) {
    return std::mismatch(at, end, other, alike).first - at;
  };
  ptrdiff_t first = count_alike(two.begin(), two.end(), three.begin()),
            last = count_alike(two.rbegin(), two.rend(), three.rbegin());
  if (two.size() < three.size()) {
    const auto of_layer = static_cast<ptrdiff_t>(three.size() - two.size()), all = static_cast<ptrdiff_t>(two.size());
    const ptrdiff_t by_chance = std::max<ptrdiff_t>(first + last - all - 2 * of_layer, 0);
    first = std::max<ptrdiff_t>(first - by_chance - of_layer, 0);
    last = std::max<ptrdiff_t>(last - by_chance - of_layer, 0);
  }
  int64_t peak = 0;
  const auto compare = [&](auto at_two, auto at_three, ptrdiff_t count) {
    for (; count > 0; --count, ++at_two, ++at_three)
      peak = std::max(peak, bytes_of_layers(at_two->peak_bytes, at_three->peak_bytes, layers));
  };
  compare(two.begin(), three.begin(), first);
  compare(two.rbegin(), three.rbegin(), last);
  return peak;
}

}  // namespace

PhasedStep step_of_layers(const PhasedStep& two, const PhasedStep& three, int64_t layers) {
  PhasedStep result;
  StepPrediction& all = result.step;
  add_step(all, three.step, static_cast<double>(layers - 2));
  add_step(all, two.step, static_cast<double>(3 - layers));
  std::erase_if(all.communication, [](const auto& row) { return row.count <= 0; });
  // What overlaps is not linear in the layers where communication is behind at first, and catches up.
  all.overlapped_seconds = std::clamp(all.overlapped_seconds, 0., all.communication_seconds());
  all.live_bytes = bytes_of_layers(two.step.live_bytes, three.step.live_bytes, layers);
  all.peak_bytes = bytes_of_layers(two.step.peak_bytes, three.step.peak_bytes, layers);
  for (size_t p = 0; p < two.phases.size() && p < three.phases.size(); ++p)
    all.peak_bytes = std::max(all.peak_bytes, peak_of_phase(two.phases[p], three.phases[p], layers));
  result.forward_seconds = seconds_of_layers(two.forward_seconds, three.forward_seconds, layers);
  result.backward_seconds = seconds_of_layers(two.backward_seconds, three.backward_seconds, layers);
  const auto of_layers = [&](int64_t LayoutMemory::*kind) {
    return bytes_of_layers(two.memory.*kind, three.memory.*kind, layers);
  };
  result.memory = {of_layers(&LayoutMemory::parameters), of_layers(&LayoutMemory::gradients),
                   of_layers(&LayoutMemory::optimizer_states), three.memory.gathered, 0};
  return result;
}

}  // namespace dtensor::internal
