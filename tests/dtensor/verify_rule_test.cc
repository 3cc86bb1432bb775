// verify_rule() finds faults of a rule, and reports no other.
#include "dtensor/verify_rule.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "dtensor/redistribute.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace {

using torch::Tensor;

// Products of rows, under several names, each with another rule.
Tensor scores(const Tensor& x, const Tensor& y) { return x.matmul(y.transpose(0, 1)); }
Tensor row_sums(const Tensor& x) { return x.sum(1); }
Tensor without_rule(const Tensor& x) { return x.clone(); }

const char* const kScores[] = {"right",         "says_sum_is_whole", "splits_what_is_summed",
                               "lacks_columns", "lacks_partials",    "refuses"};

}  // namespace

TORCH_LIBRARY(verify_test, m) {
  for (const char* name : kScores) m.def((std::string(name) + "(Tensor x, Tensor y) -> Tensor").c_str());
  m.def("row_sums(Tensor x) -> Tensor");
  m.def("without_rule(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(verify_test, CPU, m) {
  for (const char* name : kScores) m.impl(name, scores);
  m.impl("row_sums", row_sums);
  m.impl("without_rule", without_rule);
}
TORCH_LIBRARY_IMPL(verify_test, Meta, m) {
  for (const char* name : kScores) m.impl(name, scores);
  m.impl("row_sums", row_sums);
}

namespace dtensor {
namespace {

using Kind = RuleFinding::Kind;

void add_strategies(const std::string& op, std::vector<DimStrategy> all) {
  OpRule rule;
  rule.per_dim = [all = std::move(all)](const OpCall&, int64_t) { return all; };
  RuleRegistry::instance().add("verify_test::" + op, rule);
}

// x [n, k], y [m, k] -> [n, m].
const bool rules_added = [] {
  const Placement whole = Replicate(), rows = Shard(0), columns = Shard(1), sum = Partial();
  const DimStrategy all_whole{{whole}, {whole, whole}}, by_rows{{rows}, {rows, whole}},
      by_columns{{columns}, {whole, rows}}, by_products{{sum}, {columns, columns}};
  auto& registry = RuleRegistry::instance();
  OpRule right = factor_op([](const OpCall& call) { return einsum(call, "nk,mk->nm"); });
  registry.add("verify_test::right", right);
  add_strategies("says_sum_is_whole", {all_whole, by_rows, by_columns, {{whole}, {columns, columns}}});
  add_strategies("splits_what_is_summed", {all_whole, {{rows}, {rows, whole}}, {{columns}, {rows, rows}}, by_columns});
  add_strategies("lacks_columns", {all_whole, by_rows});
  add_strategies("lacks_partials", {all_whole, by_rows, by_columns});
  OpRule refuses;
  refuses.per_dim = [](const OpCall& call, int64_t) -> std::vector<DimStrategy> {
    TORCH_CHECK_NOT_IMPLEMENTED(false, call.name(), ": not in this layout");
  };
  registry.add("verify_test::refuses", refuses);
  // Sums over a sharded dim, with a rule that declares the result sharded.
  add_strategies("row_sums", {{{whole}, {whole}}, {{rows}, {rows}}, {{rows}, {columns}}});
  return true;
}();

OpSample sample_of(const std::string& op) {
  torch::manual_seed(3);
  return {"verify_test::" + op, {torch::rand({5, 4}, torch::kDouble), torch::rand({7, 4}, torch::kDouble)}};
}

bool has(const RuleReport& report, Kind kind, const std::string& text) {
  for (const RuleFinding& f : report.findings) {
    if (f.kind == kind && f.text.find(text) != std::string::npos) return true;
  }
  return false;
}

int64_t count(const RuleReport& report, Kind kind) {
  int64_t n = 0;
  for (const RuleFinding& f : report.findings) n += f.kind == kind ? 1 : 0;
  return n;
}

TEST_CASE("verify_rule: a correct and complete rule has no findings", "[dtensor][verify_rule]") {
  REQUIRE(rules_added);
  const RuleReport report = verify_rule(sample_of("right"));
  CAPTURE(report.to_string());
  CHECK(report.findings.empty());
  CHECK(report.is_right());
  CHECK(report.layouts > 60);
  CHECK(report.strategies >= 4);
  CHECK(report.refused == 0);
}

TEST_CASE("verify_rule: operators of LibTorch, with gradients, lists and views", "[dtensor][verify_rule]") {
  torch::manual_seed(3);
  const auto a = torch::rand({4, 5}, torch::kDouble), b = torch::rand({5, 3}, torch::kDouble);
  for (const OpSample& sample :
       {OpSample{"aten::mm", {a, b}}, OpSample{"aten::softmax.int", {a, 1}},
        OpSample{"aten::cat", {c10::List<Tensor>({a, a * 2}), 0}}, OpSample{"aten::transpose.int", {a, 0, 1}},
        OpSample{"aten::index.Tensor", {a, c10::List<std::optional<Tensor>>({torch::tensor({0, 3})})}},
        OpSample{"aten::max.dim", {a, 1}}, OpSample{"aten::add_.Tensor", {a, a.clone()}}}) {
    const RuleReport report = verify_rule(sample);
    CAPTURE(sample.op, report.to_string());
    CHECK(report.is_right());
    CHECK(report.layouts > 0);
  }
}

TEST_CASE("verify_rule: a strategy with a wrong result is named", "[dtensor][verify_rule]") {
  const RuleReport sum = verify_rule(sample_of("says_sum_is_whole"));
  CAPTURE(sum.to_string());
  CHECK_FALSE(sum.is_right());
  CHECK(has(sum, Kind::kWrongStrategy, "verify_test::says_sum_is_whole(S(1), S(1))"));
  CHECK(has(sum, Kind::kWrongValue, "should be"));
  const RuleReport cut = verify_rule(sample_of("splits_what_is_summed"));
  CAPTURE(cut.to_string());
  CHECK((has(cut, Kind::kWrongStrategy, "(S(0), S(0))") || has(cut, Kind::kError, "(S(0), S(0))")));
  CHECK_THAT(cut.to_string(), Catch::StartsWith("WRONG"));
  const RuleReport rows = verify_rule({"verify_test::row_sums", {torch::rand({5, 4}, torch::kDouble)}});
  CHECK_FALSE(rows.is_right());
}

TEST_CASE("verify_rule: missing strategies are named", "[dtensor][verify_rule]") {
  const RuleReport columns = verify_rule(sample_of("lacks_columns"));
  CAPTURE(columns.to_string());
  CHECK(columns.is_right());
  CHECK(has(columns, Kind::kMissingStrategy, "(R, S(0)) on mesh(dim0=3): gives S(1) without communication"));
  CHECK(has(columns, Kind::kMissingStrategy, "(S(1), S(1))"));
  const RuleReport partials = verify_rule(sample_of("lacks_partials"));
  CHECK(has(partials, Kind::kMissingStrategy, "gives P(sum) without communication"));
  CHECK(count(partials, Kind::kMissingStrategy) == 1);
  VerifyRuleOptions values_only;
  values_only.strategies = values_only.missing = false;
  CHECK(verify_rule(sample_of("lacks_columns"), values_only).findings.empty());
}

TEST_CASE("verify_rule: refusals are counted and are not findings", "[dtensor][verify_rule]") {
  const RuleReport report = verify_rule(sample_of("refuses"));
  CHECK(report.findings.empty());
  CHECK(report.refused > 0);
}

TEST_CASE("verify_rule: bad samples", "[dtensor][verify_rule]") {
  const auto text = [](const OpSample& sample) { return testing::error_text([&] { verify_rule(sample); }); };
  const auto x = torch::rand({3, 3});
  CHECK_THAT(text({"aten::no_such_thing", {}}), Catch::Contains("there is no operator 'aten::no_such_thing'"));
  CHECK_THAT(text({"aten::mm", {x}}), Catch::Contains("do not fit") && Catch::Contains("mm"));
  CHECK_THAT(text({"aten::mm", {x, torch::rand({2, 2})}}), Catch::Contains("plain LibTorch does not take"));
  CHECK_THAT(text({"verify_test::without_rule", {x}}), Catch::Contains("does not have a sharding strategy"));
  const DeviceMesh mesh(World::local(2), {2});
  CHECK_THAT(text({"aten::mm", {distribute_tensor(x, mesh), x}}), Catch::Contains("give plain tensors"));
}

}  // namespace
}  // namespace dtensor
