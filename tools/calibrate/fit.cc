#include "tools/calibrate/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace dtensor::tools {
namespace {

constexpr int kTerms = 3;  // a sample takes latency + hops * hop_latency + bytes / bandwidth
using Terms = std::array<double, kTerms>;

constexpr double kLeastLatency = 1e-10;  // seconds
constexpr double kMostBandwidth = 1e15;  // bytes per second: nothing was seen to be copied
constexpr double kOutlier = 0.1;         // relative error from which on a sample counts less

double dot(const Terms& a, const Terms& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Minimises the sum of weight * (row * x - 1)^2 over the terms in `used`; others are 0. False if the rows do not
// determine it.
bool solve(const std::vector<Terms>& rows, const std::vector<double>& weights, const std::array<bool, kTerms>& used,
           Terms& x) {
  double a[kTerms][kTerms + 1] = {};
  for (size_t s = 0; s < rows.size(); ++s) {
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) a[i][j] += weights[s] * rows[s][i] * rows[s][j];
      a[i][kTerms] += weights[s] * rows[s][i];
    }
  }
  for (int i = 0; i < kTerms; ++i) {
    if (used[i]) continue;
    for (int j = 0; j <= kTerms; ++j) a[i][j] = 0;
    for (int j = 0; j < kTerms; ++j) a[j][i] = 0;
    a[i][i] = 1;
  }
  double diagonal[kTerms];
  for (int i = 0; i < kTerms; ++i) diagonal[i] = a[i][i];
  for (int i = 0; i < kTerms; ++i) {  // symmetric and positive: no pivoting
    if (!(a[i][i] > 1e-12 * diagonal[i])) return false;
    for (int k = i + 1; k < kTerms; ++k) {
      const double factor = a[k][i] / a[i][i];
      for (int j = i; j <= kTerms; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  for (int i = kTerms; i-- > 0;) {
    x[i] = a[i][kTerms];
    for (int j = i + 1; j < kTerms; ++j) x[i] -= a[i][j] * x[j];
    x[i] /= a[i][i];
  }
  return true;
}

// The best of all choices of terms that come out positive.
Terms solve_positive(const std::vector<Terms>& rows, const std::vector<double>& weights) {
  Terms best = {};
  double least = INFINITY;
  for (int set = 1; set < 1 << kTerms; ++set) {
    Terms x = {};
    if (!solve(rows, weights, {(set & 1) != 0, (set & 2) != 0, (set & 4) != 0}, x)) continue;
    if (*std::min_element(x.begin(), x.end()) < 0) continue;
    double loss = 0;
    for (size_t s = 0; s < rows.size(); ++s) loss += weights[s] * std::pow(dot(rows[s], x) - 1, 2);
    if (loss < least) least = loss, best = x;
  }
  return best;
}

}  // namespace

LinkFit fit_link(const std::vector<LinkSample>& samples) {
  LinkFit fit;
  if (samples.empty()) return fit;
  const bool one_group =
      std::all_of(samples.begin(), samples.end(), [&](const auto& s) { return s.hops == samples[0].hops; });
  const bool any_bytes = std::any_of(samples.begin(), samples.end(), [](const auto& s) { return s.bytes > 0; });
  const double share = fit.cost.hop_latency / fit.cost.latency;
  std::vector<Terms> rows;
  for (const LinkSample& s : samples) {
    rows.push_back(one_group ? Terms{(1 + share * s.hops) / s.seconds, 0, s.bytes / s.seconds}
                             : Terms{1 / s.seconds, s.hops / s.seconds, s.bytes / s.seconds});
  }
  std::vector<double> weights(samples.size(), 1.0);
  Terms x = {};
  for (int round = 0; round < 50; ++round) {
    x = solve_positive(rows, weights);
    for (size_t s = 0; s < rows.size(); ++s) weights[s] = kOutlier / std::max(kOutlier, std::abs(dot(rows[s], x) - 1));
  }
  fit.cost.latency = std::max(kLeastLatency, x[0]);
  fit.cost.hop_latency = std::max(kLeastLatency, one_group ? share * x[0] : x[1]);
  if (any_bytes) fit.cost.bandwidth = x[2] > 1 / kMostBandwidth ? 1 / x[2] : kMostBandwidth;

  std::vector<double> errors;
  for (const Terms& row : rows) errors.push_back(std::abs(dot(row, x) - 1));
  const auto worst = std::max_element(errors.begin(), errors.end());
  fit.worst = static_cast<size_t>(worst - errors.begin());
  fit.worst_error = *worst;
  std::nth_element(errors.begin(), errors.begin() + static_cast<int64_t>(errors.size() / 2), errors.end());
  fit.typical_error = errors[errors.size() / 2];
  return fit;
}

}  // namespace dtensor::tools
