// Exchanges over Gloo between ranks that are threads of this process.
#include "processes/c10d/run_exchange.h"

#include <ATen/ops/zeros_like.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "comm/comm_work.h"
#include "processes/c10d/group_links.h"
#include "tests/processes/ranks_of_exchange.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr int64_t kRanks = 3;

// Another backend, and how often each of its two collectives was called.
struct CountingBackend final : c10d::Backend {
  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> to)
      : c10d::Backend(to->getRank(), to->getSize()), inner(std::move(to)) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    ++all_gathers;
    return inner->_allgather_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& options) override {
    ++all_to_alls;
    return inner->alltoall_base(output, input, output_sizes, input_sizes, options);
  }

  const c10::intrusive_ptr<c10d::Backend> inner;
  int all_gathers = 0, all_to_alls = 0;
};

// What rank `r` got, and how often its backend was called.
struct ResultsOfRank {
  at::Tensor waited_for, went_on;  // results
  int all_gathers = 0, all_to_alls = 0;
  std::string error;
};

// Two calls of rank `r`: one that waits, and one that goes on while the program overwrites its input.
void run_on(int64_t r, const c10::intrusive_ptr<c10d::Store>& store, const RanksOfExchange& ranks,
            ResultsOfRank& outcome) {
  const c10::Device cpu(c10::kCPU);
  const auto job = std::make_shared<Job>(store, r, kRanks, std::chrono::milliseconds(20000));
  job->one_host();
  GroupLinks links(job, "gloo", cpu, {});
  const auto calls = std::make_shared<CallsUnderWay>(job);
  CommCall call;
  call.group = &ranks.group;
  call.ranks = {r};
  Link& link = links.of(call, Collective::kAllGather);
  const auto counting = c10::make_intrusive<CountingBackend>(link.backend);
  link.backend = counting;
  const auto run = [&](int64_t number) {
    const at::Tensor output = at::zeros_like(ranks.outputs[r][0]);
    std::unique_lock numbering(link.numbering);
    run_exchange({calls, cpu, link, call, Collective::kAllGather, number, 0, {}, std::move(numbering)},
                 ranks.messages_of(r), {ranks.inputs[r]}, {{output}}, /*may_all_gather=*/true);
    return output;
  };
  outcome.waited_for = run(1);
  std::shared_ptr<CommWork> work;
  call.work = &work;
  outcome.went_on = run(2);
  ranks.inputs[r][0].fill_(-1);
  work->wait();
  outcome.all_gathers = counting->all_gathers;
  outcome.all_to_alls = counting->all_to_alls;
}

TEST_CASE("run exchange: an all-gather of equal parts is the backend's own, of others an alltoall", "[processes]") {
  const std::vector<int64_t> sizes = GENERATE(std::vector<int64_t>{5, 5, 5}, std::vector<int64_t>{5, 5, 6});
  CAPTURE(sizes);
  const RanksOfExchange ranks = gathering_ranks(sizes);
  const RankPieces expected = ranks.expected();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<ResultsOfRank> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      try {
        run_on(r, store, ranks, outcomes[r]);
      } catch (const std::exception& e) {
        outcomes[r].error = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool are_equal = sizes[0] == sizes[2];
  for (int64_t r = 0; r < kRanks; ++r) {
    CAPTURE(r);
    const ResultsOfRank& outcome = outcomes[r];
    REQUIRE(outcome.error.empty());
    CHECK(outcome.all_gathers == (are_equal ? 2 : 0));
    CHECK(outcome.all_to_alls == (are_equal ? 0 : 2));
    CHECK(at::equal(outcome.waited_for, expected[r][0]));
    CHECK(at::equal(outcome.went_on, expected[r][0]));
  }
}

}  // namespace
}  // namespace dtensor
