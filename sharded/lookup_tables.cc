#include "sharded/lookup_tables.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/dispatch_key.h"
#include "sharded/exchange_pieces.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

// Tensors made here are plain, inside a MeshScope, too.
struct PlainTensors {
  c10::impl::ExcludeDispatchKeyGuard below_dtensors{kDTensorKey};
};

// The size of a rank's input for one table.
struct InputSize {
  int64_t ids = 0, bags = 0;
  int64_t length = 0;  // of every bag; -1 where they differ
  int64_t has_weights = 0;
};
using RankSizes = std::vector<InputSize>;  // one per table

InputSize size_of(const BagBatch& bags) {
  InputSize size{bags.ids.numel(), bags.num_bags(), -1, bags.weights.defined()};
  if (size.bags == 0) {
    size.length = 0;
  } else if (size.ids % size.bags == 0) {
    const int64_t length = size.ids / size.bags;
    const at::Tensor even = at::arange(size.bags + 1, bags.offsets.options()) * length;
    if (bags.offsets.equal(even)) size.length = length;
  }
  return size;
}

// By owned rank and table, and what all ranks have, by position.
struct Input {
  std::vector<std::vector<BagBatch>> bags;
  std::vector<RankSizes> sizes;
};

RankSizes sizes_of(const std::vector<BagBatch>& bags) {
  RankSizes sizes;
  for (const BagBatch& b : bags) sizes.push_back(size_of(b));
  return sizes;
}

std::string text_of(const RankSizes& sizes) {
  std::string text;
  for (const InputSize& s : sizes) absl::StrAppend(&text, s.ids, ",", s.bags, ",", s.length, ",", s.has_weights, ";");
  return text;
}

RankSizes read_sizes(const std::string& text) {
  RankSizes sizes;
  for (const auto table : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const std::vector<std::string> numbers = absl::StrSplit(table, ',');
    InputSize& s = sizes.emplace_back();
    TORCH_CHECK(numbers.size() == 4 && absl::SimpleAtoi(numbers[0], &s.ids) && absl::SimpleAtoi(numbers[1], &s.bags) &&
                    absl::SimpleAtoi(numbers[2], &s.length) && absl::SimpleAtoi(numbers[3], &s.has_weights),
                "a rank sent sizes that are none: ", text);
  }
  return sizes;
}

Input read_input(const ProcessGroup& group, const BagsOfRank& bags_of, bool same_sizes, const std::string& op) {
  const auto& owned = group.owned_ranks();
  Input input;
  input.bags.resize(owned.size());
  const auto sizes_of_owned = [&](size_t i) { return sizes_of(input.bags[i] = bags_of(i)); };
  if (same_sizes || group.world().kind() == World::Kind::kFake) {
    for (size_t i = 0; i < owned.size(); ++i) input.sizes.resize(group.size(), sizes_of_owned(i));
    return input;
  }
  const auto texts = exchange_texts(group, op, [&](int64_t rank) {
    const auto i = std::find(owned.begin(), owned.end(), rank) - owned.begin();
    return text_of(sizes_of_owned(static_cast<size_t>(i)));
  });
  for (const std::string& text : texts) input.sizes.push_back(read_sizes(text));
  for (const RankSizes& of_rank : input.sizes) {
    for (size_t t = 0; t < of_rank.size(); ++t) {
      TORCH_CHECK_VALUE(of_rank[t].has_weights == input.sizes[0][t].has_weights,
                        "per_sample_weights are passed by some ranks and not by others: pass them on all, or on none");
    }
  }
  return input;
}

// The ids that a rank sends: those of all tables one after another, each followed by the lengths of its bags unless
// they are equal.
at::Tensor packed_ids(const std::vector<BagBatch>& bags, const RankSizes& sizes) {
  std::vector<at::Tensor> pieces;
  for (size_t t = 0; t < bags.size(); ++t) {
    pieces.push_back(bags[t].ids);
    if (sizes[t].length < 0) pieces.push_back(bags[t].offsets.slice(0, 1) - bags[t].offsets.slice(0, 0, -1));
  }
  return at::cat(pieces);
}

int64_t packed_size(const RankSizes& sizes) {
  int64_t sum = 0;
  for (const InputSize& s : sizes) sum += s.ids + (s.length < 0 ? s.bags : 0);
  return sum;
}

// The bags of all ranks, in the order of positions, per table; without weights.
std::vector<BagBatch> gather_bags(const ProcessGroup& group, const Input& input, const std::string& op) {
  const std::vector<RankSizes>& sizes = input.sizes;
  const size_t tables = sizes[0].size();
  RankTensors mine;
  for (size_t i = 0; i < input.bags.size(); ++i) {
    mine.push_back(packed_ids(input.bags[i], sizes[group.group_rank(group.owned_ranks()[i])]));
  }
  std::vector<int64_t> lengths;
  for (const RankSizes& s : sizes) lengths.push_back(packed_size(s));
  const Pieces received = gather_pieces(mine, group.mesh(), lengths, op).at(0);
  std::vector<std::vector<at::Tensor>> ids(tables), bag_lengths(tables);
  for (size_t p = 0; p < received.size(); ++p) {
    int64_t at = 0;
    const auto take = [&](int64_t count) {
      at += count;
      return received[p].narrow(0, at - count, count);
    };
    for (size_t t = 0; t < tables; ++t) {
      const InputSize& s = sizes[p][t];
      ids[t].push_back(take(s.ids));
      bag_lengths[t].push_back(s.length < 0 ? take(s.bags) : at::full({s.bags}, s.length, received[p].options()));
    }
  }
  std::vector<BagBatch> all;
  for (size_t t = 0; t < tables; ++t) {
    all.push_back({at::cat(ids[t]), offsets_of(at::cat(bag_lengths[t])), {}});
  }
  return all;
}

void check_ids(const std::vector<TableRequest>& requests, const std::vector<BagBatch>& all) {
  for (size_t t = 0; t < requests.size(); ++t) {
    if (all[t].ids.numel() == 0) continue;
    const int64_t least = all[t].ids.min().item<int64_t>(), most = all[t].ids.max().item<int64_t>();
    TORCH_CHECK_VALUE(
        least >= 0 && most<requests[t].table.rows, "Index out of range in Input ", least, " ", most, requests.size()> 1
            ? c10::str(" of table ", t)
            : std::string(),
        ": the table has the rows 0..", requests[t].table.rows - 1);
  }
}

// Weights of samples, of all ranks: [t][i] is what the i-th owned rank has. They travel apart, as they are of another
// dtype and have gradients.
std::vector<RankTensors> gather_weights(const ProcessGroup& group, const Input& input, const std::string& op) {
  const size_t ranks = input.sizes.size(), tables = input.sizes[0].size();
  std::vector<RankTensors> all(tables);
  for (size_t t = 0; t < tables; ++t) {
    if (!input.bags[0][t].weights.defined()) continue;
    PieceCounts how{group.mesh(), {}};
    for (const RankSizes& s : input.sizes) how.counts.emplace_back(ranks, s[t].ids);
    RankPieces mine;
    for (const auto& bags : input.bags) mine.emplace_back(ranks, bags[t].weights);
    for (const auto& of_rank : exchange_pieces(mine, how, op)) all[t].push_back(at::cat(of_rank));
  }
  return all;
}

// Tables whose rows travel together.
using TableGroup = std::vector<size_t>;
std::vector<TableGroup> groups_by_dtype(const std::vector<TableRequest>& requests) {
  std::map<c10::ScalarType, TableGroup> groups;
  for (size_t t = 0; t < requests.size(); ++t) {
    groups[c10::typeMetaToScalarType(requests[t].table.options.dtype())].push_back(t);
  }
  std::vector<TableGroup> result;
  for (auto& [dtype, group] : groups) result.push_back(std::move(group));
  return result;
}

// The elements that position `holder` sends to position `receiver`: its columns for the bags there, table after table.
int64_t row_elements(const std::vector<TableRequest>& requests, const TableGroup& group,
                     const std::vector<RankSizes>& sizes, size_t holder, size_t receiver) {
  int64_t sum = 0;
  for (size_t t : group) sum += sizes[receiver][t].bags * requests[t].table.columns_at(static_cast<int64_t>(holder));
  return sum;
}

// Local rows of the tables of a group, as one rank sends them: one tensor per receiver.
Pieces pack_rows(const std::vector<TableRequest>& requests, const TableGroup& group,
                 const std::vector<RankSizes>& sizes, const std::vector<at::Tensor>& rows) {
  bool wants_gradient = false;
  std::vector<std::vector<at::Tensor>> of_receiver(sizes.size());
  for (size_t k = 0; k < group.size(); ++k) {
    wants_gradient |= requests[group[k]].table.requires_grad;
    int64_t at = 0;
    for (size_t receiver = 0; receiver < sizes.size(); ++receiver) {
      const int64_t bags = sizes[receiver][group[k]].bags;
      of_receiver[receiver].push_back(rows[k].narrow(0, at, bags).reshape(-1));
      at += bags;
    }
  }
  Pieces packed;
  for (const auto& pieces : of_receiver) {
    at::Tensor piece = at::cat(pieces);
    // A rank without rows of its own takes part in the backward of the others.
    if (wants_gradient && at::GradMode::is_enabled() && !piece.requires_grad()) piece.requires_grad_();
    packed.push_back(std::move(piece));
  }
  return packed;
}

// From what every position sent of one table, [own bags, its columns] each, to the rows that were asked for.
at::Tensor combine(const TableRequest& request, const BagBatch& own, const std::vector<at::Tensor>& pieces) {
  const TableParts& table = request.table;
  if (table.dim == 1) {
    std::vector<std::pair<int64_t, at::Tensor>> columns;
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (table.windows[p].size > 0) columns.emplace_back(table.windows[p].begin, pieces[p]);
    }
    std::sort(columns.begin(), columns.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<at::Tensor> in_order;
    for (auto& [begin, piece] : columns) in_order.push_back(piece);
    return in_order.empty() ? at::zeros({own.num_bags(), 0}, table.options) : at::cat(in_order, 1);
  }
  const at::Tensor all = at::stack(pieces);
  if (request.pooling != Pooling::kMean && request.pooling != Pooling::kMax) return all.sum(0);
  const BagBatch counted = keep(own, {0, table.rows}, request.padding_idx);
  const at::Tensor counts = (counted.offsets.slice(0, 1) - counted.offsets.slice(0, 0, -1)).unsqueeze(1);
  if (request.pooling == Pooling::kMean) return all.sum(0) / counts.clamp_min(1).to(all.scalar_type());
  return std::get<0>(all.max(0)).masked_fill(counts.eq(0), 0);
}

// Everything of one call.
struct Lookup {
  const ProcessGroup& group;
  const std::vector<TableRequest>& requests;
  const Input& input;
  const std::vector<BagBatch>& all;         // the bags of all ranks, by table
  const std::vector<RankTensors>& weights;  // theirs, by table and owned rank
  const std::string& op;

  RankPieces local_rows(const TableGroup& tables) const {
    RankPieces sent;
    for (size_t i = 0; i < input.bags.size(); ++i) {
      std::vector<at::Tensor> rows;
      for (size_t t : tables) {
        const TableRequest& r = requests[t];
        BagBatch bags = all[t];
        if (!weights[t].empty()) bags.weights = weights[t][i];
        rows.push_back(lookup(r.table, position(i), r.table.parts[i], bags, r.pooling, r.padding_idx));
      }
      sent.push_back(pack_rows(requests, tables, input.sizes, rows));
    }
    return sent;
  }

  void run(const TableGroup& tables, std::vector<RankTensors>& results) const {
    const size_t ranks = input.sizes.size();
    PieceCounts how{group.mesh(), std::vector<std::vector<int64_t>>(ranks)};
    for (size_t holder = 0; holder < ranks; ++holder) {
      for (size_t receiver = 0; receiver < ranks; ++receiver) {
        how.counts[holder].push_back(row_elements(requests, tables, input.sizes, holder, receiver));
      }
    }
    const RankPieces received = exchange_pieces(local_rows(tables), how, op);
    for (size_t i = 0; i < received.size(); ++i) {
      std::vector<int64_t> at(ranks, 0);
      for (size_t t : tables) {
        const int64_t bags = input.bags[i][t].num_bags();
        std::vector<at::Tensor> pieces;
        for (size_t p = 0; p < ranks; ++p) {
          const int64_t columns = requests[t].table.columns_at(static_cast<int64_t>(p));
          pieces.push_back(received[i][p].narrow(0, at[p], bags * columns).view({bags, columns}));
          at[p] += bags * columns;
        }
        results[t].push_back(combine(requests[t], input.bags[i][t], pieces));
      }
    }
  }

  int64_t position(size_t i) const { return group.group_rank(group.owned_ranks()[i]); }
};

}  // namespace

std::vector<RankTensors> lookup_tables(const std::vector<TableRequest>& requests, const BagsOfRank& bags_of,
                                       bool same_sizes, const std::string& op) {
  std::vector<RankTensors> results(requests.size());
  if (requests.empty() || requests[0].table.group.owned_ranks().empty()) return results;
  const ProcessGroup& group = requests[0].table.group;
  const PlainTensors plain;
  const Input input = read_input(group, bags_of, same_sizes, op);
  const std::vector<BagBatch> all = gather_bags(group, input, op);
  check_ids(requests, all);
  for (size_t t = 0; t < requests.size(); ++t) {
    const TableRequest& r = requests[t];
    if (r.max_norm) renormalize(r.table, all[t].ids, *r.max_norm, r.norm_type, op);
  }
  const std::vector<RankTensors> weights = gather_weights(group, input, op);
  const Lookup lookup{group, requests, input, all, weights, op};
  for (const TableGroup& tables : groups_by_dtype(requests)) lookup.run(tables, results);
  return results;
}

void renormalize_table(const TableRequest& request, const BagsOfRank& bags_of, const std::string& op) {
  const ProcessGroup& group = request.table.group;
  if (group.owned_ranks().empty()) return;
  const PlainTensors plain;
  const Input input = read_input(group, bags_of, /*same_sizes=*/false, op);
  const std::vector<BagBatch> all = gather_bags(group, input, op);
  check_ids({request}, all);
  renormalize(request.table, all[0].ids, *request.max_norm, request.norm_type, op);
}

}  // namespace dtensor::sharded
