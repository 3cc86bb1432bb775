// Lookups of every rank in tables that are sharded over all of them, many tables at once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_tensors.h"
#include "sharded/bag_batch.h"
#include "sharded/table_lookup.h"

namespace dtensor::sharded {

struct TableRequest {
  TableParts table;
  Pooling pooling = Pooling::kNone;
  std::optional<int64_t> padding_idx;  // not negative
  std::optional<double> max_norm;
  double norm_type = 2;
};

// The request of the i-th owned rank to every table. May throw: then every rank gets the error.
using BagsOfRank = std::function<std::vector<BagBatch>(size_t i)>;

// Looks up each rank's own bags: the result's [t][i] are [bags, columns] of table t for the i-th owned rank. All tables
// are over one group. Collectives: one all_gather of the ids of all tables, one exchange of rows of all tables of a
// dtype, whose gradients take one exchange back; besides, one exchange where there are weights of samples, one
// all_reduce per table that is cut by columns and has a max_norm. `same_sizes`: all ranks request as many ids and bags,
// and all bags of a table have the same length; otherwise the ranks exchange sizes by further small all_gathers, and a
// fault of one rank's input is an error on all. Errors: such faults; ids without a row in the table (ValueError), the
// same on all ranks, before any table is changed.
std::vector<dtensor::internal::RankTensors> lookup_tables(const std::vector<TableRequest>& requests,
                                                          const BagsOfRank& bags_of, bool same_sizes,
                                                          const std::string& op);

// Only the renormalisation that precedes the lookup: of the rows that any rank requests.
void renormalize_table(const TableRequest& request, const BagsOfRank& bags_of, const std::string& op);

}  // namespace dtensor::sharded
