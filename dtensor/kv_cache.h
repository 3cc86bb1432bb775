// The keys and values of earlier tokens, which an attention layer keeps while a model generates. Every slot of the
// batch has a sequence of its own length (sequence_slots.h). All steps with as many columns have tensors of the same
// shapes, so that operators take their decisions from the strategy cache, however long the sequences are.
//
//   const auto [keys, values] = cache.update(step, k, v);   // of all positions so far
//   const at::Tensor y = at::scaled_dot_product_attention(q, keys, values, step.mask);
//
// It communicates nothing if keys are sharded by heads or by sequences, as wk and wv sharded by rows make them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "placement/placement.h"

namespace dtensor {

struct GenerationStep;  // sequence_slots.h

// Of one layer. Distributed if the keys are, plain if they are. Copies made after the first update() share the memory.
class KVCache {
 public:
  // `placements`: the layout of the cached keys and values. {}: that of the first keys where these shard sequences or
  // heads (dims 0 and 1), Replicate on other mesh dims.
  explicit KVCache(Placements placements = {}) : placements_(std::move(placements)) {}

  // Writes the keys and values of new tokens, k and v: [slots, heads, columns, size], and returns those of all
  // positions, [slots, heads, capacity, size], in the cache's layout: views of its memory, which the next update()
  // changes. Values at positions that step.mask excludes are those of an earlier sequence of the slot, or 0. The first
  // call allocates, with room for one more position, to which padding goes; all later ones write in place. Errors
  // (ValueError), before anything is written: k or v does not fit the step or the first ones in shape, dtype or mesh
  // (make the step inside the MeshScope); gradients are wanted, as writing in place would mix up the steps.
  std::pair<at::Tensor, at::Tensor> update(const GenerationStep& step, const at::Tensor& k, const at::Tensor& v);

  // Writes zeros to the keys and values of a slot. Not needed for a new sequence, unless the one before it had infinite
  // or nan values: attention multiplies excluded values by 0. Error (IndexError): no such slot.
  void clear(int64_t slot);

  // [slots, heads, capacity + 1, size]; undefined before the first update().
  const at::Tensor& keys() const { return keys_; }
  const at::Tensor& values() const { return values_; }

 private:
  Placements placements_;
  at::Tensor keys_, values_;
};

}  // namespace dtensor
