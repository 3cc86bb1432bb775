#include "dtensor/sequence_slots.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/le.h>

#include <algorithm>
#include <utility>

#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor {

SequenceSlots::SequenceSlots(int64_t slots, int64_t capacity) : capacity_(capacity) {
  TORCH_CHECK_VALUE(slots >= 1, "[SequenceSlots] slots is ", slots, ": at least 1 is expected");
  TORCH_CHECK_VALUE(capacity >= 1, "[SequenceSlots] capacity is ", capacity, ": at least 1 is expected");
  lengths_.resize(static_cast<size_t>(slots));
}

std::optional<int64_t> SequenceSlots::join() {
  const auto free = std::find(lengths_.begin(), lengths_.end(), std::nullopt);
  if (free == lengths_.end()) return std::nullopt;
  *free = 0;
  return free - lengths_.begin();
}

void SequenceSlots::leave(int64_t slot) {
  TORCH_CHECK_VALUE(length(slot), "[SequenceSlots] leave: slot ", slot, " is free: it has no sequence to leave");
  lengths_[static_cast<size_t>(slot)].reset();
}

std::optional<int64_t> SequenceSlots::length(int64_t slot) const {
  TORCH_CHECK_INDEX(slot >= 0 && slot < size(), "[SequenceSlots] slot is ", slot, ": 0 to ", size() - 1,
                    " are expected");
  return lengths_[static_cast<size_t>(slot)];
}

void SequenceSlots::check_counts(const std::vector<int64_t>& counts, int64_t columns, const char* function) const {
  TORCH_CHECK_VALUE(counts.size() == lengths_.size(), "[SequenceSlots] ", function, ": ", counts.size(), " counts for ",
                    size(), " slots: give one per slot, 0 for slots without new tokens");
  for (size_t s = 0; s < counts.size(); ++s) {
    const int64_t before = lengths_[s].value_or(0);
    TORCH_CHECK_VALUE(counts[s] >= 0 && counts[s] <= columns, "[SequenceSlots] ", function, ": the count of slot ", s,
                      " is ", counts[s], ": 0 to ", columns, ", the number of columns, are expected");
    TORCH_CHECK_VALUE(counts[s] == 0 || lengths_[s], "[SequenceSlots] ", function, ": slot ", s,
                      " is free, but has a count of ", counts[s], ": join() takes a slot");
    TORCH_CHECK_VALUE(before + counts[s] <= capacity_, "[SequenceSlots] ", function, ": the sequence of slot ", s,
                      " has ", before, " tokens and would get ", counts[s], " more, but the capacity is ", capacity_,
                      ": let it leave(), or make slots and caches with a larger capacity");
  }
}

GenerationStep SequenceSlots::step(const std::vector<int64_t>& counts, int64_t columns, c10::Device device) const {
  if (columns == 0 && !counts.empty()) columns = *std::max_element(counts.begin(), counts.end());
  TORCH_CHECK_VALUE(columns >= 1, "[SequenceSlots] step: ", columns, " columns: at least 1 is expected");
  check_counts(counts, columns, "step");

  GenerationStep step;
  step.counts = counts;
  const DeviceMesh mesh = internal::current_dispatch_scope().mesh;
  const PlainFactories plain;
  step.positions = at::empty({size(), columns}, at::kLong);
  step.targets = at::empty({size(), columns}, at::kLong);
  step.last = at::empty({size()}, at::kLong);
  auto* positions = step.positions.mutable_data_ptr<int64_t>();
  auto* targets = step.targets.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s < counts.size(); ++s) {
    const int64_t before = lengths_[s].value_or(0);
    for (int64_t c = 0; c < columns; ++c) {
      *positions++ = std::min(before + c, capacity_ - 1);
      *targets++ = c < counts[s] ? before + c : capacity_;
    }
    step.last.mutable_data_ptr<int64_t>()[s] = std::max<int64_t>(counts[s] - 1, 0);
  }
  step.mask = at::arange(capacity_, at::kLong).le(step.positions.unsqueeze(-1)).unsqueeze(1);
  for (at::Tensor* t : {&step.positions, &step.targets, &step.mask, &step.last})
    *t = mesh.defined() ? distribute_tensor(*t, mesh, {}, /*source_rank=*/std::nullopt) : t->to(device);
  return step;
}

void SequenceSlots::advance(const GenerationStep& step) {
  check_counts(step.counts, step.columns(), "advance");
  for (size_t s = 0; s < lengths_.size(); ++s) {
    if (lengths_[s]) *lengths_[s] += step.counts[s];
  }
}

}  // namespace dtensor
