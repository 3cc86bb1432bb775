// Where tables go: against every other plan where they are few, and on facts whose answer is known.
#include "sharded/table_search.h"

#include <optional>
#include <random>

#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

ParameterFacts table(int64_t rows, int64_t columns, double ids = 1) {
  return {"table", {rows, columns}, 4, true, ids, 1};
}
ParameterFacts dense(Shape sizes) { return {"dense", std::move(sizes), 4}; }

struct Best {
  int64_t memory = 0;
  std::optional<double> seconds;  // of plans within the budget
};

// Every combination of choices.
Best best_of_all(const TableSearch& search, const std::vector<ParameterFacts>& facts) {
  Best best{std::numeric_limits<int64_t>::max(), {}};
  std::vector<std::vector<ShardingChoice>> possible;
  for (const auto& f : facts) possible.push_back(search.possible(f));
  std::vector<size_t> at(facts.size());
  while (true) {
    std::vector<ShardingChoice> choices;
    for (size_t i = 0; i < facts.size(); ++i) choices.push_back(possible[i][at[i]]);
    const StepEstimate e = search.estimate(facts, choices);
    best.memory = std::min(best.memory, e.largest());
    if (e.largest() <= search.budget && (!best.seconds || e.seconds < *best.seconds)) best.seconds = e.seconds;
    size_t i = 0;
    while (i < facts.size() && ++at[i] == possible[i].size()) at[i++] = 0;
    if (i == facts.size()) return best;
  }
}

TEST_CASE("no exhaustive plan is much cheaper, and a plan is found if there is one", "[planner]") {
  std::mt19937 random(5);
  const auto pick = [&](std::vector<int64_t> from) { return from[random() % from.size()]; };
  int found = 0, refused = 0, best = 0;
  for (int round = 0; round < 150; ++round) {
    std::vector<ParameterFacts> facts;
    int64_t bytes = 0;
    const int64_t count = pick({1, 2, 3, 4, 5});
    for (int64_t i = 0; i < count; ++i) {
      const auto ids = static_cast<double>(pick({1, 3, 100}));  // one by one: compilers order arguments as they like
      const int64_t columns = pick({1, 4, 16, 64}), rows = pick({3, 50, 400, 5000});
      facts.push_back(table(rows, columns, ids));
      bytes += facts.back().sizes[0] * facts.back().sizes[1] * 4;
    }
    if (round % 3 == 0) facts.push_back(dense({8, 8})), bytes += 256;
    TableSearch search;
    search.ranks = pick({2, 3});
    search.samples = static_cast<double>(pick({1, 64, 4096}));
    search.budget = static_cast<int64_t>(static_cast<double>(bytes) / static_cast<double>(search.ranks) *
                                         static_cast<double>(pick({90, 101, 120, 170, 400})) / 100);
    const Best all = best_of_all(search, facts);
    const auto choices = search.best(facts);
    if (!choices) {
      ++refused;
      // It may be missed where only the very last bytes fit.
      CHECK((!all.seconds || static_cast<double>(search.budget) < 1.05 * static_cast<double>(all.memory)));
      CHECK(static_cast<double>(search.estimate(facts, search.smallest(facts)).largest()) <=
            1.05 * static_cast<double>(all.memory));
      continue;
    }
    ++found;
    const StepEstimate e = search.estimate(facts, *choices);
    REQUIRE(all.seconds.has_value());
    CHECK(e.largest() <= search.budget);
    CHECK(e.seconds <= 1.15 * *all.seconds);
    best += e.seconds <= 1.0001 * *all.seconds;
  }
  CHECK(found > 60);
  CHECK(refused > 5);
  CHECK(best > found * 9 / 10);
}

TEST_CASE("estimates equal the formulas of the classical layouts", "[planner]") {
  TableSearch search;
  search.ranks = 4;
  search.samples = 8;
  const std::vector<ParameterFacts> one = {table(100, 16, 2)};
  const auto received = [&](const ShardingChoice& c) { return search.estimate(one, {c}).received; };
  const double n = 4, b = 8, row = 16 * 4, ids = (n - 1) * b * 2 * 8;
  CHECK(received({ShardingKind::kReplicated}) == Approx(2 * 100 * row * (n - 1) / n));
  CHECK(received({ShardingKind::kRowWise}) == Approx(ids + 2 * (n - 1) * b * row));
  CHECK(received({ShardingKind::kColumnWise}) == Approx(ids + 2 * (n - 1) * b * row / n));
  CHECK(received({ShardingKind::kTableWise, 2}) == Approx(ids + b * row + (n - 1) * b * row));
  CHECK(search.estimate(one, {{ShardingKind::kRowWise}}).memory == std::vector<int64_t>(4, 25 * 64));
  CHECK(search.estimate(one, {{ShardingKind::kTableWise, 2}}).memory == std::vector<int64_t>{0, 0, 6400, 0});
  search.memory_factor = 4;
  CHECK(search.estimate(one, {{ShardingKind::kReplicated}}).largest() == 4 * 6400);
  // Four tables, one on each rank: rows that are exchanged are those of one cut by columns.
  const std::vector<ParameterFacts> four(4, table(100, 16, 2));
  std::vector<ShardingChoice> owners, columns(4, {ShardingKind::kColumnWise});
  for (int64_t r = 0; r < 4; ++r) owners.push_back({ShardingKind::kTableWise, r});
  CHECK(search.estimate(four, owners).received == Approx(search.estimate(four, columns).received));
}

TEST_CASE("small tables are replicated, large ones sharded, and memory is balanced", "[planner]") {
  TableSearch search;
  search.ranks = 4;
  search.samples = 1024;
  search.budget = 1 << 20;
  std::vector<ParameterFacts> facts = {table(10, 16), dense({32, 32})};
  for (int i = 0; i < 8; ++i) facts.push_back(table(5000, 16));
  const auto choices = search.best(facts);
  REQUIRE(choices.has_value());
  CHECK((*choices)[0].kind == ShardingKind::kReplicated);
  CHECK((*choices)[1].kind == ShardingKind::kReplicated);
  const StepEstimate e = search.estimate(facts, *choices);
  CHECK(*std::min_element(e.memory.begin(), e.memory.end()) == e.largest());
  // A table that no rank has room for.
  facts = {table(40000, 16)};
  const auto large = search.best(facts);
  REQUIRE(large.has_value());
  CHECK((*large)[0].kind == ShardingKind::kColumnWise);
  // Long lists of ids of narrow rows: a quarter of a row takes a cache line as well.
  facts = {table(40000, 16, 200)};
  CHECK(search.best(facts)->at(0).kind == ShardingKind::kRowWise);
  search.min_columns = 8;  // 4 columns a rank are too few
  facts = {table(40000, 16)};
  CHECK(search.best(facts)->at(0).kind == ShardingKind::kRowWise);
}

TEST_CASE("a search gives the same choice every time, with many ranks, too", "[planner]") {
  TableSearch search;
  search.ranks = 64;
  search.samples = 256;
  search.budget = 3 << 20;
  std::vector<ParameterFacts> facts;
  for (int64_t i = 0; i < 60; ++i)
    facts.push_back(table(1000 + 517 * i, 16 + 8 * (i % 5), static_cast<double>(1 + i % 7)));
  const auto first = search.best(facts);
  REQUIRE(first.has_value());
  CHECK(search.best(facts) == first);
  CHECK(search.estimate(facts, *first).largest() <= search.budget);
}

}  // namespace
}  // namespace dtensor::sharded
