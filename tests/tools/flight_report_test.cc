#include <nlohmann/json.hpp>
#include <sstream>

#include "observe/flight_recorder.h"
#include "tests/testing/catch_torch.h"
#include "tools/flight/report.h"

using Catch::Contains;
using Catch::EndsWith;
using Json = nlohmann::json;

namespace dtensor::tools {
using namespace internal;

namespace {

// A rank's dump, call by call.
class Dump {
 public:
  explicit Dump(int64_t rank) : rank_(rank) {
    json_ = {{"version", "2.10"},
             {"rank", rank},
             {"pg_config", Json::object()},
             {"pg_status", Json::object()},
             {"entries", Json::array()}};
  }

  Dump& call(const std::vector<int64_t>& ranks, const std::string& collective, int64_t time,
             const std::string& state = "completed", int64_t bytes = 64,
             const std::string& tensor = "f32[8](S(0)) -> (R) @ mesh(tp=4)", const std::string& world = "") {
    const std::string name = ranks_text(ranks) + world;
    if (!json_["pg_config"].contains(name)) {
      json_["pg_config"][name] = {
          {"name", name}, {"desc", "tp"}, {"ranks", Json(ranks).dump()}, {"pg_id", json_["pg_config"].size()}};
    }
    const std::string id = std::to_string(json_["pg_config"][name]["pg_id"].get<int64_t>());
    json_["pg_status"][id]["last_enqueued_collective"] = ++last_[name];
    json_["entries"].push_back(
        {{"pg_id", std::stoll(id)},
         {"process_group", {name, "tp"}},
         {"collective_seq_id", last_[name]},
         {"time_created_ns", time},
         {"state", state == "failed" || state == "not awaited" ? "started" : state},
         {"retired", state == "completed" || state == "failed" || state == "not awaited"},
         {"collective", collective},
         {"mesh_dims", "tp"},
         {"tensor", tensor},
         {"dtype", "Float"},
         {"bytes", bytes},
         {"cause", {{"op", "aten::mm"}, {"argument", "mat2"}, {"module_path", ""}, {"implicit", true}}}});
    if (state == "not awaited") json_["entries"].back()["awaited"] = false;
    return *this;
  }
  // The ring has gone round: only the last n are left.
  Dump& forget_all_but(size_t n) {
    auto& entries = json_["entries"];
    while (entries.size() > n) entries.erase(entries.begin());
    return *this;
  }
  Json& json() { return json_; }
  FlightDump parsed() const { return parse_flight_dump("dump_" + std::to_string(rank_), json_.dump()); }

 private:
  int64_t rank_;
  Json json_;
  std::map<std::string, int64_t> last_;
};

FlightReport compare(const std::vector<Dump>& dumps, int64_t last = 10) {
  std::vector<FlightDump> parsed;
  for (const Dump& dump : dumps) parsed.push_back(dump.parsed());
  return compare_flights(parsed, {.last = last});
}

const std::vector<int64_t> kAll = {0, 1, 2, 3};

std::vector<Dump> four() { return {Dump(0), Dump(1), Dump(2), Dump(3)}; }

}  // namespace

TEST_CASE("flight report: ranks that agree") {
  auto dumps = four();
  for (auto& dump : dumps) dump.call(kAll, "all_gather", 10).call(kAll, "all_reduce", 20, "started", 128);
  const FlightReport report = compare(dumps);
  CHECK_FALSE(report.diverged);
  CHECK(report.text ==
        "4 dumps, of ranks 0-3\n"
        "\n"
        "group 0-3 (tp)\n"
        "  1  completed: 0-3  all_gather over tp for aten::mm, argument mat2: f32[8](S(0)) -> (R) @ mesh(tp=4), 64 B\n"
        "  2  started: 0-3    all_reduce over tp for aten::mm, argument mat2: f32[8](S(0)) -> (R) @ mesh(tp=4), 128 B\n"
        "\n"
        "No divergence: every call is the same on all ranks that remember it.\n");
}

TEST_CASE("flight report: a rank makes another call") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) {
    dumps[r].call(kAll, "all_gather", 10).call(kAll, r == 2 ? "all_gather" : "all_reduce", 20 + r, "started", 8, "");
  }
  const FlightReport report = compare(dumps);
  CHECK(report.diverged);
  CHECK_THAT(report.text,
             Contains("  2  started: 2      all_gather over tp for aten::mm, argument mat2: Float, 8 B\n"
                      "     started: 0,1,3  all_reduce over tp for aten::mm, argument mat2: Float, 8 B\n"));
  CHECK_THAT(report.text,
             EndsWith("First divergence: rank 2 made all_gather over tp for aten::mm, argument mat2: Float, 8 B, while "
                      "ranks 0,1,3 made all_reduce over tp for aten::mm, argument mat2: Float, 8 B, as call 2 over "
                      "group 0-3 (tp).\n"));
}

TEST_CASE("flight report: a call's cause and bytes are part of it") {
  for (const char* part : {"bytes", "tensor", "op", "argument"}) {
    CAPTURE(part);
    auto dumps = four();
    for (auto& dump : dumps) dump.call(kAll, "all_gather", 10);
    Json& entry = dumps[1].json()["entries"][0];
    if (std::string(part) == "bytes") {
      entry["bytes"] = 65;
    } else if (std::string(part) == "tensor") {
      entry["tensor"] = "f32[9](S(0)) -> (R) @ mesh(tp=4)";
    } else {
      entry["cause"][part] = "other";
    }
    CHECK_THAT(compare(dumps).text, Contains("First divergence: rank 1 made "));
  }
}

TEST_CASE("flight report: the module, which one rank of four names, is shown and not compared") {
  auto dumps = four();
  for (auto& dump : dumps) dump.call(kAll, "all_gather", 10);
  dumps[1].json()["entries"][0]["cause"]["module_path"] = "after layers.0";
  const std::string call = "all_gather over tp for aten::mm, argument mat2: f32[8](S(0)) -> (R) @ mesh(tp=4), 64 B, ";
  CHECK_FALSE(compare(dumps).diverged);
  CHECK_THAT(compare(dumps).text, Contains("  1  completed: 0-3  " + call + "after layers.0\n"));
  dumps[2].json()["entries"][0]["cause"]["module_path"] = "layers.0";
  CHECK_FALSE(compare(dumps).diverged);
  CHECK_THAT(compare(dumps).text, Contains(call + "after layers.0 or in layers.0\n"));
}

TEST_CASE("flight report: a rank that does not come, and where it is instead") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) {
    dumps[r].call(kAll, "all_gather", 10);
    if (r != 3) dumps[r].call(kAll, "all_reduce", 20, "started", 8, "");
  }
  dumps[3].call({2, 3}, "broadcast", 21, "started", 8, "");
  const FlightReport report = compare(dumps);
  CHECK(report.diverged);
  CHECK_THAT(report.text, Contains("     not reached: 3\n"));
  CHECK_THAT(
      report.text,
      EndsWith(
          "First divergence: rank 3 has not reached call 2 over group 0-3 (tp), all_reduce over tp for aten::mm, "
          "argument mat2: Float, 8 B (started: 0-2); its last one there is call 1, all_gather over tp for aten::mm, "
          "argument mat2: f32[8](S(0)) -> (R) @ mesh(tp=4), 64 B; it is in call 1 over group 2,3 (tp), broadcast over "
          "tp for aten::mm, argument mat2: Float, 8 B.\n"));
}

TEST_CASE("flight report: the first divergence is the first by time, in whichever group") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) dumps[r].call(kAll, r == 0 ? "all_gather" : "all_reduce", 50);
  for (int64_t r = 2; r < 4; ++r) dumps[r].call({2, 3}, r == 2 ? "permute" : "barrier", 40 + r);
  CHECK_THAT(compare(dumps).text, Contains("First divergence: ") && Contains(", as call 1 over group 2,3 (tp)."));
}

TEST_CASE("flight report: calls that a ring has forgotten are not missed") {
  auto dumps = four();
  for (auto& dump : dumps) {
    for (int i = 1; i <= 6; ++i) dump.call(kAll, "all_gather", 10 * i);
  }
  dumps[1].forget_all_but(2);
  const FlightReport report = compare(dumps, 3);
  CHECK_FALSE(report.diverged);
  CHECK_THAT(report.text,
             Contains("group 0-3 (tp), the last 3 calls\n  4  completed: 0,2,3  ") && Contains("     forgotten: 1\n"));
  // Even if it has forgotten all of them.
  dumps[1].forget_all_but(0);
  CHECK_FALSE(compare(dumps).diverged);
  // But what comes after its last call is.
  dumps[0].call(kAll, "barrier", 70, "started");
  CHECK_THAT(compare(dumps).text,
             Contains("First divergence: ranks 1-3 have not reached call 7 over group 0-3 (tp), barrier"));
}

TEST_CASE("flight report: a rank without a dump is suspect if the others wait") {
  std::vector<Dump> dumps = {Dump(0), Dump(1), Dump(3)};
  for (auto& dump : dumps) dump.call(kAll, "all_gather", 10);
  CHECK_FALSE(compare(dumps).diverged);
  for (auto& dump : dumps) dump.call(kAll, "all_reduce", 20, "started", 8, "");
  const FlightReport report = compare(dumps);
  CHECK(report.diverged);
  CHECK_THAT(report.text, Contains("group 0-3 (tp), no dump of rank 2\n"));
  CHECK_THAT(
      report.text,
      EndsWith(
          "First divergence: rank 2 left no dump, and the others are in call 2 over group 0-3 (tp), all_reduce over tp "
          "for aten::mm, argument mat2: Float, 8 B (started: 0,1,3).\n"));
}

TEST_CASE("flight report: failed and running calls are distinguished") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) dumps[r].call(kAll, "all_reduce", 20, r == 1 ? "failed" : "started");
  CHECK_THAT(compare(dumps).text, Contains("  1  failed: 1; started: 0,2,3  all_reduce"));
}

TEST_CASE("flight report: a rank is not in a call that nothing waits for, nor has it failed there") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) dumps[r].call(kAll, "all_gather", 20, "not awaited");
  for (int64_t r = 0; r < 4; ++r) {
    if (r != 2) dumps[r].call(kAll, "all_reduce", 30, "started");
  }
  const std::string text = compare(dumps).text;
  CHECK_THAT(text, Contains("  1  not awaited: 0-3  all_gather") && !Contains("it failed in"));
  CHECK_THAT(text, Contains("First divergence: rank 2 has not reached call 2 over group 0-3 (tp)"));
  CHECK_THAT(text, !Contains("it is in call"));
}

TEST_CASE("flight report: groups within one process are not compared") {
  std::vector<Dump> dumps = {Dump(0), Dump(1)};
  for (int64_t r = 0; r < 2; ++r) {
    dumps[r].call({0, 1}, r == 0 ? "all_gather" : "all_reduce", 10);
    dumps[r].json()["pg_config"]["0,1"]["in_process"] = true;
  }
  const FlightReport report = compare(dumps);
  CHECK_FALSE(report.diverged);
  CHECK_THAT(report.text, Contains("group 0,1, rank 0 (tp)\n  1  completed: 0  all_gather") &&
                              Contains("group 0,1, rank 1 (tp)\n  1  completed: 1  all_reduce"));
}

TEST_CASE("flight report: groups of the same ranks in two worlds are two groups") {
  auto dumps = four();
  for (int64_t r = 0; r < 4; ++r) {
    dumps[r].call(kAll, "all_gather", 10);
    if (r != 2) dumps[r].call(kAll, "barrier", 20, "started", 0, "", " of world 2");
  }
  CHECK_THAT(compare(dumps).text, Contains("rank 2 has not reached call 1 over group 0-3 of world 2 (tp), barrier"));
}

TEST_CASE("flight report: PyTorch's own dumps") {
  const auto dump = [](const char* sizes) {
    return R"({"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
               "pg_status": {"0": {"last_enqueued_collective": "1"}},
               "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1,
                            "profiling_name": "nccl:all_reduce", "time_created_ns": 5, "input_sizes": )" +
           std::string(sizes) + R"(, "input_dtypes": ["Float"], "state": "scheduled", "retired": false}]})";
  };
  const auto first = parse_flight_dump("nccl_trace_rank_0", dump("[[4]]"));
  CHECK(first.rank == 0);
  CHECK_FALSE(compare_flights({first, parse_flight_dump("nccl_trace_rank_1", dump("[[4]]"))}, {}).diverged);
  const FlightReport report = compare_flights({first, parse_flight_dump("nccl_trace_rank_1", dump("[[5]]"))}, {});
  CHECK_THAT(report.text,
             Contains("rank 0 made nccl:all_reduce [[4]] [\"Float\"], while rank 1 made nccl:all_reduce [[5]]"));
  CHECK_THROWS_WITH(parse_flight_dump("trace", dump("[[4]]")),
                    "trace: does not say its rank; let the file's name end with it");
}

TEST_CASE("flight report: this library's dump") {
  std::ostringstream os;
  dump_flight_recorder(os);
  const FlightDump dump = parse_flight_dump("dump", os.str());
  CHECK(dump.rank == 0);
  CHECK(dump.calls.empty());
}

TEST_CASE("flight report: bad input is one line with the file and the place") {
  const auto refused = [](const std::string& text, const auto& matcher) {
    CHECK_THROWS_WITH(parse_flight_dump("dump_1", text), matcher);
  };
  refused("", Contains("dump_1: is not JSON: "));
  refused("[]", Contains("dump_1: the file is not an object"));
  refused("{}", Contains("dump_1: the file lacks 'version'; is this a flight recorder's dump?"));
  refused(R"({"version": "1.0"})", Contains("dump_1: has version 1.0 of the format; 2.x can be read"));
  const auto broken = [](const std::function<void(Json&)>& change) {
    Dump dump(1);
    dump.call(kAll, "barrier", 1);
    change(dump.json());
    return dump.json().dump();
  };
  refused(broken([](Json& j) { j["entries"] = 3; }), Contains("dump_1: the file.entries is not a list"));
  refused(broken([](Json& j) { j["rank"] = "first"; }), Contains("dump_1: the file.rank is not a whole number"));
  refused(broken([](Json& j) { j["pg_config"]["0-3"]["ranks"] = "0..3"; }),
          Contains("pg_config['0-3'].ranks is not a list of ranks"));
  refused(broken([](Json& j) { j["pg_config"] = Json::array(); }), Contains("the file.pg_config is not an object"));
  refused(broken([](Json& j) {
            j["entries"][0]["process_group"] = {"5", "tp"};
          }),
          Contains("entries[0].process_group[0] is no group of pg_config"));
  refused(broken([](Json& j) { j["entries"][0]["process_group"] = {"5"}; }),
          Contains("entries[0].process_group is not a name and a description"));
  refused(broken([](Json& j) { j["entries"][0].erase("cause"); }), Contains("entries[0] lacks 'cause'"));
  refused(broken([](Json& j) { j["entries"][0]["state"] = 1; }), Contains("entries[0].state is not a text"));
  const std::string nested = std::string(30'000, '[') + std::string(30'000, ']');
  refused(R"({"version": "2.10", "entries": )" + nested + "}", Contains("dump_1: is nested deeper than any dump"));
  refused(broken([](Json& j) { j["rank"] = uint64_t{1} << 63; }),
          Contains("the file.rank is not a whole number of 64 bits"));
  refused(broken([](Json& j) { j["rank"] = INT64_MAX; }), Contains("the file.rank is not the number of a rank"));
  refused(broken([](Json& j) { j["pg_config"]["0-3"]["ranks"] = "[0, 9223372036854775807]"; }),
          Contains("pg_config['0-3'].ranks is not a list of ranks"));
  CHECK_THROWS_WITH(read_flight_dump("/no/such/file"), "/no/such/file: cannot be read: No such file or directory");
  CHECK_THROWS_WITH(compare({Dump(1), Dump(1)}), "dump_1 and dump_1 are both of rank 1");
}

}  // namespace dtensor::tools
