#include "sharded/embedding_sharding_planner.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sharded/chunk_sharding_spec.h"

namespace dtensor::sharded {
namespace {

constexpr int64_t kMostRanksTried = 4096;

std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

Shape shape_of(const at::Tensor& t) { return Shape(t.sizes().begin(), t.sizes().end()); }

// The parameters of a module, its tables among them. A parameter that two modules share counts once.
std::vector<ParameterFacts> facts_of(const torch::nn::Module& module, const PlannerOptions& options) {
  std::vector<ParameterFacts> all;
  std::set<const c10::TensorImpl*> seen;
  std::set<std::string> tables;
  const auto add = [&](const std::string& path, const torch::nn::Module& m) {
    const bool is_bag = m.as<torch::nn::EmbeddingBag>() != nullptr;
    const bool has_table = is_bag || m.as<torch::nn::Embedding>() != nullptr;
    for (const auto& p : m.named_parameters(/*recurse=*/false)) {
      if (!p.value().defined() || !seen.insert(p.value().unsafeGetTensorImpl()).second) continue;
      ParameterFacts facts{join_path(path, p.key()), shape_of(p.value()),
                           static_cast<int64_t>(p.value().element_size())};
      if (has_table && p.key() == "weight") {
        facts.is_table = true;
        const auto ids = options.ids.find(path);
        facts.ids = ids == options.ids.end() ? options.ids_per_sample : ids->second;
        facts.rows = is_bag ? 1 : facts.ids;
        tables.insert(path);
      }
      all.push_back(std::move(facts));
    }
  };
  add("", module);
  for (const auto& m : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) add(m.key(), *m.value());
  for (const auto& [path, ids] : options.ids) {
    TORCH_CHECK_VALUE(tables.count(path) == 1, "[EmbeddingShardingPlanner] `ids` names '", path,
                      "', which is no table of the module; tables are ", absl::StrJoin(tables, ", "));
  }
  return all;
}

TableSearch search_of(const ProcessGroup& group, const PlannerOptions& o) {
  TableSearch search;
  search.ranks = group.size();
  search.samples = static_cast<double>(o.batch_per_rank);
  search.budget = o.bytes_per_rank;
  search.memory_factor = o.memory_factor;
  search.min_columns = o.min_columns;
  search.shard_dense = o.shard_dense;
  search.cost = o.cost != nullptr ? *o.cost : *cost_model(group.world());
  search.crosses_nodes = group.mesh().dims_between_nodes(search.cost.ranks_per_node) != 0;
  return search;
}

// Throws with a sufficient budget if no plan stays within it.
[[noreturn]] void refuse(const TableSearch& search, const std::vector<ParameterFacts>& facts) {
  const auto smallest = search.smallest(facts);
  const int64_t needed = search.estimate(facts, smallest).largest();
  int64_t replicated = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    if (smallest[i].kind != ShardingKind::kReplicated) continue;
    replicated += TableSearch(search).estimate({facts[i]}, {smallest[i]}).largest();
  }
  std::string text =
      absl::StrCat("[EmbeddingShardingPlanner] no plan was found that keeps bytes_per_rank = ", search.budget, " over ",
                   search.ranks, " ranks; one that needs ", needed, " was");
  TableSearch more = search;
  for (more.ranks = search.ranks * 2; more.ranks <= kMostRanksTried; more.ranks *= 2) {
    if (more.estimate(facts, more.smallest(facts)).largest() > more.budget) continue;
    TORCH_CHECK_VALUE(false, text, ", and with ", more.ranks, " ranks ", search.budget, " would do");
  }
  TORCH_CHECK_VALUE(false, text, "; more ranks alone do not help",
                    replicated > 0 ? absl::StrCat(", as ", replicated, " bytes of it are replicated") : std::string());
}

std::string choice_text(const ShardingChoice& c, int64_t world_rank) {
  if (c.kind == ShardingKind::kTableWise) return absl::StrCat("table-wise on rank ", world_rank);
  return to_string(c.kind);
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 10000 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return unit == 0 ? absl::StrFormat("%.0f %s", bytes, units[unit]) : absl::StrFormat("%.1f %s", bytes, units[unit]);
}

// The alternatives for this parameter with all others unchanged: for table-wise, with the best owner.
std::string reasons(const TableSearch& search, const std::vector<ParameterFacts>& facts,
                    const std::vector<ShardingChoice>& choices, size_t i, const StepEstimate& now) {
  if (!facts[i].is_table && !search.shard_dense) return "dense";
  std::vector<std::string> parts;
  for (ShardingKind kind :
       {ShardingKind::kReplicated, ShardingKind::kTableWise, ShardingKind::kRowWise, ShardingKind::kColumnWise}) {
    if (kind == choices[i].kind) continue;
    std::optional<StepEstimate> best;
    for (const ShardingChoice& c : search.possible(facts[i])) {
      if (c.kind != kind) continue;
      auto others = choices;
      others[i] = c;
      StepEstimate e = search.estimate(facts, others);
      const auto key = [&](const StepEstimate& x) {
        return std::pair(std::max<int64_t>(x.largest() - search.budget, 0), x.seconds);
      };
      if (!best || key(e) < key(*best)) best = std::move(e);
    }
    if (!best) continue;
    if (best->largest() > search.budget) {
      parts.push_back(absl::StrCat(to_string(kind), ": ",
                                   bytes_text(static_cast<double>(best->largest() - search.budget)), " over budget"));
    } else {
      parts.push_back(absl::StrFormat("%s: %+.1f us", to_string(kind), (best->seconds - now.seconds) * 1e6));
    }
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

EmbeddingShardingPlanner::EmbeddingShardingPlanner(const ProcessGroup& group, PlannerOptions options)
    : group_(group), options_(std::move(options)) {
  const char* const who = "[EmbeddingShardingPlanner] ";
  TORCH_CHECK_VALUE(options_.bytes_per_rank >= 1, who, "bytes_per_rank is ", options_.bytes_per_rank,
                    ": say how much a rank may use");
  TORCH_CHECK_VALUE(options_.batch_per_rank >= 1, who, "batch_per_rank is ", options_.batch_per_rank,
                    "; it is at least 1");
  TORCH_CHECK_VALUE(options_.min_columns >= 1, who, "min_columns is ", options_.min_columns, "; it is at least 1");
  TORCH_CHECK_VALUE(options_.memory_factor >= 1, who, "memory_factor is ", options_.memory_factor,
                    "; the parameters themselves take 1");
  TORCH_CHECK_VALUE(options_.ids_per_sample > 0, who, "ids_per_sample is ", options_.ids_per_sample);
  for (const auto& [path, ids] : options_.ids) TORCH_CHECK_VALUE(ids > 0, who, "ids of '", path, "' is ", ids);
}

ShardingPlan EmbeddingShardingPlanner::build_plan(const torch::nn::Module& module) {
  const std::vector<ParameterFacts> facts = facts_of(module, options_);
  const TableSearch search = search_of(group_, options_);
  const auto found = search.best(facts);
  if (!found) refuse(search, facts);
  report_ = {{}, search.estimate(facts, *found), search.budget};
  ShardingPlan plan;
  std::vector<RemoteDevice> everywhere;
  for (int64_t rank : group_.ranks()) everywhere.emplace_back(rank, group_.world().device(rank));
  for (size_t i = 0; i < facts.size(); ++i) {
    const ShardingChoice& c = (*found)[i];
    const StepEstimate alone = search.estimate({facts[i]}, {c});
    report_.parameters.push_back(
        {facts[i], c, alone.largest(), alone.received, alone.seconds, reasons(search, facts, *found, i, report_.step)});
    if (c.kind == ShardingKind::kReplicated) continue;
    if (c.kind == ShardingKind::kTableWise) {
      plan.plan.emplace_back(facts[i].name, ChunkShardingSpec(0, {everywhere[c.rank]}));
      report_.parameters.back().choice.rank = group_.ranks()[c.rank];
    } else {
      plan.plan.emplace_back(facts[i].name, ChunkShardingSpec(c.kind == ShardingKind::kColumnWise ? 1 : 0, everywhere));
    }
  }
  return plan;
}

std::string PlanReport::to_string() const {
  size_t widest = 9;
  for (const PlannedParameter& p : parameters) widest = std::max(widest, p.facts.name.size());
  std::string text = absl::StrFormat("%-*s  %-16s %-20s %10s %12s %9s  %s\n", static_cast<int>(widest), "parameter",
                                     "shape", "choice", "a rank", "received", "estimate", "otherwise");
  for (const PlannedParameter& p : parameters) {
    const std::string shape = absl::StrCat("[", absl::StrJoin(p.facts.sizes, ", "), "]");
    absl::StrAppendFormat(&text, "%-*s  %-16s %-20s %10s %12s %6.1f us  %s\n", static_cast<int>(widest), p.facts.name,
                          shape, choice_text(p.choice, p.choice.rank), bytes_text(static_cast<double>(p.bytes)),
                          bytes_text(p.received), p.seconds * 1e6, p.why);
  }
  std::vector<std::string> of_rank;
  for (int64_t m : step.memory) of_rank.push_back(bytes_text(static_cast<double>(m)));
  absl::StrAppendFormat(&text, "ranks hold %s of a budget of %s; a step receives %s in about %.1f us\n",
                        absl::StrJoin(of_rank, ", "), bytes_text(static_cast<double>(budget)),
                        bytes_text(step.received), step.seconds * 1e6);
  return text;
}

}  // namespace dtensor::sharded
