// Verifies the rules of ATen's operators on random samples (dtensor/verify_rule.h).
//
//   ./bazelw run //tools:verify_rules                    # a few samples of every operator, in a sample of layouts
//   ./bazelw run //tools:verify_rules -- --full
//   ./bazelw run //tools:verify_rules -- --op aten::mm
//   ./bazelw run //tools:verify_rules -- --list          # the operators, and those without a sample
//   ./bazelw run //tools:verify_rules -- --write         # the table of layouts in docs/tables/operator_layouts.md
//
// Exit code 1: a rule is wrong, or communicates without need.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/verify_rule.h"
#include "tests/fuzz/catalog.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/generate.h"
#include "tests/fuzz/refusals.h"
#include "tests/testing/long_tests.h"
#include "tools/flags.h"
#include "tools/tables/page_table.h"

ABSL_FLAG(std::string, op, "", "the operators whose names begin so, \"aten::mm\"");
ABSL_FLAG(bool, full, false, "more samples and all layouts, in hours");
ABSL_FLAG(bool, list, false, "print the operators and how many samples there are of each, and verify nothing");
ABSL_FLAG(int64_t, samples, 2, "of every operator");
ABSL_FLAG(int64_t, layouts, 24, "of a sample on every mesh, at most");
ABSL_FLAG(int64_t, seed, 1, "of samples and layouts");
ABSL_FLAG(int64_t, every, 1, "only each so many-th operator");
ABSL_FLAG(std::string, device, "cpu",
          "where samples are, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD. Strategies "
          "that are missing are looked for on the CPU only");
ABSL_FLAG(
    bool, brief, false,
    "unless DTENSOR_LONG_TESTS is set: only operators that write to none of their arguments, as in-place and out= "
    "forms have their rules, and few layouts on meshes other than that of the table");
ABSL_FLAG(std::string, known, "", "a file of findings that are known, a line each: operator, kind, and why");

namespace {

using namespace dtensor;

c10::IValue value_of(const fuzz::Argument& argument, const std::map<int, at::Tensor>& tensors,
                     const c10::TypePtr& type) {
  const auto tensor = [&](int id) { return id < 0 ? at::Tensor() : tensors.at(id); };
  struct Visitor {
    const decltype(tensor)& get;
    const c10::TypePtr& type;
    c10::IValue operator()(std::monostate) const { return {}; }
    c10::IValue operator()(bool x) const { return x; }
    c10::IValue operator()(int64_t x) const { return x; }
    c10::IValue operator()(double x) const { return x; }
    c10::IValue operator()(const std::string& x) const { return x; }
    c10::IValue operator()(const std::vector<int64_t>& x) const { return x; }
    c10::IValue operator()(const std::vector<double>& x) const { return x; }
    c10::IValue operator()(const std::vector<bool>& x) const {
      c10::List<bool> list;
      for (const bool b : x) list.push_back(b);
      return list;
    }
    c10::IValue operator()(c10::ScalarType x) const { return static_cast<int64_t>(x); }
    c10::IValue operator()(c10::MemoryFormat x) const { return static_cast<int64_t>(x); }
    c10::IValue operator()(const fuzz::TensorRef& x) const { return x.id < 0 ? c10::IValue() : get(x.id); }
    c10::IValue operator()(const fuzz::TensorRefs& x) const {
      if (type->str().find("Optional") != std::string::npos || type->str().find('?') != std::string::npos) {
        c10::List<std::optional<at::Tensor>> list;
        for (const int id : x.ids) list.push_back(id < 0 ? std::nullopt : std::optional(get(id)));
        return list;
      }
      c10::List<at::Tensor> list;
      for (const int id : x.ids) list.push_back(get(id));
      return list;
    }
  };
  return std::visit(Visitor{tensor, type}, argument);
}

// Calls that plain LibTorch accepts, with at least one dim and elements.
std::vector<OpSample> samples_of(const fuzz::Operator& op, int64_t count, uint64_t seed) {
  std::vector<OpSample> samples;
  std::set<std::string> seen;
  fuzz::GenerateOptions options;
  options.most_steps = 1;
  options.only = [&](const fuzz::Operator& other) { return other.name == op.name; };
  for (uint64_t k = 0; k < 24 && static_cast<int64_t>(samples.size()) < count; ++k) {
    const fuzz::Program program = fuzz::generate(seed, k, options);
    const fuzz::Step* step = nullptr;
    for (const fuzz::Step& s : program.steps) {
      if (s.op == op.name) step = &s;
    }
    if (step == nullptr || program.steps.size() != 1) continue;
    std::map<int, at::Tensor> tensors;
    bool is_good = false;
    std::string shapes;
    for (const fuzz::Leaf& leaf : program.leaves) {
      tensors[leaf.id] = fuzz::value_of(leaf);
      const bool narrow = c10::isReducedFloatingType(leaf.dtype);
      is_good = (is_good || (tensors[leaf.id].dim() > 0 && tensors[leaf.id].numel() > 1)) && !narrow;
      shapes += c10::str(leaf.sizes, leaf.dtype);
    }
    if (!is_good || !seen.insert(shapes).second) continue;
    OpSample sample{op.name, {}};
    const auto& arguments = op.handle.schema().arguments();
    for (size_t a = 0; a < step->args.size(); ++a)
      sample.args.push_back(value_of(step->args[a], tensors, arguments[a].type()));
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::map<std::string, std::string> read_known(const std::string& path) {
  std::map<std::string, std::string> known;  // "aten::x wrong value" -> why
  if (path.empty()) return known;
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "cannot read '", path, "'");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits("; ", 1));
    TORCH_CHECK(parts.size() == 2, "'", path, "': a line is \"operator kind; why\", not \"", line, "\"");
    known.emplace(parts[0], parts[1]);
  }
  return known;
}

// The outcome for one operator's samples, as text between processes: LibTorch's kernels may end theirs if they are
// given parts that do not fit each other.
struct Outcome {
  int64_t samples = 0, layouts = 0, strategies = 0, refused = 0;
  std::vector<std::pair<RuleFinding::Kind, std::string>> findings;
  std::set<std::string> local;  // RuleReport::local
  bool has_gradients = false;

  static constexpr int kLocal = -1, kGradients = -2;  // instead of a kind of finding

  void write(std::FILE* file) const {
    std::vector<std::pair<int, std::string>> lines;
    for (const auto& [kind, text] : findings) lines.emplace_back(static_cast<int>(kind), text);
    for (const std::string& text : local) lines.emplace_back(kLocal, text);
    if (has_gradients) lines.emplace_back(kGradients, "");
    std::fprintf(file, "%lld %lld %lld %lld %zu\n", static_cast<long long>(samples), static_cast<long long>(layouts),
                 static_cast<long long>(strategies), static_cast<long long>(refused), lines.size());
    for (const auto& [kind, text] : lines) {
      std::fprintf(file, "%d %zu\n", kind, text.size());
      std::fwrite(text.data(), 1, text.size(), file);
    }
  }
  static std::optional<Outcome> read(std::FILE* file) {
    Outcome outcome;
    long long n[4];
    size_t count = 0, size = 0;
    int kind = 0;
    if (std::fscanf(file, "%lld %lld %lld %lld %zu", &n[0], &n[1], &n[2], &n[3], &count) != 5) return std::nullopt;
    outcome.samples = n[0], outcome.layouts = n[1], outcome.strategies = n[2], outcome.refused = n[3];
    for (size_t k = 0; k < count; ++k) {
      if (std::fscanf(file, "%d %zu", &kind, &size) != 2 || std::fgetc(file) != '\n') return std::nullopt;
      std::string text(size, ' ');
      if (std::fread(text.data(), 1, size, file) != size) return std::nullopt;
      if (kind == kLocal) outcome.local.insert(std::move(text));
      if (kind == kGradients) outcome.has_gradients = true;
      if (kind >= 0) outcome.findings.emplace_back(static_cast<RuleFinding::Kind>(kind), std::move(text));
    }
    return outcome;
  }
};

// Each sample is verified with all of the options, one after the other.
using Options = std::vector<VerifyRuleOptions>;

Outcome verified(const std::vector<OpSample>& samples, const Options& all_options) {
  Outcome outcome;
  for (const OpSample& sample : samples) {
    bool is_accepted = true;
    for (const VerifyRuleOptions& options : all_options) {
      RuleReport report;
      try {
        report = verify_rule(sample, options);
      } catch (const c10::Error&) {
        is_accepted = false;  // a call that LibTorch accepted once it may reject now: not comparable
        break;
      }
      outcome.layouts += report.layouts, outcome.strategies += report.strategies, outcome.refused += report.refused;
      outcome.local.insert(report.local.begin(), report.local.end());
      outcome.has_gradients = outcome.has_gradients || report.has_gradients;
      for (const RuleFinding& f : report.findings) {
        if (f.kind == RuleFinding::Kind::kError && fuzz::reason_to_refuse(sample.op, f.text) != nullptr) continue;
        outcome.findings.emplace_back(f.kind, f.text);
      }
    }
    outcome.samples += is_accepted ? 1 : 0;
  }
  return outcome;
}

// Of the brief form: the table, strategies and what is missing are of one mesh dim, so the other meshes get few
// layouts.
Options brief(const VerifyRuleOptions& options) {
  VerifyRuleOptions table = options, others = options;
  table.meshes = {{2}};
  others.meshes = {{3}, {2, 2}};
  others.most_layouts = 6;
  others.strategies = others.missing = false;
  return {table, others};
}

using Samples = std::vector<OpSample>;

// The tensors of a sample on --device. Only in processes that are started for the samples, since CUDA does not survive
// fork().
std::vector<OpSample> on_device(std::vector<OpSample> samples) {
  const c10::Device device(absl::GetFlag(FLAGS_device));
  if (device.is_cpu()) return samples;
  const auto moved = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
  for (OpSample& sample : samples) {
    for (c10::IValue& value : sample.args) {
      if (value.isTensor()) {
        value = moved(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : value.toTensorVector()) list.push_back(moved(t));
        value = list;
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& t : value.toOptionalTensorList())
          list.push_back(t ? std::optional(moved(*t)) : t);
        value = list;
      }
    }
  }
  return samples;
}

// What a separate process finds of several operators, of fewer if it ended early.
std::vector<Outcome> verified_apart(const std::vector<Samples>& operators, const Options& options) {
  std::FILE* const file = std::tmpfile();
  TORCH_CHECK(file != nullptr, "cannot make a temporary file");
  std::fflush(nullptr);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "cannot start a process");
  if (child == 0) {
    for (const Samples& samples : operators) {
      verified(on_device(samples), options).write(file);
      std::fflush(file);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::rewind(file);
  std::vector<Outcome> outcomes;
  while (outcomes.size() < operators.size()) {
    auto outcome = Outcome::read(file);
    if (!outcome) break;
    outcomes.push_back(*std::move(outcome));
  }
  std::fclose(file);
  return outcomes;
}

// The outcomes of several operators; nullopt: the process ended, of an operator by itself even if no strategies are
// looked for that miss.
std::vector<std::optional<Outcome>> verified_together(const std::vector<Samples>& operators, const Options& options) {
  const std::vector<Outcome> together = verified_apart(operators, options);
  std::vector<std::optional<Outcome>> outcomes(together.begin(), together.end());
  Options careful = options;
  for (VerifyRuleOptions& o : careful) o.missing = false;
  const size_t ended_at = outcomes.size();
  while (outcomes.size() < operators.size()) {  // of the others each by itself
    const std::vector<Samples> one = {operators[outcomes.size()]};
    std::vector<Outcome> outcome = verified_apart(one, options);
    // That it ends only after others is a finding, too.
    const bool ends_after_others = outcomes.size() == ended_at && ended_at > 0 && !outcome.empty();
    if (outcome.empty()) outcome = verified_apart(one, careful);
    if (ends_after_others) outcome.clear();
    outcomes.push_back(outcome.empty() ? std::nullopt : std::optional(outcome[0]));
  }
  return outcomes;
}

// A row of the table: the layouts in which an operator, in any of its overloads, communicates nothing.
struct Row {
  std::set<std::string> local;
  bool has_gradients = false;
};

std::string table_of(const std::map<std::string, Row>& rows) {
  constexpr size_t kMost = 6;
  std::string text = "| operator | inputs -> results, without communication | gradients |\n| --- | --- | --- |\n";
  for (const auto& [op, row] : rows) {
    // The most informative first: those with few replicated tensors.
    std::vector<std::pair<int64_t, std::string>> local;
    for (const std::string& layouts : row.local)
      local.emplace_back(std::count(layouts.begin(), layouts.end(), 'R'), layouts);
    std::sort(local.begin(), local.end());
    const size_t shown = std::min(local.size(), kMost);
    std::string cell;
    for (size_t i = 0; i < shown; ++i) absl::StrAppend(&cell, i == 0 ? "`" : ", `", local[i].second, "`");
    if (shown < local.size()) absl::StrAppend(&cell, " and ", local.size() - shown, " more");
    absl::StrAppend(&text, "| `", op, "` | ", cell.empty() ? "none of those tried" : cell, " | ",
                    row.has_gradients ? "yes" : "", " |\n");
  }
  return text;
}

int run() {
  at::set_num_threads(1);  // before processes are started
  const bool full = absl::GetFlag(FLAGS_full);
  const bool is_brief = absl::GetFlag(FLAGS_brief) && !testing::long_tests();
  const int64_t count = full ? 12 : absl::GetFlag(FLAGS_samples);
  VerifyRuleOptions options;
  options.most_layouts = full ? 4096 : absl::GetFlag(FLAGS_layouts);
  options.seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed));
  options.tolerance = 1e-6;
  options.missing = c10::Device(absl::GetFlag(FLAGS_device)).is_cpu();
  const Options all_options = is_brief ? brief(options) : Options{options};
  const auto known = read_known(absl::GetFlag(FLAGS_known));
  std::set<std::string> found;  // as known
  Outcome all;
  int64_t operators = 0, without = 0, number = 0;
  int wrong = 0;
  std::map<std::string, Row> rows;  // by name; in-place and out= forms are merged with the others
  const auto note = [&](const std::string& op, const std::string& kind, const std::string& text) {
    const std::string key = op + " " + kind;
    if (!found.insert(key).second) return;
    const bool is_known = known.count(key) > 0;
    std::printf("%s%s\n  %s\n", key.c_str(), is_known ? " (known)" : "", text.c_str());
    wrong += is_known ? 0 : 1;
  };
  std::vector<const fuzz::Operator*> waiting;
  std::vector<Samples> samples_waiting;
  const auto verify_waiting = [&] {
    auto outcomes = verified_together(samples_waiting, all_options);
    for (size_t i = 0; i < waiting.size(); ++i) {
      const fuzz::Operator& op = *waiting[i];
      auto& outcome = outcomes[i];
      if (!outcome) {
        note(op.name, "crash", "the process ended");
        continue;
      }
      all.samples += outcome->samples, all.layouts += outcome->layouts;
      all.strategies += outcome->strategies, all.refused += outcome->refused;
      for (const auto& [kind, text] : outcome->findings) note(op.name, to_string(kind), text);
      const auto& schema = op.handle.schema();
      if (outcome->samples > 0 && !schema.is_mutable()) {
        Row& row = rows[schema.name()];
        row.local.merge(outcome->local);
        row.has_gradients = row.has_gradients || outcome->has_gradients;
      }
    }
    waiting.clear(), samples_waiting.clear();
  };
  for (const fuzz::Operator& op : fuzz::catalog()) {
    if (op.support != fuzz::Operator::Support::kRule || !absl::StartsWith(op.name, absl::GetFlag(FLAGS_op))) continue;
    if (is_brief && op.handle.schema().is_mutable()) continue;
    if (number++ % absl::GetFlag(FLAGS_every) != 0) continue;
    ++operators;
    auto samples = samples_of(op, count, options.seed);
    without += samples.empty() ? 1 : 0;
    if (absl::GetFlag(FLAGS_list)) std::printf("%-50s %zu samples\n", op.name.c_str(), samples.size());
    if (absl::GetFlag(FLAGS_list) || samples.empty()) continue;
    waiting.push_back(&op), samples_waiting.push_back(std::move(samples));
    if (waiting.size() == (is_brief ? 16 : 1)) verify_waiting();
    if (operators % 50 == 0) std::fprintf(stderr, "%lld operators\n", static_cast<long long>(operators));
  }
  verify_waiting();
  std::printf(
      "%lld operators, %lld of them without a sample; %lld samples in %lld layouts (%lld refused), %lld strategies\n",
      static_cast<long long>(operators), static_cast<long long>(without), static_cast<long long>(all.samples),
      static_cast<long long>(all.layouts), static_cast<long long>(all.refused), static_cast<long long>(all.strategies));
  const bool is_part = !absl::GetFlag(FLAGS_op).empty() || absl::GetFlag(FLAGS_list) || absl::GetFlag(FLAGS_every) > 1;
  for (const auto& [key, why] : known) {
    if (found.count(key) > 0 || is_part || is_brief) continue;
    std::printf("%s does not occur any more: take its line away (%s)\n", key.c_str(), why.c_str());
    ++wrong;
  }
  if (!is_part) {
    const tools::PageTable page = {"docs/tables/operator_layouts.md", "table of layouts", "//tools:verify_rules"};
    wrong += tools::make_page_table(page, table_of(rows));
  }
  if (std::getenv("TEST_TARGET") != nullptr) {  // an operator is a test case
    std::printf("[dtensor] %lld passed, %d failed, %lld skipped\n",
                static_cast<long long>(std::max<int64_t>(operators - without - wrong, 0)), wrong,
                static_cast<long long>(without));
  }
  return wrong > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("verify_rules", "Verifies the sharding rules of operators by brute force.", argc,
                                     argv, run);
}
