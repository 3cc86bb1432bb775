// Work divided among LibTorch's threads.
#include "comm/parallel_for.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/catch_torch.h"
#include "tests/testing/intra_op_threads.h"

namespace dtensor {
using namespace internal;
using testing::IntraOpThreads;

TEST_CASE("parallel_for calls its function once for each element, in ranges of at least a grain, on several threads") {
  const IntraOpThreads four(4);
  for (const auto& [from, end, grain] : std::vector<std::array<int64_t, 3>>{
           {0, 4, 1}, {0, 1000, 1}, {5, 12, 3}, {-3, 4, 1}, {7, 8, 1}, {0, 100, 0}, {0, 9, 10}, {3, 3, 1}, {4, 3, 1}}) {
    CAPTURE(from, end, grain);
    const int64_t begin = from;  // which a lambda may refer to
    std::vector<std::atomic<int>> calls(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::vector<int64_t> sizes;
    parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) ++calls[i - begin];
      const std::lock_guard<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
      sizes.push_back(last - first);
    });
    for (const auto& count : calls) CHECK(count == 1);
    const int64_t most = std::min<int64_t>(4, std::max<int64_t>(end - begin, 0) / std::max<int64_t>(grain, 1));
    CHECK(sizes.size() == static_cast<size_t>(end > begin ? std::max<int64_t>(most, 1) : 0));
    CHECK(threads.size() == sizes.size());
    if (sizes.size() > 1) CHECK(*std::min_element(sizes.begin(), sizes.end()) >= grain);
  }
}

TEST_CASE("parallel_for within another one, and with one thread, is a single call") {
  std::atomic<int> inner{0};
  const auto run = [&] {
    parallel_for(0, 4, 1, [&](int64_t, int64_t) { parallel_for(0, 100, 1, [&](int64_t, int64_t) { ++inner; }); });
  };
  {
    const IntraOpThreads four(4);
    run();
    CHECK(inner.exchange(0) == 4);
  }
  const IntraOpThreads one(1);
  run();
  CHECK(inner == 1);
}

TEST_CASE("parallel_for throws what a call threw, and the next one works") {
  const IntraOpThreads four(4);
  const auto fail = [](int64_t begin, int64_t) { TORCH_CHECK_INDEX(begin != 2, "element 2"); };
  CHECK_THROWS_AS(parallel_for(0, 4, 1, fail), c10::IndexError);
  std::atomic<int64_t> sum{0};
  parallel_for(0, 4, 1, [&](int64_t begin, int64_t) { sum += begin; });
  CHECK(sum == 6);
}

}  // namespace dtensor
