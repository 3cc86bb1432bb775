#include "placement/placement.h"

#include <set>
#include <sstream>

#include "absl/hash/hash.h"
#include "placement/parse_placements.h"
#include "tests/testing/catch2.h"

namespace dtensor {
using namespace internal;

namespace {

struct Text {
  Placement placement;
  std::string text;
};

// Every kind, and for each field of a kind two values that differ only in it.
const std::vector<Text>& texts() {
  static const auto* const all = new std::vector<Text>{
      {Replicate(), "R"},
      {Shard(0), "S(0)"},
      {Shard(12), "S(12)"},
      {Shard(-1), "S(-1)"},
      {StridedShard(0, 2), "_S(0, 2)"},
      {StridedShard(0, 3), "_S(0, 3)"},
      {StridedShard(1, 2), "_S(1, 2)"},
      {Partial(), "P(sum)"},
      {Partial(ReduceOp::kAvg), "P(avg)"},
      {Partial(ReduceOp::kProduct), "P(product)"},
      {Partial(ReduceOp::kMin), "P(min)"},
      {Partial(ReduceOp::kMax), "P(max)"},
      {MaskPartial({10, 23}, 0), "MaskP(sum, [10, 23], 0)"},
      {MaskPartial({10, 23}, 1), "MaskP(sum, [10, 23], 1)"},
      {MaskPartial({10, 29}, 0), "MaskP(sum, [10, 29], 0)"},
      {MaskPartial({10}, 0), "MaskP(sum, [10], 0)"},
      {MaskPartial({10, 23}, 0, ReduceOp::kAvg), "MaskP(avg, [10, 23], 0)"},
      {MaskPartial({1, 2, 3, 4, 5, 6}, -1), "MaskP(sum, [1, 2, 3, 4, 5, 6], -1)"},
      {MaskPartial({}, 0), "MaskP(sum, [], 0)"},
  };
  return *all;
}

TEST_CASE("a placement prints as PyTorch prints it") {
  for (const auto& [placement, text] : texts()) {
    CHECK(to_string(placement) == text);
    std::ostringstream out;
    out << placement;
    CHECK(out.str() == text);
  }
  const Placements list = {Replicate(), StridedShard(0, 2), Shard(1), Partial(ReduceOp::kMax)};
  CHECK(to_string(list) == "R_S(0, 2)S(1)P(max)");
  std::ostringstream out;
  out << list;
  CHECK(out.str() == "R_S(0, 2)S(1)P(max)");
  CHECK(to_string(Placements{}) == "");
}

TEST_CASE("placements are equal if every field is") {
  std::set<size_t> hashes;
  for (size_t i = 0; i < texts().size(); ++i) {
    for (size_t j = 0; j < texts().size(); ++j) {
      INFO(texts()[i].text << " and " << texts()[j].text);
      CHECK((texts()[i].placement == texts()[j].placement) == (i == j));
      CHECK((texts()[i].placement != texts()[j].placement) == (i != j));
    }
    const Placement copy = texts()[i].placement;
    CHECK(absl::HashOf(copy) == absl::HashOf(texts()[i].placement));
    hashes.insert(absl::HashOf(copy));
  }
  CHECK(hashes.size() == texts().size());
  CHECK(Placement() == Replicate());
}

TEST_CASE("a placement's is_* methods and fields") {
  struct Row {
    Placement placement;
    bool replicate, shard, strided, sharded_on_0, partial, mask;
  };
  const Row rows[] = {
      {Replicate(), true, false, false, false, false, false},
      {Shard(0), false, true, false, true, false, false},
      {Shard(1), false, true, false, false, false, false},
      {StridedShard(0, 2), false, false, true, true, false, false},
      {Partial(), false, false, false, false, true, false},
      {MaskPartial({10, 23}, 0), false, false, false, false, true, true},
  };
  for (const Row& row : rows) {
    INFO(row.placement);
    CHECK(row.placement.is_replicate() == row.replicate);
    CHECK(row.placement.is_shard() == row.shard);
    CHECK(row.placement.is_strided_shard() == row.strided);
    CHECK(row.placement.is_sharded() == (row.shard || row.strided));
    CHECK(row.placement.is_sharded_on(0) == row.sharded_on_0);
    CHECK(row.placement.is_partial() == row.partial);
    CHECK(row.placement.is_mask_partial() == row.mask);
  }
  CHECK(StridedShard(3, 2).dim() == 3);
  CHECK(StridedShard(3, 2).split_factor() == 2);
  CHECK(Partial(ReduceOp::kMin).reduce_op() == ReduceOp::kMin);
  const Placement mask = MaskPartial({10, 23}, 1);
  CHECK(mask.offset_shape() == Shape{10, 23});
  CHECK(mask.offset_dim() == 1);
  CHECK(mask.reduce_op() == ReduceOp::kSum);
}

TEST_CASE("parse_placements reads what to_string writes") {
  for (const auto& [a, a_text] : texts()) {
    for (const auto& [b, b_text] : texts()) {
      const Placements list = {a, b};
      INFO(list);
      const auto parsed = parse_placements(to_string(list));
      REQUIRE(parsed.ok());
      CHECK(*parsed == list);
    }
  }
  CHECK(parse_placements("").value().empty());
}

TEST_CASE("parse_placements is lenient about spaces, one comma and a bare P") {
  const Placements list = {Replicate(), Shard(0), StridedShard(1, 2), Partial(), MaskPartial({10, 23}, 0)};
  for (const char* text : {"RS(0)_S(1,2)PMaskP(sum,[10,23],0)", "R, S(0), _S(1, 2), P, MaskP(sum, [10, 23], 0)",
                           "  R\tS ( 0 ) _S( 1 ,2 )\nP ( sum ) MaskP(sum,[ 10,23 ] , 0 ) "}) {
    INFO(text);
    const auto parsed = parse_placements(text);
    REQUIRE(parsed.ok());
    CHECK(*parsed == list);
  }
  CHECK(parse_placements("P P").value() == Placements{Partial(), Partial()});
  CHECK(parse_placements(" ").value().empty());
}

TEST_CASE("parse_placements names the position of an error and the expected text") {
  const std::string kinds = "R, S(dim), _S(dim, split_factor), P(op) or MaskP(op, [sizes], dim)";
  const std::string ops = "sum, avg, product, min or max";
  struct Row {
    std::string text;
    int position;
    std::string expected;
  };
  const Row rows[] = {
      {"X", 0, kinds},
      {"S(0)X", 4, kinds},
      {"Replicate", 1, kinds},
      {"r", 0, kinds},
      {",R", 0, kinds},
      {"R,", 2, kinds},
      {"R,,S(0)", 2, kinds},
      {"S(0))", 4, kinds},
      {"S", 1, "'('"},
      {"S0", 1, "'('"},
      {"S(", 2, "a 64-bit integer"},
      {"S(x)", 2, "a 64-bit integer"},
      {"S( sum)", 3, "a 64-bit integer"},
      {"S(9223372036854775808)", 2, "a 64-bit integer"},
      {"S(0", 3, "')'"},
      {"S(0.5)", 3, "')'"},
      {"R S(0, 2)", 5, "')'"},
      {"_S(0)", 4, "','"},
      {"_S(0, )", 6, "a 64-bit integer"},
      {"P()", 2, ops},
      {"P(mean)", 2, ops},
      {"P(summ)", 5, "')'"},
      {"MaskP", 5, "'('"},
      {"MaskP([10], 0)", 6, ops},
      {"MaskP(sum)", 9, "','"},
      {"MaskP(sum, 10, 0)", 11, "'['"},
      {"MaskP(sum, [10, ], 0)", 16, "a 64-bit integer"},
      {"MaskP(sum, [10 0)", 15, "']'"},
      {"MaskP(sum, [10])", 15, "','"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const auto parsed = parse_placements(row.text);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(parsed.status().message()) ==
          "\"" + row.text + "\", position " + std::to_string(row.position) + ": expected " + row.expected);
  }
  CHECK(std::string(parse_placements("P\n\"").status().message()) == "\"P\\n\\\"\", position 2: expected " + kinds);
}

TEST_CASE("normalize_placements counts negative dims from the end") {
  struct Row {
    Placements placements;
    int64_t ndim;
    Placements normalized;
  };
  const Row rows[] = {
      {{}, 0, {}},
      {{Replicate(), Partial()}, 0, {Replicate(), Partial()}},
      {{Shard(-1), Shard(-3), Shard(2)}, 3, {Shard(2), Shard(0), Shard(2)}},
      {{StridedShard(-1, 4)}, 2, {StridedShard(1, 4)}},
      {{MaskPartial({10, 23}, -2)}, 5, {MaskPartial({10, 23}, 0)}},
      {{Partial(), Partial(ReduceOp::kAvg), Shard(0)}, 1, {Partial(), Partial(ReduceOp::kAvg), Shard(0)}},
      {{Replicate(), Partial(ReduceOp::kMax)}, 1, {Replicate(), Partial(ReduceOp::kMax)}},
      {{Partial(), MaskPartial({10, 23}, 1)}, 1, {Partial(), MaskPartial({10, 23}, 1)}},
      {{Partial(ReduceOp::kMax), Partial(ReduceOp::kMax)}, 1, {Partial(ReduceOp::kMax), Partial(ReduceOp::kMax)}},
  };
  for (const Row& row : rows) {
    INFO(row.placements << " of " << row.ndim << " dims");
    const auto normalized = normalize_placements(row.placements, row.ndim);
    REQUIRE(normalized.ok());
    CHECK(*normalized == row.normalized);
  }
}

TEST_CASE("normalize_placements names the invalid placement") {
  struct Row {
    Placements placements;
    int64_t ndim;
    std::string message;
  };
  const Row rows[] = {
      {{Shard(2)}, 2, "S(2) over mesh dim 0: a tensor of 2 dims has no dim 2; expected -2 to 1"},
      {{Replicate(), Shard(-3)}, 2, "S(-3) over mesh dim 1: a tensor of 2 dims has no dim -3; expected -2 to 1"},
      {{StridedShard(1, 2)}, 1, "_S(1, 2) over mesh dim 0: a tensor of 1 dims has no dim 1; expected -1 to 0"},
      {{Shard(0)}, 0, "S(0) over mesh dim 0: a tensor of 0 dims cannot be sharded"},
      {{StridedShard(0, 0)}, 1, "_S(0, 0) over mesh dim 0: the split factor must be at least 1"},
      {{MaskPartial({10, 23}, 2)},
       3,
       "MaskP(sum, [10, 23], 2) over mesh dim 0: a table of 2 dims has no dim 2; expected -2 to 1"},
      {{MaskPartial({}, 0)}, 3, "MaskP(sum, [], 0) over mesh dim 0: a table of 0 dims cannot be sharded"},
      {{Partial(), Replicate(), Partial(ReduceOp::kMax)},
       1,
       "P(max) over mesh dim 2: it does not commute with P(sum) over mesh dim 0; of different reductions only sum and "
       "avg mix"},
      {{Partial(ReduceOp::kMin), MaskPartial({10}, 0)},
       1,
       "MaskP(sum, [10], 0) over mesh dim 1: it does not commute with P(min) over mesh dim 0; of different reductions "
       "only sum and avg mix"},
  };
  for (const Row& row : rows) {
    INFO(row.placements);
    const auto normalized = normalize_placements(row.placements, row.ndim);
    REQUIRE_FALSE(normalized.ok());
    CHECK(normalized.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(normalized.status().message()) == row.message);
  }
}

TEST_CASE("Layouts of addends") {
  const Placement masked = MaskPartial({10, 23}, 0), most = Partial(ReduceOp::kMax), mean = Partial(ReduceOp::kAvg);
  CHECK(internal::as_addends({Shard(1), masked, mean, Replicate()}) ==
        Placements{Shard(1), Partial(), mean, Replicate()});
  CHECK(internal::as_addends({most}) == Placements{most});
  CHECK_FALSE(internal::has_nonlinear_partial({Shard(1), masked, Replicate(), mean}));
  CHECK(internal::has_nonlinear_partial({Partial(), most}));
}

}  // namespace
}  // namespace dtensor
