#include "propagation/strategy_cache.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <thread>

#include "propagation/propagate.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Contains;

CacheKey key(uint64_t a, uint64_t b = 0) { return {a, b, 7}; }

// Of a call of this operator.
std::shared_ptr<const Decision> plan(const char* op = "aten::relu") {
  auto decision = std::make_shared<Decision>();
  decision->call = std::make_shared<const OpCall>(c10::Dispatcher::singleton().findSchemaOrThrow(op, ""));
  return decision;
}

TEST_CASE("strategy cache: finds inserted decisions, and counts") {
  StrategyCache cache;
  auto p = plan(), q = plan();
  CHECK(cache.find(key(1)) == nullptr);
  cache.insert(key(1), p);
  cache.insert(key(1, 1), q);
  CHECK(cache.find(key(1)) == p);
  CHECK(cache.find(key(1)) == p);
  CHECK(cache.find(key(1, 1)) == q);
  CHECK(cache.find(key(2)) == nullptr);
  CHECK(cache.find({1, 0}) == nullptr);  // a prefix of a key is another key
  CacheStats stats = cache.stats();
  CHECK(stats.hits == 3);
  CHECK(stats.misses == 3);
  CHECK(stats.evictions == 0);
  CHECK(stats.size == 2);
  CHECK(stats.capacity == StrategyCache::kDefaultCapacity);

  cache.reset_counts();
  CHECK(cache.stats().hits == 0);
  CHECK(cache.stats().misses == 0);
  CHECK(cache.stats().size == 2);
  cache.find(key(1));
  cache.clear();
  CHECK(cache.stats().hits == 0);
  CHECK(cache.stats().size == 0);
  CHECK(cache.find(key(1)) == nullptr);
  CHECK(cache.dump().empty());
}

TEST_CASE("strategy cache: a second insertion replaces the decision") {
  StrategyCache cache;
  auto first = plan(), second = plan("aten::exp");
  cache.insert(key(1), first);
  cache.insert(key(1), second);
  CHECK(cache.find(key(1)) == second);
  CHECK(cache.stats().size == 1);
  CHECK(first.use_count() == 1);
  CHECK(cache.dump() == "1 aten::exp()\n");
}

TEST_CASE("strategy cache: the least recently used are evicted first") {
  StrategyCache cache;
  cache.set_capacity(3);
  const char* ops[] = {"aten::relu", "aten::exp", "aten::sin"};
  for (uint64_t i = 0; i < 3; ++i) cache.insert(key(i), plan(ops[i]));
  CHECK(cache.dump() == "0 aten::sin()\n0 aten::exp()\n0 aten::relu()\n");
  cache.find(key(0));
  cache.find(key(0));
  cache.insert(key(3), plan("aten::cos"));
  CHECK(cache.dump() == "0 aten::cos()\n2 aten::relu()\n0 aten::sin()\n");
  CHECK(cache.find(key(1)) == nullptr);
  CHECK(cache.stats().evictions == 1);

  cache.set_capacity(1);
  CHECK(cache.dump() == "0 aten::cos()\n");
  CHECK(cache.stats().evictions == 3);
  CHECK(cache.stats().capacity == 1);
  cache.set_capacity(0);
  cache.insert(key(9), plan());
  CHECK(cache.stats().size == 0);
  CHECK(cache.find(key(9)) == nullptr);
}

TEST_CASE("strategy cache: an evicted decision lives as long as its users") {
  StrategyCache cache;
  auto p = plan();
  std::weak_ptr<const Decision> weak = p;
  cache.insert(key(1), std::move(p));
  auto user = cache.find(key(1));
  cache.set_capacity(0);
  CHECK_FALSE(weak.expired());
  user.reset();
  CHECK(weak.expired());
}

TEST_CASE("strategy cache: while frozen, a new call is an error that names it") {
  StrategyCache cache;
  cache.insert(key(1), plan());
  CHECK_FALSE(cache.frozen());
  cache.freeze();
  CHECK(cache.frozen());
  CHECK(cache.find(key(1)) != nullptr);
  CHECK(cache.find(key(2)) == nullptr);
  CHECK_THROWS_WITH(cache.insert(key(2), plan("aten::mm")), Contains("frozen") && Contains("aten::mm()"));
  CHECK_THROWS_AS(cache.check_open(*plan()->call), c10::Error);
  CHECK(cache.stats().size == 1);
  CHECK_NOTHROW(cache.insert_derived(key(3), plan()));
  CHECK(cache.stats().size == 2);
  CHECK_NOTHROW(cache.insert(key(1), plan()));
  cache.freeze(false);
  CHECK_NOTHROW(cache.insert(key(2), plan()));
}

TEST_CASE("strategy cache: while frozen, a derived decision evicts no other") {
  StrategyCache cache;
  cache.set_capacity(2);
  for (uint64_t i = 0; i < 2; ++i) cache.insert(key(i), plan());
  cache.freeze();
  cache.insert_derived(key(2), plan());
  CHECK(cache.find(key(0)) != nullptr);
  CHECK(cache.find(key(2)) == nullptr);
  cache.freeze(false);
  cache.insert_derived(key(2), plan());
  CHECK(cache.find(key(2)) != nullptr);
  CHECK(cache.stats().size == 2);
}

TEST_CASE("strategy cache: a decision keeps neither generators nor the caller's lists") {
  const DeviceMesh mesh(World::local(2), {2});
  const SpecPtr spec = Spec::get(mesh, {Shard(0)}, {4, 4}, at::kFloat);
  c10::List<int64_t> dims({1});
  const OpCall call = OpCall::make("aten::sum.dim_IntList", {spec}, {dims, false, c10::IValue()});
  const auto kept = to_keep(call);
  dims.push_back(0);
  CHECK(kept->args[1].toIntList().size() == 1);
  CHECK(kept->inputs == call.inputs);
  const OpCall drawn = OpCall::make("aten::uniform_", {spec}, {0., 1., at::make_generator<at::CPUGeneratorImpl>()});
  CHECK(drawn.args.back().isGenerator());
  CHECK(to_keep(drawn)->args.back().isNone());
}

TEST_CASE("strategy cache: many threads") {
  StrategyCache cache;
  cache.set_capacity(64);
  constexpr uint64_t kThreads = 4, kRounds = 4000;
  std::vector<std::shared_ptr<const Decision>> plans;
  for (int i = 0; i < 100; ++i) plans.push_back(plan());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        const uint64_t k = (i * 31 + t * 17) % plans.size();
        auto found = cache.find(key(k));
        if (!found) {
          cache.insert(key(k), plans[k]);
        } else if (found != plans[k]) {
          ++wrong;
        }
        if (i % 500 == 0) cache.dump();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CacheStats stats = cache.stats();
  CHECK(stats.hits + stats.misses == kThreads * kRounds);
  CHECK(stats.size == 64);
  CHECK(stats.misses >= stats.size + stats.evictions);
}

}  // namespace
}  // namespace dtensor
