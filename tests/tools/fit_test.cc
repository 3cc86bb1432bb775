// From times to the numbers of a cost model.
#include "tools/calibrate/fit.h"

#include <cmath>

#include "tests/testing/catch_torch.h"

namespace dtensor::tools {
namespace {

std::vector<LinkSample> samples(double latency, double hop, double bandwidth, std::initializer_list<double> hops) {
  std::vector<LinkSample> all;
  for (double h : hops) {
    for (double bytes = 1024; bytes <= 1 << 24; bytes *= 4)
      all.push_back({h, bytes, latency + h * hop + bytes / bandwidth});
  }
  return all;
}

}  // namespace

TEST_CASE("fit: finds the numbers that times were made with") {
  const LinkFit fit = fit_link(samples(5e-6, 1e-6, 2e10, {1, 2, 3}));
  CHECK(fit.cost.latency == Approx(5e-6).epsilon(1e-3));
  CHECK(fit.cost.hop_latency == Approx(1e-6).epsilon(1e-3));
  CHECK(fit.cost.bandwidth == Approx(2e10).epsilon(1e-3));
  CHECK(fit.worst_error < 1e-3);
}

TEST_CASE("fit: a few wild samples change little") {
  auto some = samples(5e-6, 1e-6, 2e10, {1, 2, 3});
  for (size_t i : {2, 9, 15}) some[i].seconds *= 20;
  some[2].seconds *= 20;
  some[6].seconds /= 2;
  const LinkFit fit = fit_link(some);
  CHECK(fit.cost.latency == Approx(5e-6).epsilon(0.03));
  CHECK(fit.cost.bandwidth == Approx(2e10).epsilon(0.03));
  CHECK(fit.typical_error < 0.02);
  CHECK(fit.worst_error > 0.8);
  CHECK(fit.worst == 2);
}

TEST_CASE("fit: whatever comes in, positive numbers come out") {
  // Faster for more hops, and independent of bytes.
  std::vector<LinkSample> some = {{1, 1e3, 9e-6}, {2, 1e3, 5e-6}, {1, 1e6, 9e-6}, {2, 1e6, 5e-6}};
  for (const auto& list :
       {some, std::vector<LinkSample>{}, std::vector<LinkSample>{{1, 0, 1e-6}}, samples(0, 0, 1e10, {1, 2})}) {
    const LinkFit fit = fit_link(list);
    for (double v : {fit.cost.latency, fit.cost.hop_latency, fit.cost.bandwidth}) {
      CHECK(v > 0);
      CHECK(std::isfinite(v));
    }
    CostModel model;
    model.within_node[0] = fit.cost;
    CHECK(CostModel::from_json(model.to_json()) == model);
  }
}

TEST_CASE("fit: negative terms are dropped, and the others fit as well as possible") {
  const LinkFit fit = fit_link({{1, 1e3, 9e-6}, {2, 1e3, 5e-6}, {1, 1e6, 9e-6}, {2, 1e6, 5e-6}});
  CHECK(fit.cost.latency > 5e-6);
  CHECK(fit.cost.latency < 9e-6);
  CHECK(fit.cost.hop_latency < 1e-8);
}

TEST_CASE("fit: one size of group shares the latency as the built-in numbers do") {
  const LinkFit fit = fit_link(samples(5e-6, 1e-6, 2e10, {2}));
  const LinkCost built_in;
  CHECK(fit.cost.latency + 2 * fit.cost.hop_latency == Approx(7e-6).epsilon(1e-3));
  CHECK(fit.cost.hop_latency / fit.cost.latency == Approx(built_in.hop_latency / built_in.latency));
  CHECK(fit.worst_error < 1e-3);
}

}  // namespace dtensor::tools
