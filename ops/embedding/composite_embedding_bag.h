// Embedding bags over the rows of a table that one rank holds, and their gradients, composed of ATen's operators: for
// devices without our kernels (masked_embedding_bag.h), and to compare those with.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernels/embedding_bag.h"

namespace dtensor::internal {

// The ids of all bags, where each bag begins, and for sums a weight per id (undefined: all are 1).
struct Bags {
  at::Tensor ids, offsets, weights;
  int64_t mode = kBagSum;
  bool include_last_offset = false;

  int64_t size() const { return offsets.size(0) - (include_last_offset ? 1 : 0); }
};

struct BagResults {
  at::Tensor result;     // [bags, features]; for maxima of bags without an id here -infinity
  at::Tensor bag_of_id;  // the bag of each id
  at::Tensor bag_size;   // the ids of each bag on all ranks, without padding
  at::Tensor max_ids;    // for maxima: the ids whose rows have them, -1 where `result` is -infinity; else empty
};

// As at::_embedding_bag() of the whole table, but ids outside `rows` add nothing. The sum of the results of all ranks
// (for kBagMax: the largest of them) is that of the whole table. Error (IndexError): an id outside the table.
BagResults masked_embedding_bag(const at::Tensor& part, const Bags& bags, const TableRows& rows);

// What the gradient of the rows depends on; the lookup's arguments and results.
struct BagsOfIds {
  at::Tensor ids, bag_of_id, weights, bag_size, max_ids;
  int64_t mode = kBagSum;
};

// The gradient of `rows`, [rows.size, features].
at::Tensor masked_embedding_bag_backward(const at::Tensor& grad, const BagsOfIds& bags, const TableRows& rows);

// The gradient of the weights of a sum: 0 for padding and ids outside `rows`.
at::Tensor masked_embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& part, const at::Tensor& ids,
                                                 const at::Tensor& bag_of_id, const TableRows& rows);

// The bag that contains each of the positions [begin, begin + count): the last one that begins there or before.
// `offsets`: of all bags.
at::Tensor bags_of(const at::Tensor& offsets, int64_t begin, int64_t count);

}  // namespace dtensor::internal
