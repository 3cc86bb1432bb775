// Measures OverlapCommunication: a step of a sequence-parallel MLP, forward and backward, with and without the scope.
// Between two processes with a network that takes as long as an exchange would over a slow link, and sleeps meanwhile;
// and on ranks of one process, whose exchanges are copies and where nothing can overlap.
//
//   ./bazelw run //benchmarks:overlap
#include <ATen/Parallel.h>
#include <sched.h>
#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/job.h"
#include "benchmarks/measure.h"
#include "benchmarks/slow_network.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(bool, rank, false, "be a rank of the job. For the benchmark itself");

namespace dtensor::benchmarks {
namespace {

namespace nn = torch::nn;

constexpr int64_t kChunks = 4;

struct Sizes {
  int64_t batch, tokens, width, hidden;
};
std::string to_string(const Sizes& s) {
  return absl::StrCat(s.batch, " x ", s.tokens, " tokens, ", s.width, " x ", s.hidden);
}

struct Mlp {
  nn::Linear up, down;
  torch::Tensor x;

  void step() {
    for (const torch::Tensor& t : {up->weight, up->bias, down->weight, down->bias, x})
      t.mutable_grad() = torch::Tensor();
    const torch::Tensor y = down(torch::relu(up(x)));
    y.backward(torch::ones_like(y));
  }
  void step_in_chunks() {
    const OverlapCommunication scope({.chunks = kChunks});
    step();
  }
};

// `hidden`: all of s.hidden, or the part of one rank.
Mlp plain_mlp(const Sizes& s, int64_t hidden) {
  return {nn::Linear(s.width, hidden), nn::Linear(hidden, s.width),
          torch::randn({s.batch, s.tokens, s.width}).requires_grad_()};
}

Mlp distributed_mlp(const Sizes& s, const DeviceMesh& mesh) {
  Mlp mlp = plain_mlp(s, s.hidden);
  mlp.x = distribute_tensor(mlp.x.detach(), mesh, {Shard(1)}).requires_grad_();
  parallelize_module(*mlp.up, mesh, {{"", ColwiseParallel()}});
  parallelize_module(*mlp.down, mesh, {{"", RowwiseParallel({.output = Shard(1)})}});
  return mlp;
}

// Two processes, whose exchanges together take a third and two thirds of the time of the products.
struct SlowCase {
  Sizes sizes;
  double megabytes;  // that the network carries in a second
  double gate;       // at least such a share of the communication is to be hidden; 0: none
};
constexpr int kProcesses = 2;
constexpr SlowCase kSlowCases[] = {{{1, 2048, 512, 4096}, 100, 0}, {{1, 2048, 512, 4096}, 50, 0.6}};
constexpr char kOneAfterTheOther[] = "without chunks", kInChunks[] = "in chunks", kProducts[] = "products alone";

std::string name_of(const SlowCase& c) {
  return absl::StrCat("step of an MLP in ", kChunks, " chunks, ", kProcesses, " processes, a network of ", c.megabytes,
                      " MB/s, ", to_string(c.sizes));
}

int run_rank() {
  const int rank = rank_of_job();
  std::vector<World> worlds;
  for (const SlowCase& c : kSlowCases) {
    worlds.push_back(World::from_process_group(
        make_slow_network(rank, kProcesses, absl::StrCat(store_of_job(), c.megabytes), c.megabytes * 1e6)));
  }
  // This thread gets the lowest priority, so that threads of the network get a core as soon as they need one, as on a
  // machine with more cores. They exist already: threads that are made after this call would have that priority, too.
  const sched_param none = {};
  TORCH_CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0, "the system refuses to lower the priority of a thread");
  for (size_t i = 0; i < worlds.size(); ++i) {
    const SlowCase& c = kSlowCases[i];
    Mlp mlp = distributed_mlp(c.sizes, DeviceMesh(worlds[i], {kProcesses}, {"tp"}));
    Mlp plain = plain_mlp(c.sizes, c.sizes.hidden / kProcesses);  // what one rank computes, without exchanges
    time_ways(name_of(c),
              {{kOneAfterTheOther, [&] { mlp.step(); }},
               {kInChunks, [&] { mlp.step_in_chunks(); }},
               {kProducts, [&] { plain.step(); }}},
              7, 1);
  }
  return 0;
}

// How much of the communication, or of the products if they take less, the scope hides.
void measure_processes(Gates& gates) {
  const Figures figures = run_job({"--rank", kProcesses});
  for (const SlowCase& c : kSlowCases) {
    const std::string what = name_of(c);
    const double before = seconds_of(figures, what, kOneAfterTheOther), after = seconds_of(figures, what, kInChunks),
                 products = seconds_of(figures, what, kProducts);
    gates.at_most({what, "the same without chunks", "us", before * 1e6, after * 1e6, products * 1e6}, after / before,
                  1);
    const double hidden = (before - after) / std::min(before - products, products);
    const std::string share = what + ": share of the communication that is hidden";
    c.gate > 0 ? gates.at_least(share, hidden, c.gate) : gates.note({.workload = share}, hidden);
  }
}

void measure_one_process(Gates& gates) {
  constexpr int64_t kRanks = 4;
  for (const Sizes& s : {Sizes{4, 512, 512, 1024}, Sizes{1, 8192, 512, 1024}}) {
    const DeviceMesh mesh(World::local(kRanks), {kRanks}, {"tp"});
    Mlp mlp = distributed_mlp(s, mesh);
    const PairedTimes times = time_pairs([&] { mlp.step_in_chunks(); }, [&] { mlp.step(); }, 12);
    gates.at_most(compared(absl::StrCat("step of an MLP in ", kChunks, " chunks on ", kRanks, " ranks of one process, ",
                                        to_string(s)),
                           "the same without chunks", times),
                  times.ratio, 1.03);
  }
}

int run() {
  at::set_num_threads(1);
  keep_released_memory();
  if (absl::GetFlag(FLAGS_rank)) return run_rank();
  Gates gates;
  measure_processes(gates);
  measure_one_process(gates);
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("overlap", "Times products in chunks next to their communication.", argc, argv,
                                     dtensor::benchmarks::run);
}
