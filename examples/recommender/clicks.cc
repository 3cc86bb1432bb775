#include "examples/recommender/clicks.h"

namespace examples {

Clicks Clicks::narrow(int64_t first, int64_t samples) const {
  Clicks part{dense.narrow(0, first, samples), {}, labels.narrow(0, first, samples)};
  for (const torch::Tensor& of_table : ids) part.ids.push_back(of_table.narrow(0, first, samples));
  return part;
}

Clicks make_clicks(const DlrmConfig& config, int64_t samples, uint64_t seed) {
  torch::manual_seed(seed);
  Clicks clicks;
  clicks.dense = torch::rand({samples, config.dense}, torch::kDouble);
  torch::Tensor score = (clicks.dense.mean(1) - 0.5) * 8;
  for (const TableConfig& t : config.tables) {
    const torch::Tensor skewed = torch::rand({samples, t.ids}, torch::kDouble).pow(3) * static_cast<double>(t.rows);
    clicks.ids.push_back(skewed.to(torch::kLong).clamp_max(t.rows - 1));
    // Every id pulls up or down, by a fixed pattern.
    score = score + torch::sin(clicks.ids.back().to(torch::kDouble) * 1.7).mean(1);
  }
  clicks.labels = torch::rand({samples}, torch::kDouble).lt(torch::sigmoid(score)).to(torch::kDouble);
  return clicks;
}

}  // namespace examples
