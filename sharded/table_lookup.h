// Lookups in the part of a table on one rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <optional>
#include <string>
#include <vector>

#include "sharded/bag_batch.h"
#include "sharded/process_group.h"

namespace dtensor::sharded {

// A table cut by rows or columns over the ranks of a group; a rank may hold nothing.
struct TableParts {
  ProcessGroup group;
  int64_t dim = 0;                  // 0: by rows, 1: by columns
  std::vector<IndexRange> windows;  // the range of each position along `dim`
  std::vector<at::Tensor> parts;    // of the owned ranks; undefined where one holds nothing
  int64_t rows = 0, columns = 0;
  c10::TensorOptions options;
  bool requires_grad = false;

  IndexRange rows_at(int64_t position) const { return dim == 0 ? windows[position] : IndexRange{0, rows}; }
  int64_t columns_at(int64_t position) const { return dim == 0 ? columns : windows[position].size; }
};

enum class Pooling { kNone, kSum, kMean, kMax };  // kNone: every id a row
Pooling pooling_of(const std::string& mode);

// The part's contribution to all bags: [bags, columns of the part], complete if split by columns, else an addend: to be
// summed, and divided by the bags' lengths for a mean; for a maximum -inf where a bag has no row here.
// `bags`: of the whole table, ids checked. Differentiable in the part and the weights.
at::Tensor lookup(const TableParts& table, int64_t position, const at::Tensor& part, const BagBatch& bags,
                  Pooling pooling, std::optional<int64_t> padding_idx);

// Shortens the rows of `ids` that are longer than max_norm, in place, as torch::embedding_renorm_ does. One all_reduce
// where several ranks hold some columns.
void renormalize(const TableParts& table, const at::Tensor& ids, double max_norm, double norm_type,
                 const std::string& op);

}  // namespace dtensor::sharded
