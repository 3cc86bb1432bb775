#include "processes/launch/launch_store.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor::internal {
namespace {

constexpr char kSetMaster[] =
    "Set MASTER_ADDR and MASTER_PORT to an address of rank 0's host and a free port there, for all ranks; or, for "
    "processes on one host, DTENSOR_STORE=file:///PATH, a file that does not exist yet";

// The first host of "node[003-005,9],x", as `scontrol show hostnames` would print it.
std::string first_host(const LaunchVariables& read, const char* name, const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = list.find(']', i);
    const size_t end = std::min(list.find_first_of(",-]", i), close);
    const bool digits =
        close != std::string::npos && end > i + 1 &&
        std::all_of(list.begin() + i + 1, list.begin() + end, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) read.bad(name, list, "a list of hosts such as node[003-005,9],x");
    host.append(list, i + 1, end - i - 1);
    i = close;
  }
  if (host.empty() || absl::StrContains(host, ']')) read.bad(name, list, "a list of hosts such as node[003-005,9],x");
  return host;
}

std::string tcp(const std::string& host, int64_t port) {
  return absl::StrContains(host, ':') ? absl::StrCat("tcp://[", host, "]:", port)
                                      : absl::StrCat("tcp://", host, ":", port);
}

// A port of the last 4096 that depends on the job, as JAX chooses it.
int64_t port_of(uint64_t job) { return static_cast<int64_t>(job % 4096 + 61440); }

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

// A file that only the processes of this job on this host use, as only they have `job`.
std::string derived_file(const LaunchVariables& read, const std::string& prefix, const std::string& job) {
  std::string folder = read.text_or("TMPDIR", "/tmp");
  if (folder[0] != '/') folder = "/tmp";
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return absl::StrCat("file://", folder, "/dtensor-", ::geteuid(), "/", prefix, "-",
                      absl::Hex(fnv1a(job), absl::kZeroPad16));
}

void derive_open_mpi(const LaunchVariables& read, JobPlace& place) {
  const auto uri = read.text("OMPI_MCA_orte_hnp_uri");
  std::string job = uri.value_or("");
  for (const char* name :
       {"PMIX_NAMESPACE", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI2"}) {
    absl::StrAppend(&job, "|", read.text_or(name, ""));
  }
  const bool known = job.find_first_not_of('|') != std::string::npos;
  if (place.local_world_size == place.world_size && known) {
    place.store = derived_file(read, "openmpi", job);
    place.store_source = "variables of mpirun";
    place.store_derived = true;
    return;
  }
  if (!uri) read.missing("OMPI_MCA_orte_hnp_uri", absl::StrCat("It holds the address of mpirun. ", kSetMaster));
  // "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[fe80::1,2620::2]:43370"
  const char* expected = "JOB.0;tcp://ADDRESS,...:PORT, as mpirun sets it. Or set MASTER_ADDR and MASTER_PORT";
  const std::string job_id = uri->substr(0, uri->find('.'));
  uint64_t number = 0;
  if (!absl::SimpleAtoi(job_id, &number)) read.bad("OMPI_MCA_orte_hnp_uri", *uri, expected);
  std::string host;
  if (const size_t at = uri->find("tcp://"); at != std::string::npos) {
    host = uri->substr(at + 6, uri->find_first_of(",:", at + 6) - at - 6);
  } else if (const size_t at6 = uri->find("tcp6://["); at6 != std::string::npos) {
    host = uri->substr(at6 + 8, uri->find_first_of(",]", at6 + 8) - at6 - 8);
  }
  if (host.empty()) read.bad("OMPI_MCA_orte_hnp_uri", *uri, expected);
  place.store_source = "OMPI_MCA_orte_hnp_uri";
  place.store = tcp(host, port_of(number / 4096));  // job ids are multiples of 4096, plus the number of a spawn
}

void derive_mpich(const LaunchVariables& read, JobPlace& place) {
  if (place.local_world_size != place.world_size) {
    const bool unknown = place.local_world_size < 0;
    read.missing("MASTER_ADDR",
                 absl::StrCat(unknown ? "MPI_LOCALNRANKS is not set either, so the ranks may be on several hosts"
                                      : "The ranks are on several hosts",
                              ", and MPICH sets no address of rank 0. ", kSetMaster));
  }
  const auto process = read.text(kLauncherProcess);
  if (!process)
    read.missing("MASTER_ADDR", absl::StrCat("The process that started the ranks cannot be found. ", kSetMaster));
  place.store = derived_file(read, "mpich", *process);
  place.store_source = "the process that started the ranks";
  place.store_derived = true;
}

void derive_slurm(const LaunchVariables& read, JobPlace& place) {
  const auto job =
      read.number("SLURM_JOB_ID|SLURM_JOBID", 0, std::numeric_limits<int64_t>::max(), "the number of the job");
  if (!job) read.missing("SLURM_JOB_ID", kSetMaster);
  const auto nodes = read.text("SLURM_STEP_NODELIST");
  if (!nodes) read.missing("SLURM_STEP_NODELIST", kSetMaster);
  place.store_source = "SLURM_STEP_NODELIST and SLURM_JOB_ID";
  place.store = tcp(first_host(read, "SLURM_STEP_NODELIST", *nodes), port_of(static_cast<uint64_t>(*job)));
}

}  // namespace

void find_store(const LaunchOptions& options, const LaunchVariables& read, JobPlace& place) {
  if (!options.store.empty()) {
    parse_store(options.store, "World::from_env: LaunchOptions::store");
    place.store = options.store;
    place.store_source = "LaunchOptions::store";
    return;
  }
  if (const auto url = read.text("DTENSOR_STORE")) {
    parse_store(*url, "World::from_env: DTENSOR_STORE");
    place.store = *url;
    place.store_source = "DTENSOR_STORE";
    return;
  }
  const auto address = read.text("MASTER_ADDR"), port = read.text("MASTER_PORT");
  if (address && port) {
    if (address->find_first_of("/[] \t\n") != std::string::npos) {
      read.bad("MASTER_ADDR", *address, "the name or address of rank 0's host alone, such as 10.0.0.7 or node003");
    }
    place.store = tcp(*address, *read.number("MASTER_PORT", 1, 65535, "a port"));
    place.store_source = "MASTER_ADDR and MASTER_PORT";
    const std::string agent = read.text_or("TORCHELASTIC_USE_AGENT_STORE", "False");
    place.store_exists = absl::EqualsIgnoreCase(agent, "true") || agent == "1";
    if (!place.store_exists && !absl::EqualsIgnoreCase(agent, "false") && agent != "0") {
      read.bad("TORCHELASTIC_USE_AGENT_STORE", agent, "True or False");
    }
    return;
  }
  if (place.world_size == 1) return;
  if (address || port) {
    read.missing(address ? "MASTER_PORT" : "MASTER_ADDR", absl::StrCat(address ? "MASTER_ADDR" : "MASTER_PORT", " is '",
                                                                       address ? *address : *port, "'. ", kSetMaster));
  }
  switch (place.launcher) {
    case Launcher::kOpenMpi:
      return derive_open_mpi(read, place);
    case Launcher::kMpich:
      return derive_mpich(read, place);
    case Launcher::kSlurm:
      return derive_slurm(read, place);
    default:
      read.missing("MASTER_ADDR", kSetMaster);
  }
}

StoreAddress parse_store(const std::string& url, const std::string& what) {
  const auto bad = [&](const std::string& why) {
    TORCH_CHECK(false, what, " is '", url, "': ", why, "; expected file:///PATH or tcp://HOST:PORT");
  };
  StoreAddress address;
  if (absl::StartsWith(url, "file://")) {
    address.path = url.substr(7);
    if (address.path.empty() || address.path[0] != '/') bad("the path must begin with '/'");
    if (address.path.back() == '/') bad("it names a folder");
    return address;
  }
  if (!absl::StartsWith(url, "tcp://")) bad("it begins with neither file:// nor tcp://");
  std::string rest = url.substr(6);
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) bad(colon == 0 ? "it has no host" : "it has no port");
  address.host = rest.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (absl::StrContains(address.host, ':')) {
    bad("an IPv6 address belongs in brackets");
  }
  if (address.host.empty() || address.host.find_first_of("/[] \t\n") != std::string::npos) bad("that is no host");
  const std::string port = rest.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(port, &address.port) || address.port < 1 || address.port > 65535) {
    bad("the port is no number from 1 to 65535");
  }
  return address;
}

}  // namespace dtensor::internal
