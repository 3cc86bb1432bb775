// Ranks that answer nothing, something else, or half of it when they are asked: what is said of each, and that the
// others' answers are shown all the same.
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "processes/job/host_process.h"
#include "processes/job/status_server.h"
#include "processes/job/status_text.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/time_limits.h"
#include "tools/flight/attach.h"
#include "tools/flight/live_report.h"

namespace dtensor::tools {
using namespace internal;

namespace {

using Catch::Contains;
using std::chrono::milliseconds;

std::string good_answer(int64_t rank, int64_t size) {
  const std::string number = std::to_string(rank);
  return R"({"rank":)" + number + R"(,"size":)" + std::to_string(size) +
         R"(,"waits_in":"call 5: all_reduce over tp, 24 B","waited_ms":1200,"last":["call 5"],"failure":""})" + "\n" +
         R"({"version":"2.10","rank":)" + number + R"(,"pg_config":{},"pg_status":{},"entries":[]})" + kStatusEnd;
}

// A job whose ranks are all this process.
class Job {
 public:
  explicit Job(const std::vector<std::function<std::string()>>& answers) {
    for (size_t r = 0; r < answers.size(); ++r) {
      const RankAddress address{"attach" + std::to_string(::getpid()), static_cast<int64_t>(r),
                                static_cast<int64_t>(answers.size()), ::getpid(), process_start(::getpid())};
      servers_.push_back(std::make_unique<StatusServer>(address, answers[r]));
    }
  }
  LiveJob asked(milliseconds patience = milliseconds(10000)) const {
    const std::vector<LiveJob> jobs = attach(std::to_string(::getpid()), patience);
    REQUIRE(jobs.size() == 1);
    REQUIRE(jobs[0].ranks.size() == servers_.size());
    return jobs[0];
  }

 private:
  std::vector<std::unique_ptr<StatusServer>> servers_;
};

TEST_CASE("attach: one rank's bad answer is that rank's alone", "[tools][flight]") {
  const std::string good = good_answer(1, 2);
  const std::string end = kStatusEnd;
  const std::string first_line = good.substr(0, good.find('\n'));
  struct Row {
    std::string answer, said;
  };
  const std::vector<Row> rows = {
      {good.substr(0, good.size() - end.size()), "cut off"},
      {good.substr(0, good.size() / 2), "cut off"},
      {good.substr(0, good.size() - 1), "cut off"},
      {"hello" + end, "cannot be read, perhaps of another version"},
      {end, "cannot be read, perhaps of another version"},
      {R"({"rank":1})" + end, "cannot be read, perhaps of another version"},
      {R"({"waits_in":5,"waited_ms":"long","last":{},"failure":[]})" + end, "perhaps of another version"},
      {first_line + end, "is not JSON"},
      {first_line + "\n" + std::string(200000, '[') + end, "nested deeper than any dump"},
      {first_line + "\n" + R"({"version":"9.0","rank":1,"pg_config":{},"entries":[]})" + end, "9.0 of the format"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.answer.substr(0, 300));
    const Job job({[] { return good_answer(0, 2); }, [&] { return row.answer; }});
    const LiveJob asked = job.asked();
    CHECK(asked.ranks[0].answer.has_value());
    CHECK_FALSE(asked.ranks[1].answer.has_value());
    CHECK_THAT(asked.ranks[1].unreadable, Contains(row.said));
    const LiveReport report = describe_live_job(asked, {}, 3);
    CHECK_FALSE(report.healthy);
    CHECK_THAT(report.text, Contains("waits for 1.2 s in call 5: all_reduce over tp, 24 B"));
    CHECK_THAT(report.text, Contains("Rank 1 answered something that cannot be read: "));
    CHECK(report.text.size() < 4000);
  }
}

TEST_CASE("attach: a rank that answers nothing, or too late, does not hold up the tool", "[tools][flight]") {
  std::promise<void> asked_enough;
  const std::shared_future<void> go_on = asked_enough.get_future().share();
  const Job job({[] { return good_answer(0, 3); }, [] { return std::string(); },
                 [=] {
                   go_on.wait();
                   return std::string("too late");
                 }});
  const auto begin = std::chrono::steady_clock::now();
  const LiveJob asked = job.asked(milliseconds(3000));
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(3000) + testing::kAtOnce);
  asked_enough.set_value();
  CHECK(asked.ranks[0].answer.has_value());
  for (const size_t r : {1, 2}) {
    CHECK_FALSE(asked.ranks[r].answer.has_value());
    CHECK(asked.ranks[r].unreadable.empty());
  }
  const LiveReport report = describe_live_job(asked, {}, 3);
  CHECK_FALSE(report.healthy);
  CHECK_THAT(report.text, Contains("Rank 1 does not answer: ") && Contains("Rank 2 does not answer: "));
}

}  // namespace
}  // namespace dtensor::tools
