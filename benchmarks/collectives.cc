// Measures collectives in one process, where a rank reads the memory of the others, compared with jobs of two processes
// on this machine and with hand-written loops. Fails if a figure in the documentation does not hold.
//
//   ./bazelw run //benchmarks:collectives       # a minute; on an idle machine

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/collectives_rank.h"
#include "benchmarks/gates.h"
#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, rank_of, "", "gloo, ours or mpi: be one rank of that job. For the benchmark itself");
ABSL_FLAG(std::string, launch, "tools/launch/launch", "the launcher, from the folder in which `bazel run` starts");

namespace dtensor::benchmarks {
using namespace internal;

namespace {

using Times = std::map<int64_t, double>;  // seconds by bytes

// Runs `command` and reads what print_times() wrote; empty, with a line that says why, if it cannot run.
Times times_of_job(const std::string& name, const std::string& command) {
  Times times;
  std::FILE* const output = ::popen((command + " 2>&1").c_str(), "r");
  TORCH_CHECK(output != nullptr, "cannot run ", command);
  std::string other;
  char line[512];
  while (std::fgets(line, sizeof(line), output) != nullptr) {
    long long bytes = 0;
    double seconds = 0;
    const char* const text = std::strncmp(line, "[rank ", 6) == 0 ? std::strchr(line, ']') + 1 : line;
    if (std::sscanf(text, "%lld %lf", &bytes, &seconds) == 2) {
      times[bytes] = seconds;
    } else {
      other += line;
    }
  }
  if (const int status = ::pclose(output); status != 0 || times.size() != sizes_in_bytes().size()) {
    std::printf("%s is left out: exit code %d\n%s\n", name.c_str(), status, other.c_str());
    times.clear();
  }
  return times;
}

// Memory that was released is used again for the next tensor of that size. The buffers of the jobs are there before,
// too; what it costs to map and clear pages is not asked here. Of one thread; nothing is ever given back.
class ReusedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto& blocks = free_[bytes];
    if (blocks.empty()) {
      void* const memory = std::aligned_alloc(c10::gAlignment, (bytes / c10::gAlignment + 1) * c10::gAlignment);
      TORCH_CHECK(memory != nullptr, "no memory for ", bytes, " bytes");
      blocks.push_back(new Block{this, bytes, memory});
    }
    Block* const block = blocks.back();
    blocks.pop_back();
    return {block->memory, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    ReusedMemory* owner;
    size_t bytes;
    void* memory;
  };
  static void release(void* context) {
    auto* const block = static_cast<Block*>(context);
    block->owner->free_[block->bytes].push_back(block);
  }

  absl::flat_hash_map<size_t, std::vector<Block*>> free_;
};

struct Case {
  const char* name;
  // One call of the communicator, and the same by hand, on `inputs` of one size per rank.
  RankPieces (*ours)(Communicator&, const CommCall&, const RankTensors& inputs);
  RankPieces (*by_hand)(const RankTensors& inputs);
};

at::Tensor like(const at::Tensor& t, int64_t times = 1) { return at::empty({t.numel() * times}, t.options()); }

void copy(float* to, const at::Tensor& from, int64_t begin, int64_t numel) {
  std::memcpy(to, from.const_data_ptr<float>() + begin, static_cast<size_t>(numel) * sizeof(float));
}

void add(float* __restrict sum, const float* __restrict a, const float* __restrict b, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) sum[i] = a[i] + b[i];
}

RankPieces pieces(RankTensors tensors) {
  RankPieces list;
  for (at::Tensor& t : tensors) list.push_back({std::move(t)});
  return list;
}

RankPieces halves(const RankTensors& inputs) {
  RankPieces parts;
  for (const at::Tensor& t : inputs)
    parts.push_back({t.narrow(0, 0, t.numel() / 2), t.narrow(0, t.numel() / 2, t.numel() / 2)});
  return parts;
}

const Case kCases[] = {
    {"all_reduce",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) {
       return pieces(comm.all_reduce(call, in, ReduceOp::kSum));
     },
     [](const RankTensors& in) {
       RankTensors out = {like(in[0]), like(in[0])};
       add(out[0].mutable_data_ptr<float>(), in[0].const_data_ptr<float>(), in[1].const_data_ptr<float>(),
           in[0].numel());
       copy(out[1].mutable_data_ptr<float>(), out[0], 0, in[0].numel());
       return pieces(out);
     }},
    {"all_gather",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) { return comm.all_gather(call, in); },
     [](const RankTensors& in) {
       RankPieces out;
       for (int r = 0; r < kRanks; ++r) {
         out.push_back({like(in[0]), like(in[1])});
         for (int s = 0; s < kRanks; ++s) copy(out[r][s].mutable_data_ptr<float>(), in[s], 0, in[s].numel());
       }
       return out;
     }},
    {"reduce_scatter",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) {
       return pieces(comm.reduce_scatter(call, halves(in), ReduceOp::kSum));
     },
     [](const RankTensors& in) {
       const int64_t half = in[0].numel() / 2;
       RankTensors out;
       for (int r = 0; r < kRanks; ++r) {
         out.push_back(at::empty({half}, in[0].options()));
         add(out[r].mutable_data_ptr<float>(), in[0].const_data_ptr<float>() + r * half,
             in[1].const_data_ptr<float>() + r * half, half);
       }
       return pieces(out);
     }},
    {"all_to_all",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) { return comm.all_to_all(call, halves(in)); },
     [](const RankTensors& in) {
       const int64_t half = in[0].numel() / 2;
       RankPieces out;
       for (int r = 0; r < kRanks; ++r) {
         for (int s = 0; s < kRanks; ++s) {
           if (s == 0) out.emplace_back();
           out[r].push_back(at::empty({half}, in[0].options()));
           copy(out[r][s].mutable_data_ptr<float>(), in[s], r * half, half);
         }
       }
       return out;
     }},
};

// Calls of the same size between processes, in seconds by bytes. Empty where a job could not run.
struct Jobs {
  Times gloo, ours_over_gloo, mpi;
};

Jobs run_jobs() {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string launch = absl::GetFlag(FLAGS_launch);
  if (!std::filesystem::exists(launch)) {
    throw tools::UsageError(
        absl::StrCat("--launch ", launch, ": no such file; build //tools:launch and give its path"));
  }
  std::string folder = (std::filesystem::temp_directory_path() / "collectives.XXXXXX").string();
  TORCH_CHECK(::mkdtemp(folder.data()) != nullptr, "cannot make a folder like ", folder);
  const std::string job = absl::StrCat(launch, " -n ", kRanks, " --timeout 120 -- ");
  Jobs jobs;
  jobs.gloo =
      times_of_job("Gloo", absl::StrCat("DTENSOR_BENCHMARK_STORE=", folder, "/store ", job, self, " --rank_of gloo"));
  jobs.ours_over_gloo = times_of_job("ours over Gloo", absl::StrCat(job, self, " --rank_of ours"));
  jobs.mpi = times_of_job("Open MPI",
                          absl::StrCat("OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                                       "timeout 120 mpirun --oversubscribe -n ",
                                       kRanks, " ", self, " --rank_of mpi"));
  std::filesystem::remove_all(folder);
  return jobs;
}

// Checks the documented figures for a case's calls on `bytes`, which took `ours` and `hand` seconds in this process.
// `jobs`: null if these do not run the case.
void check_promises(const Case& c, int64_t bytes, double ours, double hand, const Jobs* jobs, Gates& gates) {
  const auto next_to = [&](const std::string& peer, double theirs) {
    return Comparison{.workload = absl::StrCat(c.name, " of ", bytes, " bytes, 2 ranks"),
                      .peer = peer,
                      .unit = "us",
                      .theirs = theirs * 1e6,
                      .ours = ours * 1e6,
                      .limit = hand * 1e6};
  };
  if (bytes >= 1 << 20) gates.at_most(next_to("loops by hand", hand), ours / hand, 1.3);
  if (jobs == nullptr) return;
  if (!jobs->gloo.empty()) {
    gates.at_least(next_to("Gloo", jobs->gloo.at(bytes)), jobs->gloo.at(bytes) / ours, bytes <= 4 << 10 ? 50 : 4);
  }
  // Open MPI's buffers are there before. A call of ours makes its results, which alone takes as long for small ones.
  if (!jobs->mpi.empty()) {
    const Comparison row = next_to("Open MPI", jobs->mpi.at(bytes));
    const double ratio = jobs->mpi.at(bytes) / ours;
    bytes >= 64 << 10 ? gates.at_least(row, ratio, 1) : gates.note(row, 1 / ratio);
  }
}

// A line of the table.
void measure(const Case& c, int64_t bytes, Communicator& communicator, const CommCall& call, const Jobs* jobs,
             Gates& gates) {
  const RankTensors inputs = {at::rand({bytes / 4}), at::rand({bytes / 4})};
  // By turns, so that a slow moment hits both.
  double ours = 1, hand = 1;
  for (int turn = 0; turn < 3; ++turn) {
    ours = std::min(ours, time_of([&] { c.ours(communicator, call, inputs); }));
    hand = std::min(hand, time_of([&] { c.by_hand(inputs); }));
  }
  const auto column = [&](Times Jobs::*job) {
    return jobs != nullptr && !(jobs->*job).empty() ? absl::StrFormat("%.1f", (jobs->*job).at(bytes) * 1e6)
                                                    : std::string("-");
  };
  std::printf("%-14s %10lld %12.1f %10.1f %8.2f %12s %14s %10s\n", c.name, static_cast<long long>(bytes), ours * 1e6,
              hand * 1e6, ours / hand, column(&Jobs::gloo).c_str(), column(&Jobs::ours_over_gloo).c_str(),
              column(&Jobs::mpi).c_str());
  check_promises(c, bytes, ours, hand, jobs, gates);
}

int run() {
  const std::string& rank_of = absl::GetFlag(FLAGS_rank_of);
  at::set_num_threads(1);
  if (rank_of == "gloo") return run_gloo_rank();
  if (rank_of == "ours") return run_ours_rank();
  if (rank_of == "mpi") return run_mpi_rank();
  if (!rank_of.empty()) throw tools::UsageError(absl::StrCat("--rank_of ", rank_of, ": give gloo, ours or mpi"));
  const Jobs jobs = run_jobs();

  static auto* const memory = new ReusedMemory();
  c10::SetCPUAllocator(memory, /*priority=*/1);
  const DeviceMesh mesh(World::local(kRanks), {kRanks}, {"x"});
  CommCall call;
  call.group = &mesh.get_group(0);
  call.ranks = mesh.local_ranks();
  Communicator& communicator = mesh.world().communicator();
  std::printf(
      "Microseconds of one call, float32, 2 ranks: in one process on one thread, by hand, and with a process per "
      "rank.\n");
  std::printf("%-14s %10s %12s %10s %8s %12s %14s %10s\n", "", "bytes", "in process", "by hand", "ratio", "Gloo",
              "ours over Gloo", "Open MPI");
  Gates gates;
  if (jobs.gloo.empty()) gates.skip("all_reduce next to Gloo", "its job did not run");
  if (jobs.mpi.empty()) gates.skip("all_reduce next to Open MPI", "its job did not run");
  for (const Case& c : kCases) {
    const bool in_jobs = &c == kCases;  // the jobs do all_reduce alone
    for (int64_t bytes : sizes_in_bytes()) {
      if (bytes == 4 && !in_jobs) continue;  // has no halves
      measure(c, bytes, communicator, call, in_jobs ? &jobs : nullptr, gates);
    }
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("collectives",
                                     "Collectives in one process against jobs of processes and loops by hand.", argc,
                                     argv, dtensor::benchmarks::run);
}
