#include "processes/launch/launch_env.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "processes/job/error_file.h"
#include "processes/launch/choose_device.h"
#include "processes/launch/launch_variables.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

using Environment = std::map<std::string, std::string>;

Variables of(Environment environment) {
  return [environment = std::move(environment)](const char* name) -> std::optional<std::string> {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
}

// "torchrun 2/4 local 0/2 at tcp://10.0.0.7:29500 (agent's) run job7 restart 1"
std::string summary(const JobPlace& p) {
  std::ostringstream text;
  text << to_string(p.launcher) << " " << p.rank << "/" << p.world_size << " local " << p.local_rank << "/"
       << p.local_world_size;
  if (!p.store.empty()) text << " at " << p.store;
  if (p.store_exists) text << " (agent's)";
  if (p.store_derived) text << " (derived)";
  if (!p.run_id.empty()) text << " run " << p.run_id;
  if (p.restart_count > 0) text << " restart " << p.restart_count;
  return text.str();
}

std::string found(Environment environment, const LaunchOptions& options = {}) {
  return summary(find_job_place(options, of(std::move(environment))));
}

std::string error(Environment environment, const LaunchOptions& options = {}) {
  try {
    return "no error: " + found(std::move(environment), options);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
}

Environment with(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    if (value == "(unset)") {
      base.erase(name);
    } else {
      base[name] = value;
    }
  }
  return base;
}

const Environment kTorchrun = {{"RANK", "2"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.7"},
                               {"MASTER_PORT", "29500"}};
const Environment kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "3"},
    {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[fd00::2]:43370"},
    {"PMIX_NAMESPACE", "1531576321"},
    {"TMPDIR", "/scratch/"}};
const Environment kMpich = {{"PMI_RANK", "1"},
                            {"PMI_SIZE", "2"},
                            {"MPI_LOCALRANKID", "1"},
                            {"MPI_LOCALNRANKS", "2"},
                            {kLauncherProcess, "71 8"}};
const Environment kSlurm = {
    {"SLURM_PROCID", "5"},      {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_NTASKS", "9"},
    {"SLURM_LOCALID", "1"},     {"SLURM_NODEID", "2"},         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
    {"SLURM_JOB_ID", "123456"}, {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "node[003-005,9],x"}};

TEST_CASE("launch_env: the variables of each launcher") {
  CHECK(found({}) == "none 0/1 local 0/1");
  CHECK(found({{"MASTER_ADDR", "10.0.0.7"}, {"DTENSOR_STORE", "file:///a"}}) == "none 0/1 local 0/1");
  CHECK(found(kTorchrun) == "torchrun 2/4 local 0/2 at tcp://10.0.0.7:29500");
  CHECK(found(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "3"},
                               {"TORCHELASTIC_RUN_ID", "job7"}})) ==
        "torchrun 2/4 local 0/2 at tcp://10.0.0.7:29500 (agent's) run job7 restart 3");
  CHECK(found(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})) ==
        "torchrun 2/4 local 0/2 at tcp://10.0.0.7:29500");
  CHECK(found(with(kTorchrun, {{"MASTER_ADDR", "fd00::7"}})) == "torchrun 2/4 local 0/2 at tcp://[fd00::7]:29500");
  CHECK(found({{"RANK", "0"}, {"WORLD_SIZE", "1"}}) == "torchrun 0/1 local 0/1");
  // Started by hand: no information which ranks share a host.
  CHECK(found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}) ==
        "torchrun 1/2 local -1/-1 at tcp://a:1");
  // //tools:launch; the agent's store is not the one that is used.
  CHECK(found(with(kTorchrun, {{"DTENSOR_STORE", "file:///run/x"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}})) ==
        "torchrun 2/4 local 0/2 at file:///run/x");
  CHECK(found(kOpenMpi) == "Open MPI 3/4 local 1/2 at tcp://10.96.0.1:62624 run 1531576321");
  CHECK(found(with(kOpenMpi, {{"OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp6://[fd00::2,fd00::3]:43370"}})) ==
        "Open MPI 3/4 local 1/2 at tcp://[fd00::2]:62624 run 1531576321");
  CHECK(found(with(kOpenMpi, {{"MASTER_ADDR", "b"}, {"MASTER_PORT", "5"}})) ==
        "Open MPI 3/4 local 1/2 at tcp://b:5 run 1531576321");
  CHECK(found(kSlurm) == "Slurm 5/7 local 1/2 at tcp://node003:62016 run 123456.0");
  CHECK(found(with(kSlurm, {{"SLURM_NODEID", "3"}, {"SLURM_LOCALID", "0"}})) ==
        "Slurm 5/7 local 0/1 at tcp://node003:62016 run 123456.0");
  CHECK_THAT(found(with(kSlurm, {{"SLURM_NODEID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x-1),3(x2)"}})),
             Contains("local 1/-1 "));  // no such list of hosts
  CHECK(found(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "(unset)"}, {"SLURM_STEP_TASKS_PER_NODE", "many"}})) ==
        "Slurm 5/9 local 1/-1 at tcp://node003:62016 run 123456.0");
}

TEST_CASE("launch_env: Slurm's first host") {
  for (const auto& [list, host] : Environment{{"a", "a"},
                                              {"a,b", "a"},
                                              {"node[003-005,9],x", "node003"},
                                              {"x,node[1-2]", "x"},
                                              {"n[7]", "n7"},
                                              {"n[7,9]", "n7"},
                                              {"rack[1-2]n[01-04]", "rack1n01"},
                                              {"gpu-[10-12]-ib.cluster", "gpu-10-ib.cluster"}}) {
    CHECK(find_job_place({}, of(with(kSlurm, {{"SLURM_STEP_NODELIST", list}}))).store == "tcp://" + host + ":62016");
  }
  for (const char* list : {"node[", "node[3", "node[]", "node[x-y]", ",a", "a]", "[-3]"}) {
    CHECK_THAT(
        error(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})),
        Contains(std::string("SLURM_STEP_NODELIST is '") + list + "' (launcher: Slurm); expected a list of hosts"));
  }
}

TEST_CASE("launch_env: ranks of one host meet in a file of their own job") {
  const auto one_host = [](const Environment& changes) {
    return find_job_place({}, of(with(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), changes)));
  };
  const JobPlace mpi = one_host({});
  CHECK(mpi.store_derived);
  CHECK_THAT(mpi.store, Catch::StartsWith("file:///scratch/dtensor-" + std::to_string(::geteuid()) + "/openmpi-"));
  // Equal for all ranks, different for another mpirun.
  CHECK(one_host({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}).store == mpi.store);
  CHECK(one_host({{"OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1:34912"}}).store != mpi.store);
  CHECK(one_host({{"PMIX_NAMESPACE", "1531576322"}}).store != mpi.store);
  // Open MPI 5 has no hnp uri.
  CHECK(one_host({{"OMPI_MCA_orte_hnp_uri", "(unset)"}, {"PMIX_SERVER_URI41", "prterun-a-1@0.0;tcp4://127.0.0.1:1"}})
            .store_derived);
  CHECK_THAT(one_host({{"TMPDIR", "relative"}}).store, Catch::StartsWith("file:///tmp/dtensor-"));
  CHECK_FALSE(one_host({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}).store_derived);
  CHECK(one_host({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
            .store.empty());  // alone

  const JobPlace mpich = find_job_place({}, of(kMpich));
  CHECK(mpich.launcher == Launcher::kMpich);
  CHECK(mpich.store_derived);
  CHECK(find_job_place({}, of(with(kMpich, {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}))).store == mpich.store);
  CHECK(find_job_place({}, of(with(kMpich, {{kLauncherProcess, "71 9"}}))).store != mpich.store);
}

TEST_CASE("launch_env: precedence of launchers") {
  Environment all;
  for (const Environment* e : {&kTorchrun, &kOpenMpi, &kMpich, &kSlurm}) all.insert(e->begin(), e->end());
  LaunchOptions options;
  options.rank = 6;
  options.world_size = 8;
  CHECK(found(all, options) ==
        "LaunchOptions 6/8 local 0/-1 at tcp://10.0.0.7:29500");  // the rest is the environment's
  options.local_rank = 2;
  options.store = "tcp://[::1]:9";
  CHECK(found(all, options) == "LaunchOptions 6/8 local 2/-1 at tcp://[::1]:9");
  LaunchOptions store_only;
  store_only.store = "file:///s";
  CHECK(found(with(all, {{"DTENSOR_STORE", "file:///t"}}), store_only) == "torchrun 2/4 local 0/2 at file:///s");
  CHECK(find_job_place({}, of(all)).launcher == Launcher::kTorchrun);
  all = with(all, {{"RANK", ""}, {"WORLD_SIZE", ""}});  // empty is missing
  CHECK(find_job_place({}, of(all)).launcher == Launcher::kOpenMpi);
  all = with(all, {{"OMPI_COMM_WORLD_RANK", "(unset)"}, {"OMPI_COMM_WORLD_SIZE", "(unset)"}});
  CHECK(find_job_place({}, of(all)).launcher == Launcher::kMpich);
  // srun --mpi=pmi2
  CHECK(find_job_place({}, of(with(all, {{"MPI_LOCALRANKID", "(unset)"}}))).launcher == Launcher::kSlurm);
  all = with(all, {{"PMI_RANK", "(unset)"}, {"PMI_SIZE", "(unset)"}});
  CHECK(find_job_place({}, of(all)).launcher == Launcher::kSlurm);
  // A batch script, which is no step.
  all = with(all, {{"SLURM_STEP_ID", "(unset)"}, {"SLURM_STEP_NODELIST", "(unset)"}});
  CHECK(find_job_place({}, of(all)).launcher == Launcher::kNone);
  // Also where the place is not known.
  CHECK(find_launcher({}, of({{"RANK", "x"}})) == Launcher::kTorchrun);
  CHECK(find_launcher({}, of({})) == Launcher::kNone);
}

TEST_CASE("launch_env: a missing or bad variable is named with value and launcher") {
  struct Case {
    Environment environment;
    std::vector<std::string> parts;
  };
  const std::string both = "Every process needs the number of processes and its own rank";
  const std::vector<Case> cases = {
      {with(kTorchrun, {{"RANK", "(unset)"}}),
       {"World::from_env: RANK is not set (launcher: torchrun, or another", both}},
      {with(kTorchrun, {{"WORLD_SIZE", ""}}), {"WORLD_SIZE is not set (launcher: torchrun", both}},
      {with(kTorchrun, {{"RANK", "two"}}),
       {"RANK is 'two' (launcher: torchrun", "expected a rank of 4 processes, from 0 to 3"}},
      {with(kTorchrun, {{"RANK", "4"}}), {"RANK is '4'", "from 0 to 3"}},
      {with(kTorchrun, {{"RANK", "-1"}}), {"RANK is '-1'"}},
      {with(kTorchrun, {{"RANK", "1 "}}), {"RANK is '1 '"}},
      {with(kTorchrun, {{"RANK", "99999999999999999999"}}), {"RANK is '99999999999999999999'"}},
      {with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE is '0'", "expected the number of processes, from 1"}},
      {with(kTorchrun, {{"WORLD_SIZE", "0x4"}}), {"WORLD_SIZE is '0x4'"}},
      {with(kTorchrun, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK is '2'", "from 0 to 1"}},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE is '5'", "from 1 to 4"}},
      {with(kTorchrun, {{"MASTER_ADDR", "(unset)"}}),
       {"MASTER_ADDR is not set", "MASTER_PORT is '29500'", "Set MASTER_ADDR and"}},
      {with(kTorchrun, {{"MASTER_PORT", "(unset)"}}), {"MASTER_PORT is not set", "MASTER_ADDR is '10.0.0.7'"}},
      {with(kTorchrun, {{"MASTER_ADDR", "(unset)"}, {"MASTER_PORT", "(unset)"}}),
       {"MASTER_ADDR is not set", "DTENSOR_STORE=file:"}},
      {with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT is '70000'", "expected a port, from 1 to 65535"}},
      {with(kTorchrun, {{"MASTER_PORT", "http"}}), {"MASTER_PORT is 'http'"}},
      {with(kTorchrun, {{"MASTER_ADDR", "tcp://a"}}), {"MASTER_ADDR is 'tcp://a'", "such as 10.0.0.7"}},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "yes"}}),
       {"TORCHELASTIC_USE_AGENT_STORE is 'yes'", "True or False"}},
      {with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-"}}), {"TORCHELASTIC_RESTART_COUNT is '-'"}},
      {with(kTorchrun, {{"DTENSOR_STORE", "10.0.0.7:29500"}}),
       {"DTENSOR_STORE is '10.0.0.7:29500'", "neither file:// nor tcp://"}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "(unset)"}}),
       {"OMPI_COMM_WORLD_RANK is not set (launcher: Open MPI)", both}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "x"}}), {"OMPI_COMM_WORLD_SIZE is 'x' (launcher: Open MPI)"}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "7"}}), {"OMPI_COMM_WORLD_LOCAL_RANK is '7'"}},
      {with(kOpenMpi, {{"OMPI_MCA_orte_hnp_uri", "(unset)"}}),
       {"OMPI_MCA_orte_hnp_uri is not set", "Set MASTER_ADDR and"}},
      {with(kOpenMpi, {{"OMPI_MCA_orte_hnp_uri", "host:1"}}),
       {"OMPI_MCA_orte_hnp_uri is 'host:1'", "expected JOB.0;tcp://"}},
      {with(kOpenMpi, {{"OMPI_MCA_orte_hnp_uri", "7.0;tcp:"}}), {"OMPI_MCA_orte_hnp_uri is '7.0;tcp:'"}},
      {with(kMpich, {{"PMI_SIZE", "(unset)"}}), {"PMI_SIZE is not set (launcher: MPICH)", both}},
      {with(kMpich, {{"PMI_RANK", "2"}}), {"PMI_RANK is '2'", "from 0 to 1"}},
      {with(kMpich, {{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}}),
       {"MASTER_ADDR is not set", "on several hosts", "Set MASTER_ADDR"}},
      {with(kMpich, {{"MPI_LOCALNRANKS", "(unset)"}}), {"MASTER_ADDR is not set", "MPI_LOCALNRANKS is not set either"}},
      {with(kMpich, {{kLauncherProcess, "(unset)"}}), {"MASTER_ADDR is not set", "cannot be found"}},
      {with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "(unset)"}, {"SLURM_NTASKS", "(unset)"}}),
       {"SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set (launcher: Slurm)"}},
      {with(kSlurm, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID is '7'", "from 0 to 6"}},
      {with(kSlurm, {{"SLURM_JOB_ID", "(unset)"}}), {"SLURM_JOB_ID is not set"}},
      {with(kSlurm, {{"SLURM_JOB_ID", "12_3"}}), {"SLURM_JOB_ID is '12_3'"}},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "(unset)"}}), {"SLURM_STEP_NODELIST is not set", "Set MASTER_ADDR and"}},
  };
  for (const Case& c : cases) {
    for (const std::string& part : c.parts) CHECK_THAT(error(c.environment), Contains(part));
  }
}

TEST_CASE("launch_env: options") {
  const auto options = [](std::optional<int64_t> rank, std::optional<int64_t> size) {
    LaunchOptions o;
    o.rank = rank;
    o.world_size = size;
    o.store = "file:///s";
    return o;
  };
  CHECK_THAT(error({}, options(1, std::nullopt)), Contains("LaunchOptions::rank is 1, but world_size is not given"));
  CHECK_THAT(error({}, options(std::nullopt, 2)), Contains("LaunchOptions::world_size is 2, but rank is not given"));
  CHECK_THAT(error({}, options(2, 2)), Contains("LaunchOptions::rank is 2; expected a rank of the world, from 0 to 1"));
  CHECK_THAT(error({}, options(-1, 2)), Contains("LaunchOptions::rank is -1"));
  CHECK_THAT(error({}, options(0, 0)), Contains("LaunchOptions::world_size is 0"));
  LaunchOptions local = options(0, 2);
  local.local_rank = -2;
  CHECK_THAT(error({}, local), Contains("LaunchOptions::local_rank is -2"));
  LaunchOptions bad_store = options(0, 2);
  for (const char* url :
       {"/tmp/x", "file://relative/x", "file:///", "file://", "tcp://", "tcp://host", "tcp://host:", "tcp://:1",
        "tcp://host:0", "tcp://host:65536", "tcp://host:1x", "tcp://::1:5", "tcp://[]:5", "tcp://a/b:5"}) {
    bad_store.store = url;
    CHECK_THAT(error({}, bad_store), Contains(std::string("LaunchOptions::store is '") + url + "'") &&
                                         Contains("expected file:///PATH or tcp://HOST:PORT"));
  }
}

TEST_CASE("launch_env: the deadline") {
  using std::chrono::milliseconds;
  CHECK(find_timeout({}, of({})) == milliseconds(600000));
  CHECK(find_timeout({}, of({{"DTENSOR_TIMEOUT", "2.5"}})) == milliseconds(2500));
  CHECK(find_timeout({}, of({{"DTENSOR_TIMEOUT", ""}})) == milliseconds(600000));
  LaunchOptions options;
  options.timeout = milliseconds(7);
  CHECK(find_timeout(options, of({{"DTENSOR_TIMEOUT", "2.5"}})) == milliseconds(7));
  CHECK(find_job_place(options, of({})).timeout == milliseconds(7));
  for (const char* text : {"0", "-1", "abc", "5s", "inf", "nan", "1e30", "0.0001"}) {
    CHECK_THAT(error({{"DTENSOR_TIMEOUT", text}}),
               Contains(std::string("DTENSOR_TIMEOUT is '") + text + "'; expected seconds"));
  }
  options.timeout = milliseconds(-1);
  CHECK_THAT(error({}, options), Contains("LaunchOptions::timeout is -1 ms"));
  options.timeout = milliseconds::max();  // now and that is a time long ago
  CHECK_THAT(error({}, options), Contains("expected at most 10000000 s"));
  CHECK_THROWS_WITH(find_job_place({}, Variables()), Contains("`variables` is an empty function"));
}

TEST_CASE("choose_device") {
  const auto chosen = [](const std::string& backend, const std::string& device, int64_t cuda_devices,
                         int64_t local_rank = 1) {
    LaunchOptions options;
    options.backend = backend;
    options.device = device;
    JobPlace place;
    place.local_rank = local_rank;
    try {
      const DeviceChoice choice = choose_device(options, place, cuda_devices);
      return choice.backend + " " + choice.device.str();
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
  };
  CHECK(chosen("", "", 0) == "gloo cpu");
  CHECK(chosen("", "", 2) == "nccl cuda:1");
  CHECK(chosen("", "cpu", 2) == "gloo cpu");
  CHECK(chosen("gloo", "", 2) == "gloo cpu");
  CHECK(chosen("gloo", "cpu", 2) == "gloo cpu");
  CHECK(chosen("nccl", "", 2) == "nccl cuda:1");
  CHECK(chosen("", "cuda", 2) == "nccl cuda:1");
  CHECK(chosen("nccl", "cuda:0", 1) == "nccl cuda:0");
  CHECK(chosen("", "cuda:0", 1, -1) == "nccl cuda:0");
  CHECK_THAT(chosen("mpi", "", 0), Contains("LaunchOptions::backend is 'mpi'; expected gloo"));
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:999", "cpu:0", "xpu"}) {
    CHECK_THAT(chosen("", device, 4),
               Contains(std::string("LaunchOptions::device is '") + device + "'; expected cpu, cuda"));
  }
  CHECK_THAT(chosen("gloo", "cuda", 1), Contains("LaunchOptions::backend is gloo, but LaunchOptions::device is cuda"));
  CHECK_THAT(chosen("nccl", "cpu", 1), Contains("LaunchOptions::backend is nccl, but LaunchOptions::device is cpu"));
  CHECK_THAT(chosen("nccl", "", 0), Contains("sees no CUDA device") && Contains("The device cpu would work"));
  CHECK_THAT(chosen("", "", 1),
             Contains("is to use cuda:1, after its local rank, but sees 1 CUDA device. Start at most"));
  CHECK_THAT(chosen("", "cuda:3", 2), Contains("is to use cuda:3, but sees 2 CUDA devices"));
  CHECK_THAT(chosen("", "cuda", 2, -1), Contains("sets no local rank") && Contains("set LOCAL_RANK"));
}

TEST_CASE("launch_env: the process that started the ranks") {
  const auto variables = process_environment();
  const auto process = variables(kLauncherProcess);
  REQUIRE(process.has_value());
  CHECK(std::stoll(*process) == ::getppid());
  CHECK(variables(kLauncherProcess) == process);
  ::setenv("DTENSOR_TEST_VARIABLE", "v", 1);
  CHECK(variables("DTENSOR_TEST_VARIABLE") == "v");
  ::unsetenv("DTENSOR_TEST_VARIABLE");
  CHECK(variables("DTENSOR_TEST_VARIABLE") == std::nullopt);
}

TEST_CASE("error_file: the format that torchrun reads") {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/error.json";
  write_error_file(path, "first");
  write_error_file(path, "line 1\n\"line 2\" \xff");  // 0xff is no UTF-8
  std::ifstream in(path);
  const auto file = nlohmann::json::parse(in);
  CHECK_THAT(file["message"]["message"].get<std::string>(), Contains("line 1\n\"line 2\""));
  CHECK(file["message"]["extraInfo"]["py_callstack"] == "");
  CHECK(std::stoll(file["message"]["extraInfo"]["timestamp"].get<std::string>()) > 1600000000);
  std::remove(path.c_str());
  write_error_file("", "not requested");
  write_error_file(path + "/no/such/folder", "cannot be written");
}

}  // namespace
}  // namespace dtensor
