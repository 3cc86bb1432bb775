// Catch2's main(), and a listener that closes the output with one line for .ci/run to add up:
//   [dtensor] 3 passed, 0 failed, 1 skipped
// Of several processes that run the same cases, rank 0 prints it.
// Catch2 v2 has no SKIP: a test case skips by `WARN("SKIPPED: why"); return;`.
#define CATCH_CONFIG_RUNNER  // of Catch2 2.13: its own code goes into this source
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "tests/testing/catch2.h"

namespace {

class ClosingLine : public Catch::TestEventListenerBase {
 public:
  using Catch::TestEventListenerBase::TestEventListenerBase;
  // The result of assertionEnded(): whether messages were used up (2.13), or void (3).
  using Handled = decltype(std::declval<Catch::TestEventListenerBase&>().assertionEnded(
      std::declval<const Catch::AssertionStats&>()));

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Catch::TestEventListenerBase::testCaseStarting(info);
    skip_ = false;
  }

  Handled assertionEnded(const Catch::AssertionStats& stats) override {
    const auto& result = stats.assertionResult;
    const std::string message(result.getMessage());
    if (result.getResultType() == Catch::ResultWas::Warning && message.rfind("SKIPPED", 0) == 0) skip_ = true;
    return Handled(false);
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    Catch::TestEventListenerBase::testCaseEnded(stats);
    if (!stats.totals.testCases.allOk()) {
      ++failed_;
    } else if (skip_) {
      ++skipped_;
    } else {
      ++passed_;
    }
  }

  void testRunEnded(const Catch::TestRunStats&) override {
    // The reporter writes through std::cout: keep the order.
    std::cout << std::flush;
    const char* rank = std::getenv("RANK");
    if (rank != nullptr && std::strcmp(rank, "0") != 0) return;
    std::printf("[dtensor] %d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    std::fflush(stdout);
  }

 private:
  bool skip_ = false;
  int passed_ = 0;
  int failed_ = 0;
  int skipped_ = 0;
};

CATCH_REGISTER_LISTENER(ClosingLine)

}  // namespace

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
