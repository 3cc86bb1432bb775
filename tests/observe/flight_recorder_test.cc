#include "observe/flight_recorder.h"

#include <ATen/ops/full.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "mesh/device_mesh.h"
#include "observe/rank_in_job.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/flight_records.h"
#include "tests/testing/test_ranks.h"

using Catch::Contains;
using Json = nlohmann::json;

namespace dtensor {
using namespace internal;

namespace {

using testing::Child;
using testing::eventually;
using testing::flight_dump;
using testing::last_record;
using testing::read_file;
using testing::records_after;
using testing::TempFolder;

CommCall call_with(const DeviceMesh& mesh, const char* dim, CommCause cause, int64_t bytes) {
  CommCall call;
  call.group = &mesh.get_group(dim);
  call.ranks = mesh.local_ranks();
  call.event.cause = std::move(cause);
  call.event.bytes = bytes;
  return call;
}

// Fails, or blocks until `meanwhile` returns.
class Odd : public Communicator {
 public:
  Odd() : Communicator({c10::Device(c10::DeviceType::CPU)}) {}
  std::function<void()> meanwhile = [] {};

 protected:
  void do_exchange(const CommCall&, Collective, absl::Span<const Message>, const RankPieces&,
                   const RankPieces&) override {
    meanwhile();
  }
  void do_reduce_scatter(const CommCall&, absl::Span<const Message>, const RankPieces&, const RankPieces&,
                         ReduceOp) override {
    meanwhile();
  }
  RankPieces do_all_reduce(const CommCall&, const RankPieces& inputs, ReduceOp) override { return meanwhile(), inputs; }
  void do_barrier(const CommCall&) override { meanwhile(); }
};

struct Refuse : CommListener {
  void on_comm(const CommEvent&, bool before) override {
    if (before) throw std::runtime_error("refused");
  }
};

}  // namespace

TEST_CASE("flight recorder: a record has the fields that PyTorch's readers look for, and the cause") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  auto call = call_with(mesh, "tp", {"aten::mm", "mat2", "layers.0", true}, 96);
  call.event.dtype = at::kHalf;
  call.event.layout_change = std::make_shared<const LayoutChange>(at::kHalf, Shape{4, 3}, Placements{Shard(0)},
                                                                  Placements{Replicate()}, "mesh(tp=2)");
  call.event.more_tensors = 1;
  const int64_t before = last_record();
  const auto t = at::full({2, 3}, 1.0, at::kHalf);
  mesh.world().communicator().all_reduce(call, {t, t, t, t}, ReduceOp::kSum);
  const auto records = records_after(before);
  REQUIRE(records.size() == 1);
  const Json& r = records[0];
  CHECK(r.at("record_id") == before + 1);
  CHECK(r.at("collective_seq_id") == 1);
  CHECK(r.at("p2p_seq_id") == 0);
  CHECK(r.at("op_id") == 1);
  CHECK(r.at("profiling_name") == "nccl:all_reduce");
  CHECK(r.at("input_sizes") == Json::parse("[[2, 3]]"));
  CHECK(r.at("output_sizes") == Json::parse("[[2, 3]]"));
  CHECK(r.at("input_dtypes") == Json::parse("[\"Half\"]"));
  CHECK(r.at("output_dtypes") == Json::parse("[\"Half\"]"));
  CHECK(r.at("state") == "completed");
  CHECK(r.at("retired") == true);
  CHECK(r.at("is_p2p") == false);
  CHECK(r.at("frames").empty());
  CHECK(r.at("timeout_ms") == 600000);
  const int64_t created = r.at("time_created_ns"), started = r.at("time_discovered_started_ns"),
                completed = r.at("time_discovered_completed_ns");
  CHECK(created > 1700000000000000000);
  CHECK(created <= started);
  CHECK(started < completed);
  CHECK(r.at("duration_ms").get<double>() == Approx(static_cast<double>(completed - started) / 1e6));
  CHECK(r.at("collective") == "all_reduce");
  CHECK(r.at("tensor") == "f16[4, 3](S(0)) -> (R) @ mesh(tp=2) and 1 more");
  CHECK(r.at("cause") ==
        Json::parse(R"({"op": "aten::mm", "argument": "mat2", "module_path": "layers.0", "implicit": true})"));
  CHECK(r.at("backward") == false);
  CHECK(r.at("mesh_dims") == "tp");
  CHECK(r.at("bytes") == 96);

  const Json all = flight_dump();
  CHECK(all.at("version") == "2.10");
  const std::string name = r.at("process_group")[0];
  CHECK(r.at("process_group")[1] == "tp");
  CHECK_THAT(name, Contains("0,1 in process"));
  CHECK(all.at("pg_config").at(name).at("name") == name);
  CHECK(all.at("pg_config").at(name).at("desc") == "tp");
  CHECK(all.at("pg_config").at(name).at("ranks") == "[0, 1]");
  const Json status = all.at("pg_status").at(std::to_string(r.at("pg_id").get<int64_t>()));
  CHECK(status.at("last_enqueued_collective") == 1);
  CHECK(status.at("last_started_collective") == 1);
  CHECK(status.at("last_completed_collective") == 1);
}

TEST_CASE("flight recorder: calls are counted by group, over all meshes of a world") {
  const World world = World::local(4);
  const int64_t before = last_record();
  for (int i = 0; i < 2; ++i) {
    const DeviceMesh mesh(world, {2, 2}, {i == 0 ? "dp" : "pp", "tp"});
    for (const char* dim : {"tp", "tp", i == 0 ? "dp" : "pp"}) {
      world.communicator().barrier(call_with(mesh, dim, {"barrier", "", "", false}, 0));
    }
  }
  std::vector<std::string> calls;
  for (const Json& r : records_after(before)) {
    calls.push_back(r.at("process_group")[0].get<std::string>().substr(0, 3) + " " +
                    r.at("mesh_dims").get<std::string>() + " " +
                    std::to_string(r.at("collective_seq_id").get<int64_t>()));
  }
  CHECK(calls == std::vector<std::string>{"0,1 tp 1", "0,1 tp 2", "0,2 dp 1", "0,1 tp 3", "0,1 tp 4", "0,2 pp 2"});
}

TEST_CASE("flight recorder: another world's group of the same ranks is another group") {
  const int64_t before = last_record();
  for (int i = 0; i < 2; ++i) {
    const DeviceMesh mesh(World::fake(4, 2), {4}, {"tp"});
    mesh.world().communicator().barrier(call_with(mesh, "tp", {}, 0));
  }
  const auto records = records_after(before);
  REQUIRE(records.size() == 2);
  CHECK(records[0].at("collective_seq_id") == 1);
  CHECK(records[1].at("collective_seq_id") == 1);
  CHECK(records[0].at("process_group")[0] != records[1].at("process_group")[0]);
  CHECK(flight_dump().at("rank") == 2);  // whom the last record belongs to
}

TEST_CASE("flight recorder: calls without data for this rank are not recorded") {
  const int64_t before = last_record();
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  mesh.world().communicator().barrier(call_with(mesh, "tp", {}, 0));
  CHECK(records_after(before).empty());
}

TEST_CASE("flight recorder: uneven parts go by a name under which PyTorch's reader accepts them") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto call = call_with(mesh, "tp", {}, 0);
  Communicator& comm = mesh.world().communicator();
  const int64_t before = last_record();
  const auto two = at::full({2}, 1.0), one = at::full({1}, 1.0), none = at::full({0}, 1.0), four = at::full({4}, 1.0);
  // What a rank holds of a tensor of four rows, of three, and of none.
  const std::vector<Message> even = {{0, 0, 0, 0, {{0}, {0}, {2}}}, {0, 1, 0, 0, {{0}, {0}, {2}}}};
  comm.exchange(call, Collective::kAllGather, even, {{two}, {two}}, {{four}, {four}});
  comm.exchange(call, Collective::kAllGather, {}, {{two}, {one}}, {{at::full({3}, 1.0)}, {at::full({3}, 1.0)}});
  comm.exchange(call, Collective::kPermute, {}, {{}, {}}, {{}, {}});
  comm.broadcast(call, {two, two}, 0);
  const auto records = records_after(before);
  REQUIRE(records.size() == 4);
  CHECK(records[0].at("profiling_name") == "nccl:all_gather");
  CHECK(records[0].at("output_sizes") == Json::parse("[[4]]"));
  CHECK(records[1].at("profiling_name") == "nccl:coalesced");
  CHECK(records[1].at("collective") == "all_gather");
  CHECK(records[2].at("profiling_name") == "nccl:coalesced");
  CHECK(records[2].at("input_sizes") == Json::parse("[[0]]"));
  CHECK(records[2].at("input_dtypes").size() == 1);
  CHECK(records[3].at("profiling_name") == "nccl:broadcast");
}

TEST_CASE("flight recorder: a collective that is refused was none, one that fails did not complete") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto call = call_with(mesh, "tp", {}, 0);
  Odd comm;
  Refuse refuse;
  const int64_t before = last_record();
  comm.barrier(call);
  {
    ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&refuse); });
    CHECK_THROWS_WITH(comm.barrier(call), "refused");
  }
  comm.meanwhile = [] { throw std::runtime_error("the wire broke"); };
  CHECK_THROWS_WITH(comm.barrier(call), "the wire broke");
  comm.meanwhile = [] {};
  comm.barrier(call);
  const auto records = records_after(before);
  REQUIRE(records.size() == 3);
  CHECK(records[0].at("collective_seq_id") == 1);
  CHECK(records[1].at("collective_seq_id") == 2);
  CHECK(records[1].at("state") == "started");
  CHECK(records[1].at("retired") == true);
  CHECK(records[1].at("time_discovered_completed_ns") == 0);
  CHECK_FALSE(records[1].contains("duration_ms"));
  CHECK(records[2].at("collective_seq_id") == 3);
  CHECK(records[2].at("state") == "completed");
}

TEST_CASE("flight recorder: a dump during calls shows running and pending ones") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto call = call_with(mesh, "tp", {}, 0);
  Odd comm;
  Json running, scheduled;
  struct Look : CommListener {
    Json* into;
    void on_comm(const CommEvent&, bool before) override {
      if (before) *into = flight_dump().at("entries").back();
    }
  } look;
  look.into = &scheduled;
  comm.meanwhile = [&] { running = flight_dump().at("entries").back(); };
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&look); });
  comm.barrier(call);
  CHECK(scheduled.at("state") == "scheduled");
  CHECK(scheduled.at("time_discovered_started_ns") == 0);
  CHECK(running.at("state") == "started");
  CHECK(running.at("retired") == false);
  CHECK(running.at("record_id") == scheduled.at("record_id"));
}

TEST_CASE("flight recorder: threads communicate and dump at once") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto call = call_with(mesh, "tp", {"aten::a_name_that_is_not_short", "", "", true}, 8);
  const int64_t before = last_record();
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) mesh.world().communicator().barrier(call);
    });
  }
  for (int i = 0; i < 5; ++i) flight_dump();
  for (auto& thread : threads) thread.join();
  std::set<int64_t> numbers;
  for (const Json& r : records_after(before)) {
    CHECK(r.at("state") == "completed");
    numbers.insert(r.at("collective_seq_id").get<int64_t>());
  }
  CHECK(numbers.size() == 400);
  CHECK(*numbers.rbegin() == 400);
}

TEST_CASE("flight recorder: a file is written whole or not at all") {
  TempFolder folder;
  dump_flight_recorder(folder / "dump");
  CHECK(Json::parse(read_file(folder / "dump")).at("version") == "2.10");
  CHECK_THROWS_WITH(
      dump_flight_recorder(folder / "no/such"),
      Contains("dump_flight_recorder: ") && Contains("no/such cannot be written: No such file or directory"));
  std::filesystem::create_directory(folder / "taken");
  CHECK_THROWS_WITH(dump_flight_recorder(folder / "taken"), Contains("taken cannot be written"));
  {
    // As if the disk were full in the middle.
    struct rlimit limit = {}, small = {};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    small = {64, limit.rlim_max};
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &small);
    std::string error;
    try {
      dump_flight_recorder(folder / "large");
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    }
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, handler);
    CHECK_THAT(error, Contains("large cannot be written: File too large"));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "large"));
  for (const char* name : {"dump", "taken", "large"}) {
    CHECK_FALSE(std::filesystem::exists(folder / name + ".part" + std::to_string(::getpid())));
  }
}

TEST_CASE("ranks_text: ranges where there are three or more") {
  CHECK(ranks_text({}) == "");
  CHECK(ranks_text({3}) == "3");
  CHECK(ranks_text({0, 1}) == "0,1");
  CHECK(ranks_text({0, 1, 2, 3}) == "0-3");
  CHECK(ranks_text({0, 2, 4, 5, 6, 9}) == "0,2,4-6,9");
}

// In processes of their own.

TEST_CASE("child: five barriers and a long sleep", "[.child]") {
  ::signal(SIGTERM, SIG_DFL);  // Catch2 handles it
  const DeviceMesh mesh(World::fake(4, 3), {4}, {"tp"});
  for (int i = 0; i < 5; ++i) mesh.world().communicator().barrier(call_with(mesh, "tp", {"step", "", "", false}, i));
  std::ofstream(std::getenv("READY")) << "ready";
  std::this_thread::sleep_for(std::chrono::seconds(30));
}

TEST_CASE("child: five barriers and a failure", "[.child]") {
  set_rank_in_job(7);
  prepare_flight_recorder(std::chrono::milliseconds(1500));
  const DeviceMesh mesh(World::fake(4, 3), {4}, {"tp"});
  for (int i = 0; i < 5; ++i) mesh.world().communicator().barrier(call_with(mesh, "tp", {"step", "", "", false}, i));
  dump_flight_recorder_on_failure(7);
}

TEST_CASE("child: forks a child of its own", "[.child]") {
  ::signal(SIGTERM, SIG_DFL);
  set_rank_in_job(1);
  prepare_flight_recorder();
#ifdef __SANITIZE_THREAD__
  return;  // which calls no handlers in the child of a process with threads
#endif
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::raise(SIGTERM);
    ::_exit(5);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}

TEST_CASE("child: handles SIGTERM itself", "[.child]") {
  static volatile sig_atomic_t seen = 0;
  ::signal(SIGTERM, [](int) { seen = 1; });
  set_rank_in_job(1);
  prepare_flight_recorder();
  ::raise(SIGTERM);
  CHECK(seen == 1);
}

TEST_CASE("flight recorder: SIGUSR1 dumps, SIGTERM dumps and ends the process") {
  TempFolder folder;
  Child child("child: five barriers and a long sleep",
              {{"DTENSOR_FLIGHT_FILE", folder / "flight_"}, {"READY", folder / "ready"}});
  const std::string file = folder / "flight_3";
  REQUIRE(eventually([&] { return !read_file(folder / "ready").empty(); }));
  CHECK_FALSE(std::filesystem::exists(file));
  child.signal(SIGUSR1);
  REQUIRE(eventually([&] { return std::filesystem::exists(file); }));
  const Json json = Json::parse(read_file(file));
  CHECK(json.at("rank") == 3);
  CHECK(json.at("entries").size() == 5);
  std::filesystem::remove(file);
  child.signal(SIGTERM);
  const int status = child.wait();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(Json::parse(read_file(file)).at("entries").size() == 5);
  CHECK_THAT(child.output(), Contains("[dtensor] rank 3: the last collectives are in " + file));
}

TEST_CASE("flight recorder: without DTENSOR_FLIGHT_FILE signals do what they did") {
  TempFolder folder;
  Child child("child: five barriers and a long sleep", {{"READY", folder / "ready"}});
  REQUIRE(eventually([&] { return !read_file(folder / "ready").empty(); }));
  child.signal(SIGUSR1);
  CHECK(WTERMSIG(child.wait()) == SIGUSR1);
}

TEST_CASE("flight recorder: signals of a fork's child and of programs that handle them") {
  TempFolder folder;
  for (const char* test : {"child: forks a child of its own", "child: handles SIGTERM itself"}) {
    CAPTURE(test);
    Child child(test, {{"DTENSOR_FLIGHT_FILE", folder / "flight_"}});
    const int status = child.wait();
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK_FALSE(std::filesystem::exists(folder / "flight_1"));
  }
}

TEST_CASE("flight recorder: a failure writes the file of its rank") {
  TempFolder folder;
  Child child("child: five barriers and a failure",
              {{"DTENSOR_FLIGHT_FILE", folder / "flight_"}, {"DTENSOR_FLIGHT_RECORDER", "3"}});
  CHECK(child.wait() == 0);
  const Json json = Json::parse(read_file(folder / "flight_7"));
  CHECK(json.at("rank") == 7);
  // The ring has gone round.
  REQUIRE(json.at("entries").size() == 3);
  CHECK(json.at("entries")[0].at("record_id") == 2);
  CHECK(json.at("entries")[0].at("collective_seq_id") == 3);
  CHECK(json.at("entries")[2].at("bytes") == 4);
  CHECK(json.at("entries")[2].at("timeout_ms") == 1500);
  CHECK(json.at("pg_status").at("0").at("last_completed_collective") == 5);
}

TEST_CASE("flight recorder: a dump that cannot be written is reported, and nothing else fails") {
  TempFolder folder;
  Child child("child: five barriers and a failure", {{"DTENSOR_FLIGHT_FILE", folder / "no/such/"}});
  CHECK(child.wait() == 0);
  CHECK_THAT(child.output(),
             Contains("[dtensor] rank 7: the last collectives cannot be written to") && Contains("No such file"));
}

TEST_CASE("flight recorder: none, and a size that is none") {
  TempFolder folder;
  {
    Child child("child: five barriers and a failure",
                {{"DTENSOR_FLIGHT_FILE", folder / "flight_"}, {"DTENSOR_FLIGHT_RECORDER", "0"}});
    CHECK(child.wait() == 0);
    CHECK_FALSE(std::filesystem::exists(folder / "flight_7"));
  }
  Child child("child: five barriers and a failure", {{"DTENSOR_FLIGHT_RECORDER", "many"}});
  CHECK(child.wait() != 0);
  CHECK_THAT(child.output(),
             Contains("DTENSOR_FLIGHT_RECORDER is \"many\"; it must be how many collectives to remember, 0 for none"));
}

}  // namespace dtensor
