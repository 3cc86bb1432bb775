// Measures what needs processes: collectives, redistribute() and a step of an MLP between the ranks of a job and in one
// process, next to Gloo, Open MPI and ScaLAPACK.
//
//   ./bazelw run //benchmarks/processes       # two minutes; on an idle machine
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/measure.h"
#include "benchmarks/processes/parts.h"
#include "mesh/world.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, part, "", "the only part to measure: collectives, redistribute or mlp");
ABSL_FLAG(std::string, rank_of, "", "be a rank of the job of that part. For the benchmark itself");

namespace dtensor::benchmarks {

namespace {

bool takes_part(const Figures& figures, const std::string& peer) {
  return std::any_of(figures.begin(), figures.end(), [&](const auto& f) { return f.second.count(peer) > 0; });
}

// nullopt: the peer took no part.
std::optional<Comparison> compare(const Measured& m, const std::string& where, const std::string& peer, double ours) {
  if (peer != kGloo && !takes_part(m.figures, peer)) return std::nullopt;
  const double theirs = seconds_of(m.figures, m.workload, peer);
  TORCH_CHECK(!std::isnan(ours) && !std::isnan(theirs), "the job has no time for: ", m.workload, ", ", peer);
  return Comparison{absl::StrCat(m.workload, ", ", where), peer, "us", theirs * 1e6, ours * 1e6};
}

}  // namespace

void add_row_of_one_process(const Measured& m, const std::string& peer, double gate, Gates& gates) {
  const auto row =
      compare(m, absl::StrCat("in one process on ", at::get_num_threads(), " threads"), peer, m.in_one_process);
  if (!row) return;
  gate > 0 ? gates.at_least(*row, row->theirs / row->ours, gate) : gates.note(*row, row->ours / row->theirs);
}

void add_row_of_processes(const Measured& m, const std::string& peer, Gates& gates) {
  const auto row = compare(m, "in as many processes", peer, seconds_of(m.figures, m.workload, kOurs));
  if (row) gates.note(*row, row->ours / row->theirs);
}

namespace {

const std::vector<Part>& all_parts() {
  static const auto* const parts = new std::vector<Part>{collectives_part(), redistribute_part(), mlp_part()};
  return *parts;
}

int run_rank(const Part& part) {
  std::vector<std::unique_ptr<Peer>> peers;
  if (auto mpi = make_mpi_peer()) peers.push_back(std::move(mpi));
  const World world = World::from_env();
  const DeviceMesh mesh(world, {world.size()}, {"x"});
  const int rank = static_cast<int>(world.owned_ranks().front()), size = static_cast<int>(world.size());
  peers.push_back(make_gloo_peer(rank, size, store_of_job()));
  const auto scalapack = make_scalapack(size);
  part.run_rank({mesh, peers, scalapack.get()});
  return 0;
}

void measure(const Part& part, Gates& gates) {
  for (const int ranks : part.ranks) {
    const Figures figures = run_job({"--rank_of=" + part.name, ranks, /*mpi=*/true});
    for (const std::string& peer : part.optional_peers) {
      if (!takes_part(figures, peer)) {
        gates.skip(absl::StrCat(part.name, " of ", ranks, " ranks next to ", peer), peer + " is not installed");
      }
    }
    // As many cores as the job had.
    at::set_num_threads(std::min<int>(ranks, static_cast<int>(std::thread::hardware_concurrency())));
    part.report(ranks, figures, gates);
  }
}

const Part& part_of(const std::string& flag, const std::string& name) {
  for (const Part& part : all_parts()) {
    if (part.name == name) return part;
  }
  throw tools::UsageError(absl::StrCat("--", flag, "=", name, ": expected collectives, redistribute or mlp"));
}

int run() {
  at::set_num_threads(1);
  keep_memory_of_tensors();
  const std::string rank_of = absl::GetFlag(FLAGS_rank_of), only = absl::GetFlag(FLAGS_part);
  if (!rank_of.empty()) return run_rank(part_of("rank_of", rank_of));
  Gates gates;
  if (!only.empty()) {
    measure(part_of("part", only), gates);
  } else {
    for (const Part& part : all_parts()) measure(part, gates);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("processes", "Times ranks that are processes.", argc, argv,
                                     dtensor::benchmarks::run);
}
