// A DLRM that predicts clicks, over several ranks and on one device: the same losses. A planner places its tables
// within a memory budget per rank, and gives the reasons; the communication of a step is compared with hand-written
// code. The ranks are in this process, or in one each if a launcher started several:
//
//   ./bazelw run //examples/recommender -- --budget 2500KiB --steps 20
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/recommender/recommender

#include <torch/optim.h>

#include <cmath>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/recommender/sharded_dlrm.h"
#include "plan/cost_model.h"
#include "processes/launch/launch_env.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, ranks, 4, "ranks in this process; where a launcher started several processes, as many as those");
ABSL_FLAG(int64_t, steps, 20, "optimizer steps");
ABSL_FLAG(int64_t, batch, 32, "samples of every rank and step");
ABSL_FLAG(std::string, budget, "2500KiB", "what a rank may use for parameters, gradients and Adagrad's sums");
ABSL_FLAG(uint64_t, seed, 1, "of the parameters and the clicks");

namespace {

using namespace dtensor;
using examples::Clicks;
using examples::Dlrm;
using examples::DlrmConfig;
using examples::ShardedDlrm;

DlrmConfig config_of_example() {
  DlrmConfig config;
  config.tables = {{"country", 12}, {"device", 30}, {"shop_0", 900}, {"shop_1", 900},       {"shop_2", 900},
                   {"shop_3", 900}, {"user", 8000}, {"item", 6000},  {"history", 4000, 150}};
  return config;
}

int64_t positive(const char* name, int64_t value) {
  if (value < 1) throw tools::UsageError(absl::StrCat("--", name, " ", value, ": must be at least 1"));
  return value;
}

Dlrm make_model(const DlrmConfig& config) {
  torch::manual_seed(absl::GetFlag(FLAGS_seed));
  Dlrm model(config);
  model->to(torch::kDouble);
  return model;
}

sharded::PlannerOptions planner_options(const DlrmConfig& config, int64_t batch) {
  sharded::PlannerOptions options;
  options.bytes_per_rank = tools::parse_bytes("budget", absl::GetFlag(FLAGS_budget));
  options.memory_factor = 3;  // values, gradients, Adagrad's sums
  options.batch_per_rank = batch;
  for (const auto& t : config.tables) options.ids["tables." + t.name] = static_cast<double>(t.ids);
  options.cost = std::make_shared<const CostModel>();  // the same plan on every machine: that of a cluster
  return options;
}

// Bytes that a rank receives in a step if written by hand, for the planner's choices (see the planner's header).
struct ByHand {
  int64_t ids = 0, rows = 0, gradients = 0, bucket = 0;
};
ByHand by_hand(const sharded::PlanReport& report, int64_t n, int64_t b) {
  ByHand result;
  std::vector<int64_t> rows(n), gradients(n);
  for (const auto& p : report.parameters) {
    const int64_t whole = p.facts.sizes[0] * (p.facts.sizes.size() > 1 ? p.facts.sizes[1] : 1) * p.facts.element_bytes;
    if (p.choice.kind == sharded::ShardingKind::kReplicated) {
      result.bucket += 2 * whole * (n - 1) / n;
      continue;
    }
    result.ids += (n - 1) * b * std::llround(p.facts.ids) * 8;
    const int64_t columns = p.facts.sizes[1], row = columns * p.facts.element_bytes;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t split = (columns + n - 1) / n, own_columns = std::clamp<int64_t>(columns - split * r, 0, split);
      const int64_t own_row = own_columns * p.facts.element_bytes;
      switch (p.choice.kind) {
        case sharded::ShardingKind::kRowWise:
          rows[r] += (n - 1) * b * row;
          gradients[r] += (n - 1) * b * row;
          break;
        case sharded::ShardingKind::kColumnWise:
          rows[r] += b * (row - own_row);
          gradients[r] += (n - 1) * b * own_row;
          break;
        default:
          rows[r] += p.choice.rank == r ? 0 : b * row;
          gradients[r] += p.choice.rank == r ? (n - 1) * b * row : 0;
      }
    }
  }
  result.rows = *std::max_element(rows.begin(), rows.end());
  result.gradients = *std::max_element(gradients.begin(), gradients.end());
  return result;
}

struct Measured {
  const char* what;
  Collective collective;
  bool backward;
  int64_t by_hand;
};

// One line per exchange. True if all equal the hand-written ones, and there are no others but the loss.
bool compare(const CommDebugMode& comm, const ByHand& hand, bool reports) {
  int64_t rest = comm.total();
  bool same = true;
  for (const auto& [what, collective, backward, bytes] :
       {Measured{"ids", Collective::kAllGather, false, hand.ids},
        Measured{"rows", Collective::kAllToAll, false, hand.rows},
        Measured{"gradients of rows", Collective::kAllToAll, true, hand.gradients},
        Measured{"gradients of replicated parameters", Collective::kAllReduce, false, hand.bucket}}) {
    int64_t count = 0, measured = 0;
    for (const CommRow& row : comm.rows()) {
      if (row.collective != collective || row.backward != backward || row.op == "full_tensor") continue;
      count += row.count;
      measured += row.bytes;
    }
    rest -= count;
    const int64_t expected = bytes > 0 ? 1 : 0;
    same &= count == expected && measured == bytes;
    if (reports) {
      std::cout << absl::StrFormat("%-36s %d %-10s %8d B received by a rank; by hand %d, %8d B\n", what, count,
                                   std::string(to_string(collective)), measured, expected, bytes);
    }
  }
  if (reports) std::cout << absl::StrFormat("besides: %d, the mean of the loss\n", rest);
  return same && rest == 1;
}

int train() {
  const int64_t steps = positive("steps", absl::GetFlag(FLAGS_steps)),
                batch = positive("batch", absl::GetFlag(FLAGS_batch));
  const World world = find_launcher() == Launcher::kNone ? World::local(positive("ranks", absl::GetFlag(FLAGS_ranks)))
                                                         : World::from_env();
  const bool reports = world.owned_ranks()[0] == 0;
  const DlrmConfig config = config_of_example();
  Dlrm plain = make_model(config);
  Dlrm whole = make_model(config);

  sharded::EmbeddingShardingPlanner planner(world, planner_options(config, batch));
  ShardedDlrm model(whole, world, planner.build_plan(*whole));
  if (reports) std::cout << planner.report().to_string() << "\n";

  const auto options = torch::optim::AdagradOptions(0.05);
  torch::optim::Adagrad plain_optimizer(plain->parameters(), options);
  sharded::ShardedOptimizer<torch::optim::Adagrad> optimizer(model.parameters(), options);
  double largest = 0, first = 0, last = 0;
  bool as_by_hand = true;
  for (int64_t step = 0; step < steps; ++step) {
    const Clicks clicks = examples::make_clicks(config, batch * world.size(), absl::GetFlag(FLAGS_seed) * 1000 + step);
    plain_optimizer.zero_grad();
    const auto expected = torch::binary_cross_entropy_with_logits(plain(clicks.dense, clicks.ids), clicks.labels);
    expected.backward();
    plain_optimizer.step();

    optimizer.zero_grad();
    CommDebugMode comm;
    const at::Tensor loss = model.step(clicks);
    model.reduce_gradients();
    last = full_tensor(loss).item<double>();
    if (step == 0 && reports) std::cout << comm << "\n";
    as_by_hand &= compare(comm, by_hand(planner.report(), world.size(), batch), reports && step == 0);
    optimizer.step();
    if (step == 0) first = last;
    largest = std::max(largest, std::abs(last - expected.item<double>()));
  }
  if (reports) {
    std::cout << absl::StrFormat("%d steps on %s: loss %.6f, then %.6f; largest difference from one device %.3g\n",
                                 steps, world.name(), first, last, largest)
              << "communication of every step: " << (as_by_hand ? "as by hand" : "NOT as by hand") << "\n";
  }
  return largest < 1e-9 && as_by_hand ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("recommender", "Trains a DLRM on several ranks and on one device, and compares.", argc,
                            argv, train);
}
