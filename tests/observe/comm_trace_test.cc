// CommTrace: the timeline of collectives.
#include "observe/comm_trace.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/ones.h>
#include <sys/resource.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>

#include "comm/communicator.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/scopes.h"
#include "observe/comm_contracts.h"
#include "observe/rank_in_job.h"
#include "plan/cost_model.h"
#include "tests/observe/mesh_of_four.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

using Catch::Contains;
using Json = nlohmann::json;

namespace dtensor {
using namespace internal;

namespace {

using testing::Child;
using testing::read_file;
using testing::TempFolder;

Json parsed(const std::string& path) { return Json::parse(read_file(path)); }

// The collectives, without what only names rows.
std::vector<Json> spans(const Json& trace) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") found.push_back(event);
  }
  return found;
}

class Failing : public Communicator {
 public:
  Failing() : Communicator({c10::Device(c10::DeviceType::CPU)}) {}

 protected:
  void do_exchange(const CommCall&, Collective, absl::Span<const Message>, const RankPieces&,
                   const RankPieces&) override {}
  void do_reduce_scatter(const CommCall&, absl::Span<const Message>, const RankPieces&, const RankPieces&,
                         ReduceOp) override {}
  RankPieces do_all_reduce(const CommCall&, const RankPieces& inputs, ReduceOp) override { return inputs; }
  void do_barrier(const CommCall&) override { throw std::runtime_error("the wire broke"); }
};

}  // namespace

TEST_CASE("comm trace: a row for each rank, and the names expected by Kineto's readers") {
  TempFolder folder;
  const std::string file = folder / "trace.json";
  CommCall call;
  call.group = &mesh().get_group("tp");
  call.ranks = mesh().local_ranks();
  call.event.cause = {"aten::mm", "mat2", "layers.0", true};
  call.event.bytes = 48;
  call.event.dtype = at::kFloat;
  call.event.layout_change =
      std::make_shared<const LayoutChange>(at::kFloat, Shape{6, 4}, Placements{Shard(0), StridedShard(0, 2)},
                                           Placements{Replicate(), Shard(1)}, mesh().to_string());
  {
    CommTrace trace(file);
    CHECK(trace.path() == file);
    CHECK(spans(parsed(file)).empty());  // whole from the beginning
    mesh().world().communicator().all_gather(call, RankTensors(4, at::ones({3, 4})));
  }
  mesh().world().communicator().all_gather(call, RankTensors(4, at::ones({3, 4})));  // out of the block
  const Json trace = parsed(file);
  CHECK(trace.at("baseTimeNanoseconds").get<int64_t>() > 1700000000000000000);
  CHECK(trace.at("distributedInfo").at("rank") == 0);
  std::map<int64_t, std::string> names;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "process_name") {
      CHECK(names.emplace(event.at("pid").get<int64_t>(), event.at("args").at("name").get<std::string>()).second);
    }
  }
  CHECK(names == std::map<int64_t, std::string>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 2"}, {3, "rank 3"}});
  const auto events = spans(trace);
  REQUIRE(events.size() == 4);
  const Json& last = events[3];
  CHECK(last.at("name") == "aten::mm all_gather");
  CHECK(last.at("cat") == "communication");
  CHECK(last.at("pid") == 3);
  CHECK(last.at("ts").get<double>() > 0);
  CHECK(last.at("ts").get<double>() * 1e3 < 7889238e9);
  CHECK(last.at("dur").get<double>() > 0);
  Json args = last.at("args");
  CHECK(args.at("Seq").get<int64_t>() > 0);
  args.erase("Seq");
  const Json expected = Json::parse(R"json({
    "Collective name": "all_gather", "dtype": "Float", "In msg nelems": 12, "Out msg nelems": 24, "In split size": "[]",
    "Out split size": "[]", "Group size": 2, "Process Group Name": "2,3", "Process Group Description": "tp",
    "Process Group Ranks": "[2, 3]", "Rank": 3, "tensor": "f32[6, 4](S(0)_S(0, 2)) -> (RS(1)) @ mesh(dp=2, tp=2)",
    "src placements": "S(0)_S(0, 2)", "dst placements": "RS(1)", "mesh dim": "tp", "bytes": 48, "cause": "implicit",
    "op": "aten::mm", "argument": "mat2", "module": "layers.0", "phase": "forward"})json");
  CHECK(args == expected);
}

TEST_CASE("comm trace: communication of forward and backward, in order") {
  TempFolder folder;
  const std::string file = folder / "trace.json";
  const auto w = distribute_tensor(at::ones({2, 3}), mesh(), {Replicate(), Replicate()}).requires_grad_();
  const auto x = distribute_tensor(at::ones({8, 2}), mesh(), {Shard(0), Replicate()});
  const auto y = distribute_tensor(at::ones({5, 3}), mesh(), {Shard(0), Replicate()});
  {
    CommTrace trace(file);
    ModulePath path("block");
    const auto loss = full_tensor(x.mm(w).sum());
    loss.backward();
    redistribute(y, {Shard(1), Replicate()});
  }
  std::vector<std::string> names;
  double end = 0;
  const auto events = spans(parsed(file));
  for (const Json& event : events) {
    if (event.at("pid") != 2) continue;
    const Json& args = event.at("args");
    names.push_back(event.at("name").get<std::string>() + ", " + args.at("phase").get<std::string>() + ", " +
                    args.at("cause").get<std::string>() + ", " + args.at("module").get<std::string>());
    CHECK(event.at("ts").get<double>() >= end - 1);
    end = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  CHECK(names == std::vector<std::string>{"full_tensor all_reduce, forward, explicit, block",
                                          "gradient all_reduce, backward, implicit, block",
                                          "redistribute all_to_all, forward, explicit, block"});
  // 5 x 3, cut by rows into 3 and 2: rank 2 has the last two rows, and gets the last column.
  const Json& uneven = events[events.size() - 2].at("args");
  CHECK(uneven.at("Rank") == 2);
  CHECK(uneven.at("Collective name") == "all_to_allv");
  CHECK(uneven.at("In split size") == "[4, 2]");
  CHECK(uneven.at("Out split size") == "[3, 2]");
}

TEST_CASE("comm trace: layouts between meshes contain the meshes") {
  TempFolder folder;
  const std::string file = folder / "trace.json";
  const DeviceMesh rows(mesh().world(), {2}, {"row"}, {0, 1}), columns(mesh().world(), {2}, {"column"}, {2, 3});
  const auto x = distribute_tensor(at::ones({4, 2}), rows, {Shard(0)});
  {
    CommTrace trace(file);
    redistribute(x, columns, {Shard(1)});
  }
  const auto events = spans(parsed(file));
  REQUIRE_FALSE(events.empty());
  const Json& args = events[0].at("args");
  CHECK(args.at("tensor") == "f32[4, 2](S(0) @ mesh(row=2)) -> (S(1) @ mesh(column=2))");
  CHECK(args.at("src placements") == "S(0) @ mesh(row=2)");
  CHECK(args.at("dst placements") == "S(1) @ mesh(column=2)");
}

TEST_CASE("comm trace: in an abstract world times are those of the cost model") {
  TempFolder folder;
  const std::string file = folder / "trace.json";
  const World world = World::abstract(64);
  const DeviceMesh imaginary(world, {64}, {"tp"});
  {
    CommTrace trace(file);
    redistribute(ones({1024, 1024}, imaginary, {Shard(0)}), {Replicate()});
    redistribute(ones({1024, 1024}, imaginary, {Partial()}), {Replicate()});
  }
  const auto events = spans(parsed(file));
  REQUIRE(events.size() == 2);
  const auto cost = cost_model(world);
  const int64_t part = 1024 * 1024 * 4 / 64;
  CHECK(events[0].at("pid") == 0);
  CHECK(events[0].at("dur").get<double>() ==
        Approx(cost->collective(Collective::kAllGather, GroupExtent{64, 8}, 63 * part) * 1e6));
  CHECK(events[1].at("dur").get<double>() ==
        Approx(cost->collective(Collective::kAllReduce, GroupExtent{64, 8}, 126 * part) * 1e6));
  CHECK(events[1].at("ts").get<double>() ==
        Approx(events[0].at("ts").get<double>() + events[0].at("dur").get<double>()).epsilon(1e-15));
  CHECK(events[0].at("args").at("Process Group Name") == "0-63");
  CHECK_FALSE(events[0].at("args").contains("In msg nelems"));
}

TEST_CASE("comm trace: failed calls are recorded, rejected ones are not") {
  TempFolder folder;
  const std::string file = folder / "trace.json";
  CommCall call;
  call.group = &mesh().get_group("tp");
  call.ranks = mesh().local_ranks();
  CommTrace trace(file);
  Failing failing;
  CHECK_THROWS_WITH(failing.barrier(call), "the wire broke");
  {
    ForbidImplicitCommunication forbid;
    CHECK_THROWS(mesh().world().communicator().barrier(call));
  }
  const auto events = spans(parsed(file));  // whole at any time
  REQUIRE(events.size() == 4);
  CHECK(events[0].at("name") == "barrier");
  CHECK(events[0].at("args").at("failed") == true);
}

TEST_CASE("comm trace: traces nest, and threads have rows") {
  TempFolder folder;
  const std::string outer_file = folder / "outer.json", inner_file = folder / "inner.json";
  CommCall call;
  call.group = &mesh().get_group("tp");
  call.ranks = mesh().local_ranks();
  Communicator& comm = mesh().world().communicator();
  CommTrace outer(outer_file);
  comm.barrier(call);
  {
    CommTrace inner(inner_file);
    comm.barrier(call);
  }
  const at::ThreadLocalState state;
  std::vector<std::thread> threads;
  for (int k = 0; k < 2; ++k) {
    threads.emplace_back([&] {
      at::ThreadLocalStateGuard of_caller(state);
      for (int i = 0; i < 20; ++i) comm.barrier(call);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(spans(parsed(inner_file)).size() == 4);
  const auto events = spans(parsed(outer_file));
  CHECK(events.size() == 4 * 42);
  std::set<int64_t> rows;
  for (const Json& event : events) rows.insert(event.at("tid").get<int64_t>());
  CHECK(rows.size() >= 2);  // an id may be used again after its thread
}

TEST_CASE("comm trace: a file that cannot be written is an error before anything is traced") {
  TempFolder folder;
  CHECK_THROWS_WITH(CommTrace(folder / "no/trace.json"),
                    Contains("CommTrace: ") && Contains("no/trace.json cannot be written: No such file"));
  CommTrace here(folder / "trace_%r.json");
  CHECK(here.path() == folder / "trace_0.json");
}

// In processes of their own.

TEST_CASE("child: communicates until its disk is full", "[.child]") {
  ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {4096, 4096};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  for (int i = 0; i < 20; ++i)
    redistribute(full({8, 2}, 1.0, mesh(), {Replicate(), Partial()}), {Replicate(), Replicate()});
}

TEST_CASE("child: communicates and is terminated", "[.child]") {
  if (const char* rank = std::getenv("CHILD_RANK")) set_rank_in_job(std::atoi(rank));
  redistribute(full({8, 2}, 1.0, mesh(), {Replicate(), Partial()}), {Replicate(), Replicate()});
  std::thread([] {
    redistribute(full({8, 2}, 1.0, mesh(), {Replicate(), Partial()}), {Replicate(), Replicate()});
  }).join();
  CommCall call;
  call.group = &mesh().get_group("tp");
  call.ranks = mesh().local_ranks();
  if (std::getenv("CHILD_TRACES") != nullptr) CommTrace(std::getenv("CHILD_TRACES"));
  std::thread([&] { Failing().barrier(call); }).join();  // the exception is not caught
}

TEST_CASE("comm trace: DTENSOR_TRACE traces the whole process, and is complete after an uncaught exception") {
  TempFolder folder;
  Child child("child: communicates and is terminated", {{"DTENSOR_TRACE", folder / "trace.json"}});
  CHECK(WIFSIGNALED(child.wait()));
  const auto events = spans(parsed(folder / "trace.json"));
  REQUIRE(events.size() == 12);
  CHECK(events[4].at("tid") != events[0].at("tid"));
  CHECK(events[8].at("args").at("failed") == true);
}

TEST_CASE("comm trace: a full disk ends it early with a complete file") {
  TempFolder folder;
  Child child("child: communicates until its disk is full", {{"DTENSOR_TRACE", folder / "trace.json"}});
  CHECK(child.wait() == 0);
  const auto events = spans(parsed(folder / "trace.json"));
  CHECK(events.size() >= 4);
  CHECK(events.size() < 80);
  CHECK_THAT(child.output(),
             Contains("[dtensor] the trace ends here, as ") && Contains("cannot be written: File too large"));
}

TEST_CASE("comm trace: processes have files of their own") {
  TempFolder folder;
  const auto run = [&](const std::string& path) {
    Child child("child: communicates and is terminated",
                {{"DTENSOR_TRACE", folder / path}, {"CHILD_RANK", "3"}, {"CHILD_TRACES", folder / "of.two.dots"}});
    child.wait();
  };
  run("trace.json");
  CHECK(parsed(folder / "trace.3.json").at("distributedInfo").at("rank") == 3);
  CHECK(spans(parsed(folder / "of.two.3.dots")).empty());
  run("trace_%r");
  CHECK(spans(parsed(folder / "trace_3")).size() == 12);
  run("trace");
  CHECK(spans(parsed(folder / "trace.3")).size() == 12);
  Child child("child: communicates and is terminated", {{"DTENSOR_TRACE", folder / "no/trace"}});
  child.wait();
  CHECK_THAT(child.output(), Contains("CommTrace: ") && Contains("no/trace cannot be written: No such file"));
}

}  // namespace dtensor
