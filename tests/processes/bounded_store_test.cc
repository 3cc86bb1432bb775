// Calls of a store that does not answer, and a job with such a store.
#include "processes/job/bounded_store.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "processes/job/job.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/time_limits.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{2000};

// One for all, whose calls do not come back while it is frozen.
class FreezingStore final : public c10d::PrefixStore {
 public:
  FreezingStore() : PrefixStore("p", c10::make_intrusive<c10d::HashStore>()) {}
  std::atomic<bool> frozen{false};

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::intrusive_ptr<FreezingStore>::reclaim_copy(this); }
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    thaw();
    PrefixStore::set(key, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    thaw();
    return PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    thaw();
    return PrefixStore::check(keys);
  }

 private:
  void thaw() const {
    while (frozen) std::this_thread::sleep_for(milliseconds(2));
  }
};

milliseconds since(Clock::time_point begin) { return std::chrono::duration_cast<milliseconds>(Clock::now() - begin); }

TEST_CASE("bounded store: keys and values are those of the store", "[processes][job]") {
  const auto inner = c10::make_intrusive<FreezingStore>();
  const auto store = make_bounded_store(inner, kTimeout);
  CHECK(make_bounded_store(store, milliseconds(1)) == store);
  store->set("a", std::string("1"));
  CHECK(store->get_to_str("a") == "1");
  CHECK(store->add("n", 3) == 3);
  CHECK(store->add("n", 4) == 7);
  CHECK(store->check({"a", "n"}));
  CHECK_FALSE(store->check({"a", "b"}));
  CHECK(store->compareSet("c", std::string(), std::string("first")) == "first");
  CHECK(store->compareSet("c", std::string(), std::string("second")) == "first");
  CHECK(store->deleteKey("a"));
  CHECK_FALSE(store->check({"a"}));
  store->under("x/")->set("b", std::string("2"));
  CHECK(inner->get_to_str("x//b") == "2");
}

TEST_CASE("bounded store: get and wait wait for their keys, no longer than the deadline", "[processes][job]") {
  const auto store = make_bounded_store(c10::make_intrusive<FreezingStore>(), kTimeout);
  std::thread later([other = store->under("")] {
    std::this_thread::sleep_for(milliseconds(100));
    other->set("late", std::string("here"));
  });
  CHECK(store->get_to_str("late") == "here");
  later.join();
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(store->get("never"), Contains("no rank has set never at the store within 2 s"));
  CHECK_THROWS_WITH(store->wait({"never"}, milliseconds(50)), Contains("no rank has set never"));
  CHECK(since(begin) >= kTimeout);
  CHECK(since(begin) < kTimeout + testing::kAtOnce);
}

TEST_CASE("bounded store: a call that does not return is an error, and later ones fail at once, until it returns",
          "[processes][job]") {
  const auto inner = c10::make_intrusive<FreezingStore>();
  const auto store = make_bounded_store(inner, kTimeout);
  inner->frozen = true;
  auto begin = Clock::now();
  CHECK_THROWS_WITH(store->add("n", 1), Contains("has not answered within 2 s"));
  CHECK(since(begin) >= kTimeout);
  begin = Clock::now();
  for (int i = 0; i < 100; ++i) CHECK_THROWS_WITH(store->check({"n"}), Contains("has not answered"));
  CHECK(since(begin) < testing::kAtOnce);  // not 100 times kTimeout
  inner->frozen = false;
  const auto answers = [&] {
    try {
      return store->check({"n"});
    } catch (const c10::Error&) {
      return false;
    }
  };
  const auto until = Clock::now() + testing::kAtOnce;
  while (!answers() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
  CHECK(store->add("n", 1) == 2);  // the first was made, too
  inner->frozen = true;
  CHECK_THROWS_WITH(store->set("k", std::string("v")), Contains("has not answered"));
  begin = Clock::now();
  make_bounded_store(inner, kTimeout).reset();  // while the thread of `store` is in a call
  CHECK(since(begin) < testing::kAtOnce);
  inner->frozen = false;
}

TEST_CASE("bounded store: a failed check fails its calls, also waiting ones", "[processes][job]") {
  std::atomic<bool> good{true};
  const auto store = make_bounded_store(c10::make_intrusive<FreezingStore>(), milliseconds(20000))->under("", [&] {
    TORCH_CHECK(good, "the file was removed");
  });
  CHECK(store->add("n", 1) == 1);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    good = false;
  });
  const auto begin = Clock::now();
  CHECK_THROWS_WITH(store->get("never"), Contains("the file was removed"));
  CHECK(since(begin) < testing::kAtOnce);
  later.join();
}

TEST_CASE("bounded store: in a fork its calls fail and its destructor does not wait", "[processes][job]") {
  auto store = make_bounded_store(c10::make_intrusive<FreezingStore>(), milliseconds(20000));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(testing::kAtOnce.count());
    bool threw = false;
    try {
      store->add("n", 1);
    } catch (const c10::Error&) {
      threw = true;
    }
    store.reset();
    ::_exit(threw ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

// As on a full disk. FileStore's destructor writes, too, and what it throws cannot be caught.
TEST_CASE("bounded store: a file that cannot be written any more is an error, and does not end the process",
          "[processes][job]") {
  const testing::TempFolder folder;
  auto file = c10::make_intrusive<c10d::FileStore>(folder / "store", 1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(testing::kAtOnce.count());
    auto store = make_bounded_store(std::move(file), kTimeout);
    auto view = store->under("prefix/");
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{1, 1};
    ::setrlimit(RLIMIT_FSIZE, &full);
    std::string error;
    try {
      store->add("n", 1);
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    }
    view.reset();
    store.reset();
    ::_exit(error.find("from the store at which the ranks meet") == error.npos ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("job: with a frozen store waits end at the deadline, and so does the job's end", "[processes][job]") {
  const auto inner = c10::make_intrusive<FreezingStore>();
  constexpr milliseconds kDeadline{3000};
  auto first = std::make_unique<Job>(inner, 0, 2, kDeadline), second = std::make_unique<Job>(inner, 1, 2, kDeadline);
  CHECK(first->one_host());
  CHECK(second->one_host());
  inner->frozen = true;
  auto begin = Clock::now();
  CHECK_THROWS_WITH(first->wait_until({"0,1", 1, "a call"}, {0, 1}, [] { return false; }),
                    Contains("a call: not done within 3 s"));
  CHECK(since(begin) < testing::kAtOnce);
  begin = Clock::now();
  CHECK_THROWS_WITH(second->store()->get("key"), Contains("has not answered within 3 s"));
  CHECK(since(begin) < testing::kAtOnce);
  begin = Clock::now();
  second.reset();
  first.reset();
  CHECK(since(begin) < testing::kAtOnce);
  inner->frozen = false;
}

// A rank listens as long as it lives: what fails once, or often, may answer again.
TEST_CASE("job: after a frozen store has thawed, failures are detected", "[processes][job]") {
  const auto inner = c10::make_intrusive<FreezingStore>();
  Job first(inner, 0, 2, milliseconds(1000)), second(inner, 1, 2, milliseconds(1000));
  inner->frozen = true;
  std::this_thread::sleep_for(milliseconds(8000));  // more than five attempts
  inner->frozen = false;
  first.fail("it has had enough");
  const auto until = Clock::now() + testing::kAtOnce;
  while (!second.failed() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
  CHECK_THROWS_WITH(second.check(), Contains("rank 0 failed: it has had enough"));
}

}  // namespace
}  // namespace dtensor
