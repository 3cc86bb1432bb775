// Continuous batching: which sequences a batch generates, one per slot, and how long they are. Sequences join and leave
// while others go on, and every step has tensors of the same shapes, however long the sequences are.
//
//   SequenceSlots slots(/*slots=*/4, /*capacity=*/256);
//   const int64_t slot = *slots.join();
//   const GenerationStep step = slots.step({5, 0, 0, 0}, /*columns=*/8);   // 5 tokens of the new sequence, padded to 8
//   const at::Tensor scores = model->score_next(ids, step, caches);        // ids: [4, 8]; a KVCache (kv_cache.h) per layer
//   slots.advance(step);                                                   // the sequence has 5 tokens now
//
// Source: Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI 2022.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dtensor {

// The new tokens of one step: of slot s the first counts[s] columns, the columns after those are padding.
struct GenerationStep {
  std::vector<int64_t> counts;
  at::Tensor positions;  // int64 [slots, columns]: of each token in its sequence, at most capacity - 1
  at::Tensor targets;    // int64 [slots, columns]: where a KVCache writes; of padding the capacity
  at::Tensor mask;       // bool [slots, 1, columns, capacity]: the positions that a token attends to, itself included
  at::Tensor last;       // int64 [slots]: the column of the slot's last token; 0 where it has none

  int64_t slots() const { return mask.size(0); }
  int64_t columns() const { return mask.size(2); }
  int64_t capacity() const { return mask.size(3); }
};

// Lives in the program, not on the ranks: in a job all processes call it alike.
class SequenceSlots {
 public:
  // `capacity`: tokens that a sequence may have. Error (ValueError): a number < 1.
  SequenceSlots(int64_t slots, int64_t capacity);

  int64_t size() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }

  // Takes the first free slot for a sequence without tokens. nullopt: all slots are taken.
  std::optional<int64_t> join();
  // Frees a slot. Error (ValueError): it is free.
  void leave(int64_t slot);
  // The tokens of the slot's sequence so far; nullopt: the slot is free. Error (IndexError): no such slot.
  std::optional<int64_t> length(int64_t slot) const;

  // The next step: counts[s] more tokens of slot s, in `columns` columns; 0: as many as the largest count. Changes
  // nothing. The tensors are replicated on the mesh of the MeshScope, without communication; outside one they are
  // plain, on `device`. Errors (ValueError): not one count per slot, a count that is negative, above `columns`, or of a
  // free slot; a sequence would have more tokens than the capacity; all counts are 0 and `columns` is, too.
  GenerationStep step(const std::vector<int64_t>& counts, int64_t columns = 0, c10::Device device = c10::kCPU) const;
  // After the model ran: the sequences have these tokens now. If it failed, call step() again instead.
  // Errors: those of step() for the same counts.
  void advance(const GenerationStep& step);

 private:
  void check_counts(const std::vector<int64_t>& counts, int64_t columns, const char* function) const;

  std::vector<std::optional<int64_t>> lengths_;
  int64_t capacity_;
};

}  // namespace dtensor
