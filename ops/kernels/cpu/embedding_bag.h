// Embedding bags over the rows of a table that one rank holds, and their gradients, each in one pass over the ids.
// Half and bfloat16 are added up in float. The results have the same bits for any number of threads.
#pragma once

#include "ops/kernels/embedding_bag.h"

namespace dtensor::cpu {

// Errors (IndexError): an id outside [0, num_rows); offsets that do not begin with 0, descend or exceed num_ids.
void masked_embedding_bag(const internal::BagLookup& b);

// Errors of both (IndexError): an id outside [0, num_rows).
void masked_embedding_bag_backward(const internal::BagGradient& g);
void masked_embedding_bag_weights_backward(const internal::BagWeightsGradient& g);

}  // namespace dtensor::cpu
