// RapidCheck inside Catch2:
//
//   REQUIRE(holds("reversing twice changes nothing", 2000, [] { ... RC_ASSERT(...); }));
//
// RC_PARAMS chooses the seed (.bazelrc) and may ask for more cases.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>

#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"

namespace dtensor::testing {

// True if `property` holds for `cases` cases, in the short form a third of them; else the shrunk counterexample is in
// the test's messages.
template <typename Property>
bool holds(const std::string& id, int cases, Property&& property) {
  if (!long_tests()) cases = (cases + 2) / 3;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::max(params.maxSuccess, cases);
  rc::detail::TestMetadata metadata;
  metadata.id = id;
  const rc::detail::TestResult result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  rc::detail::SuccessResult success;
  if (result.match(success)) {
    std::printf("%s: %d cases, RC_PARAMS=seed=%llu\n", id.c_str(), success.numSuccess,
                static_cast<unsigned long long>(params.seed));
    return success.numSuccess >= cases;
  }
  rc::detail::FailureResult failure;
  if (result.match(failure)) {
    // Not the single draws: properties log what they made of them.
    UNSCOPED_INFO(id << " fails after " << failure.numSuccess << " cases\n" << failure.description);
  } else {
    std::ostringstream os;
    rc::detail::printResultMessage(result, os);
    UNSCOPED_INFO(os.str());
  }
  return false;
}

// In [low, high], all equally likely from the first case on; shrinks to `low`.
inline int64_t draw(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

}  // namespace dtensor::testing
