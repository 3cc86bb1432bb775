// The flight recorder's dumps.
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "observe/dump_signals.h"
#include "observe/flight_ring.h"
#include "observe/rank_in_job.h"

namespace dtensor {
using namespace internal;

namespace {

using Json = nlohmann::ordered_json;

constexpr char kVersion[] = "2.10";  // of PyTorch's format

// By prepare_flight_recorder(); PyTorch's, until a job begins.
std::atomic<int64_t> timeout_ms{600000};

// PyTorch's readers recognise collectives by these names, and only with this prefix. What is uneven they would take for
// a mistake; "coalesced" is what they only compare by name.
const char* profiling_name(const FlightRecord& entry, const Json& inputs, const Json& outputs) {
  const auto numel = [](const Json& sizes) {
    int64_t n = 1;
    for (int64_t size : sizes[0]) n *= size;
    return n;
  };
  const auto n = static_cast<int64_t>(entry.group->ranks.size());
  const bool single = inputs.size() == 1 && outputs.size() == 1;
  switch (entry.collective) {
    case Collective::kAllReduce:
      return "nccl:all_reduce";
    case Collective::kAllGather:
      return single && numel(inputs) * n == numel(outputs) ? "nccl:all_gather" : "nccl:coalesced";
    case Collective::kReduceScatter:
      return single && numel(outputs) * n == numel(inputs) ? "nccl:reduce_scatter" : "nccl:coalesced";
    case Collective::kBroadcast:
      return "nccl:broadcast";
    case Collective::kScatter:
      return "nccl:scatter";
    case Collective::kGather:
      return "nccl:gather";
    case Collective::kBarrier:
      return "nccl:all_reduce_barrier";
    case Collective::kAllToAll:
    case Collective::kPermute:
      break;
  }
  return "nccl:coalesced";
}

const char* state_of(const FlightRecord& entry) {
  return entry.completed != 0 ? "completed" : entry.started != 0 ? "started" : "scheduled";
}

Json to_json(const FlightRecord& entry) {
  Json sizes[2] = {Json::array(), Json::array()}, dtypes[2] = {Json::array(), Json::array()};
  for (size_t k = 0, at = 0; k < entry.dtypes.size(); ++k) {
    const size_t out = k >= entry.inputs ? 1 : 0;
    const auto ndim = entry.sizes[at++];
    sizes[out].push_back(std::vector<int64_t>(entry.sizes.begin() + at, entry.sizes.begin() + at + ndim));
    at += ndim;
    dtypes[out].push_back(c10::toString(entry.dtypes[k]));
  }
  if (entry.collective == Collective::kBroadcast && sizes[0].empty()) {
    sizes[0] = sizes[1];
    dtypes[0] = dtypes[1];
  }
  for (int side = 0; side < 2; ++side) {
    if (!sizes[side].empty()) continue;  // readers look at the first
    sizes[side].push_back(Json::array({0}));
    dtypes[side].push_back(c10::toString(entry.dtype));
  }
  Json json = {{"record_id", entry.id - 1},
               {"pg_id", entry.group->id},
               {"process_group", {entry.group->name, entry.group->description}},
               {"collective_seq_id", entry.sequence},
               {"p2p_seq_id", 0},
               {"op_id", entry.sequence},
               {"profiling_name", profiling_name(entry, sizes[0], sizes[1])},
               {"time_created_ns", entry.created},
               {"time_discovered_started_ns", entry.started},
               {"time_discovered_completed_ns", entry.completed}};
  if (entry.completed != 0) json["duration_ms"] = static_cast<double>(entry.completed - entry.started) / 1e6;
  json["input_sizes"] = std::move(sizes[0]);
  json["input_dtypes"] = std::move(dtypes[0]);
  json["output_sizes"] = std::move(sizes[1]);
  json["output_dtypes"] = std::move(dtypes[1]);
  json["state"] = state_of(entry);
  json["timeout_ms"] = timeout_ms.load();
  json["frames"] = Json::array();
  json["is_p2p"] = false;
  json["retired"] = entry.retired;
  if (!entry.awaited) json["awaited"] = false;
  json["thread_id"] = absl::StrCat(entry.thread);
  json["collective"] = std::string(to_string(entry.collective));
  json["tensor"] = entry.tensor ? *entry.tensor : "";
  json["cause"] = {
      {"op", entry.op}, {"argument", entry.argument}, {"module_path", entry.module_path}, {"implicit", entry.implicit}};
  json["backward"] = entry.backward;
  json["mesh_dims"] = entry.mesh_dims;
  json["dtype"] = c10::toString(entry.dtype);
  json["bytes"] = entry.bytes;
  return json;
}

// If `rank` is -1 it becomes this process's in its job, without one the first that it owned in the last collective.
// `wait`: as of copy_flight_ring().
std::string dump_text(int64_t& rank, bool wait) {
  std::vector<FlightRecord> entries;
  std::vector<FlightGroup> groups;
  const bool all = copy_flight_ring(wait, entries, groups);
  const int64_t now = c10::getTime();  // the texts below take some time
  if (rank < 0) rank = rank_in_job();
  if (rank < 0) rank = entries.empty() ? 0 : entries.back().rank;
  Json config = Json::object(), status = Json::object();
  for (const FlightGroup& group : groups) {
    config[group.name] = {{"name", group.name},
                          {"desc", group.description},
                          {"ranks", absl::StrCat("[", absl::StrJoin(group.ranks, ", "), "]")},
                          {"pg_id", group.id}};
    if (group.in_process) config[group.name]["in_process"] = true;
    status[absl::StrCat(group.id)] = {{"last_enqueued_collective", group.enqueued},
                                      {"last_started_collective", group.started},
                                      {"last_completed_collective", group.completed}};
  }
  Json list = Json::array();
  for (const FlightRecord& entry : entries) list.push_back(to_json(entry));
  Json json = {{"version", kVersion},
               {"comm_lib_version", "dtensor"},
               {"rank", rank},
               {"process", ::getpid()},
               {"time_ns", now},
               {"pg_config", std::move(config)},
               {"pg_status", std::move(status)},
               {"entries", std::move(list)}};
  if (!all) json["incomplete"] = "a thread held the flight recorder for more than a second";
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// "" or the error. Writes under another name first, so that readers never see an incomplete file.
std::string write_whole(const std::string& path, const std::string& text) {
  const std::string part = absl::StrCat(path, ".part", ::getpid());
  {
    std::ofstream out(part, std::ios::binary);
    if (!out) return std::strerror(errno);
    if (!(out << text << std::flush)) {
      const std::string why = std::strerror(errno);
      ::unlink(part.c_str());
      return why;
    }
  }
  if (::rename(part.c_str(), path.c_str()) == 0) return "";
  const std::string why = std::strerror(errno);
  ::unlink(part.c_str());
  return why;
}

const char* file_prefix() {
  const char* prefix = std::getenv("DTENSOR_FLIGHT_FILE");
  return prefix != nullptr && *prefix != '\0' ? prefix : nullptr;
}

}  // namespace

void dump_flight_recorder(std::ostream& os) {
  int64_t rank = -1;
  os << dump_text(rank, /*wait=*/true);
}

void dump_flight_recorder(const std::string& path) {
  int64_t rank = -1;
  const std::string error = write_whole(path, dump_text(rank, /*wait=*/true));
  TORCH_CHECK_VALUE(error.empty(), "dump_flight_recorder: ", path, " cannot be written: ", error);
}

void dump_flight_recorder_on_failure(int64_t rank) noexcept {
  try {
    const char* prefix = file_prefix();
    if (prefix == nullptr || !flight_recorder_is_on()) return;
    const std::string text = dump_text(rank, /*wait=*/false);
    const std::string path = absl::StrCat(prefix, rank);
    const std::string error = write_whole(path, text);
    const std::string message =
        error.empty() ? absl::StrCat("[dtensor] rank ", rank, ": the last collectives are in ", path, "\n")
                      : absl::StrCat("[dtensor] rank ", rank, ": the last collectives cannot be written to ", path,
                                     ": ", error, "\n");
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  } catch (...) {
  }
}

namespace internal {

std::string flight_dump_text(int64_t rank) { return dump_text(rank, /*wait=*/false); }

void arm_flight_signals() noexcept {
  if (file_prefix() != nullptr) dump_on_signals([] { dump_flight_recorder_on_failure(-1); });
}

}  // namespace internal

void prepare_flight_recorder(std::chrono::milliseconds timeout) noexcept {
  if (timeout.count() > 0) timeout_ms.store(timeout.count());
  arm_flight_signals();
}

}  // namespace dtensor
