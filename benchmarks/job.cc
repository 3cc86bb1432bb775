#include "benchmarks/job.h"

#include <c10/util/Exception.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/measure.h"
#include "processes/launch/launch_env.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, launch, "tools/launch/launch", "the launcher, from the folder in which `bazel run` starts");
ABSL_FLAG(std::string, job_folder, "", "of the job that this process is a rank of. For the benchmark itself");

namespace dtensor::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr int kSeconds = 90;  // that a job may take

bool has_open_mpi() { return std::system("mpirun --version 2> /dev/null | grep -q 'Open MPI'") == 0; }

std::string starter(const Job& job) {
  // Not bound to cores: a rank has threads of Gloo, too.
  if (job.mpi && has_open_mpi()) {
    return absl::StrCat("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout --foreground ", kSeconds,
                        " mpirun --oversubscribe --bind-to none -n ", job.ranks);
  }
  const std::string launcher = absl::GetFlag(FLAGS_launch);
  if (!std::filesystem::exists(launcher)) {
    throw tools::UsageError(
        absl::StrCat("--launch ", launcher, ": no such file; build //tools/launch and give its path"));
  }
  return absl::StrCat("'", launcher, "' -n ", job.ranks, " --timeout ", kSeconds, " --");
}

std::string figures_file(const std::string& folder) { return folder + "/figures"; }

Figures read_figures(const std::string& path) {
  Figures figures;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    figures[row.at("workload")] = row.at("seconds").get<Times>();
  }
  return figures;
}

}  // namespace

double seconds_of(const Figures& figures, const std::string& workload, const std::string& way) {
  const auto times = figures.find(workload);
  if (times == figures.end()) return NAN;
  const auto time = times->second.find(way);
  return time == times->second.end() ? NAN : time->second;
}

Figures run_job(const Job& job) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe"), start = starter(job);
  std::string folder = (std::filesystem::temp_directory_path() / "benchmark.XXXXXX").string();
  TORCH_CHECK(::mkdtemp(folder.data()) != nullptr, "cannot make a folder like ", folder);
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(folder); };
  const std::string output = folder + "/output";
  const std::string command =
      absl::StrCat(start, " '", self, "' ", job.flags, " --job_folder='", folder, "' > '", output, "' 2>&1");
  const int status = std::system(command.c_str());
  if (status != 0) {
    std::ifstream text(output);
    for (std::string line; std::getline(text, line);) std::printf("  %s\n", line.c_str());
  }
  TORCH_CHECK(status == 0, "a job of ", job.ranks, " ranks failed with exit code ", WEXITSTATUS(status), ": ", command);
  return read_figures(figures_file(folder));
}

int rank_of_job() { return static_cast<int>(find_job_place({}).rank); }

std::string store_of_job() { return absl::GetFlag(FLAGS_job_folder) + "/store"; }

void time_ways(const std::string& workload, const std::vector<Way>& ways, int turns, int calls) {
  std::vector<std::vector<double>> seconds(ways.size());
  for (int turn = -1; turn < turns; ++turn) {
    for (size_t w = 0; w < ways.size(); ++w) {
      for (int i = -1; i < calls; ++i) {
        const auto begin = Clock::now();
        ways[w].call();
        if (turn >= 0 && i >= 0) seconds[w].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    }
  }
  if (rank_of_job() != 0) return;
  Times times;
  for (size_t w = 0; w < ways.size(); ++w) times[ways[w].name] = median(seconds[w]);
  std::ofstream(figures_file(absl::GetFlag(FLAGS_job_folder)), std::ios::app)
      << Json{{"workload", workload}, {"seconds", times}} << std::endl;
}

}  // namespace dtensor::benchmarks
