#include "processes/launch/launch_env.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "processes/launch/launch_store.h"
#include "processes/launch/launch_variables.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr int64_t kMaxRanks = std::numeric_limits<int32_t>::max();
constexpr std::chrono::seconds kLongest(10000000);  // wait

// A launcher's names of the four numbers; of those separated by '|' the first that is set counts.
struct Names {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kNames[] = {
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS|SLURM_NTASKS", "SLURM_LOCALID", ""},
};

bool any_set(const Variables& variables, std::initializer_list<const char*> names) {
  const LaunchVariables read(variables, Launcher::kNone);
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return read.text(name).has_value(); });
}

// Entry `node` of Slurm's "2(x3),1": -1 if the text has another form.
int64_t tasks_on_node(const std::string& list, int64_t node) {
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(entry, absl::MaxSplits("(x", 1));
    int64_t tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(parts.first, &tasks) || tasks < 1) return -1;
    if (!parts.second.empty() && !absl::SimpleAtoi(parts.second.substr(0, parts.second.size() - 1), &nodes)) return -1;
    if (nodes < 1) return -1;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return -1;
}

std::string run_id(const LaunchVariables& read, const JobPlace& place) {
  switch (place.launcher) {
    case Launcher::kOpenMpi:
      return read.text_or("PMIX_NAMESPACE", "");
    case Launcher::kSlurm:
      return absl::StrCat(read.text_or("SLURM_JOB_ID", ""), ".", read.text_or("SLURM_STEP_ID", ""));
    default:
      return read.text_or("TORCHELASTIC_RUN_ID", "");
  }
}

}  // namespace

Launcher find_launcher(const LaunchOptions& options, const Variables& v) {
  if (options.rank || options.world_size) return Launcher::kOptions;
  if (any_set(v, {"RANK", "WORLD_SIZE"})) return Launcher::kTorchrun;
  if (any_set(v, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return Launcher::kOpenMpi;
  // A batch script that sbatch runs has SLURM_PROCID, too, but is no step: it is alone.
  const bool step =
      any_set(v, {"SLURM_PROCID"}) && any_set(v, {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"});
  // srun --mpi=pmi2 sets PMI_RANK as well, and nothing about hosts.
  if (any_set(v, {"PMI_RANK", "PMI_SIZE"}) && !(step && !any_set(v, {"MPI_LOCALRANKID"}))) return Launcher::kMpich;
  return step ? Launcher::kSlurm : Launcher::kNone;
}

std::chrono::milliseconds find_timeout(const LaunchOptions& options, const Variables& variables) {
  TORCH_CHECK(options.timeout.count() >= 0, kFromEnv, "LaunchOptions::timeout is ", options.timeout.count(),
              " ms; expected a positive time, or 0 for the default");
  TORCH_CHECK(options.timeout <= kLongest, kFromEnv, "LaunchOptions::timeout is ", options.timeout.count(),
              " ms; expected at most ", kLongest.count(), " s, as clocks have to be able to add it");
  if (options.timeout.count() > 0) return options.timeout;
  const LaunchVariables read(variables, Launcher::kNone);
  const auto text = read.text("DTENSOR_TIMEOUT");
  if (!text) return std::chrono::minutes(10);
  double seconds = 0;
  if (!absl::SimpleAtod(*text, &seconds) || !std::isfinite(seconds) || seconds < 0.001 ||
      seconds > static_cast<double>(kLongest.count())) {
    read.bad("DTENSOR_TIMEOUT", *text, "seconds, such as 600 or 2.5, from 0.001 to 10000000");
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

JobPlace find_job_place(const LaunchOptions& options, const Variables& variables) {
  JobPlace place;
  place.launcher = find_launcher(options, variables);
  place.timeout = find_timeout(options, variables);
  const LaunchVariables read(variables, place.launcher);
  place.error_file = read.text_or("TORCHELASTIC_ERROR_FILE", "");
  const auto restarts = read.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxRanks, "how often torchrun restarted the job");
  place.restart_count = restarts.value_or(0);

  if (place.launcher == Launcher::kOptions) {
    TORCH_CHECK(options.rank && options.world_size, kFromEnv, "LaunchOptions::", options.rank ? "rank" : "world_size",
                " is ", options.rank ? *options.rank : *options.world_size, ", but ",
                options.rank ? "world_size" : "rank",
                " is not given; give both, or neither to take them from the launcher");
    place.rank = *options.rank;
    place.world_size = *options.world_size;
    TORCH_CHECK(place.world_size >= 1 && place.world_size <= kMaxRanks, kFromEnv, "LaunchOptions::world_size is ",
                place.world_size, "; expected from 1 to ", kMaxRanks);
    TORCH_CHECK(place.rank >= 0 && place.rank < place.world_size, kFromEnv, "LaunchOptions::rank is ", place.rank,
                "; expected a rank of the world, from 0 to ", place.world_size - 1);
    place.local_rank = read.number("LOCAL_RANK", 0, kMaxRanks, "the rank among those of this host").value_or(-1);
  }
  for (const Names& names : kNames) {
    if (names.launcher != place.launcher) continue;
    const char* both =
        "Every process needs the number of processes and its own rank; without any of the two it runs alone";
    const auto size = read.number(names.size, 1, kMaxRanks, "the number of processes");
    if (!size) read.missing(absl::StrReplaceAll(names.size, {{"|", " or "}}), both);
    place.world_size = *size;
    const auto rank = read.number(names.rank, 0, *size - 1, absl::StrCat("a rank of ", *size, " processes"));
    if (!rank) read.missing(names.rank, both);
    place.rank = *rank;
    if (const auto n = read.number(names.local_size, 1, place.world_size, "the number of processes on this host")) {
      place.local_world_size = *n;
    } else if (place.launcher == Launcher::kSlurm) {
      const int64_t node =
          read.number("SLURM_NODEID", 0, kMaxRanks, "the number of this host among the step's").value_or(0);
      place.local_world_size = tasks_on_node(read.text_or("SLURM_STEP_TASKS_PER_NODE", ""), node);
    }
    const int64_t most = (place.local_world_size > 0 ? place.local_world_size : place.world_size) - 1;
    place.local_rank = read.number(names.local_rank, 0, most, "the rank among those of this host").value_or(-1);
  }
  if (options.local_rank) {
    TORCH_CHECK(*options.local_rank >= 0, kFromEnv, "LaunchOptions::local_rank is ", *options.local_rank,
                "; expected at least 0");
    place.local_rank = *options.local_rank;
  }
  if (place.world_size == 1) {
    place.local_world_size = 1;
    place.local_rank = std::max<int64_t>(place.local_rank, 0);
  }
  if (place.launcher != Launcher::kNone) {
    find_store(options, read, place);
    place.run_id = run_id(read, place);
  }
  return place;
}

}  // namespace dtensor
