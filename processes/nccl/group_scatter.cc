#include "processes/nccl/group_scatter.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>

#include "comm/block_copy.h"
#include "comm/packed_blocks.h"
#include "processes/nccl/nccl_types.h"

namespace dtensor::internal {
namespace {

using Kind = NcclCall::Kind;

int64_t elements(absl::Span<const Message> run) {
  int64_t count = 0;
  for (const Message& m : run) count += numel_of(m.block.sizes);
  return count;
}

// The blocks of messages, one after the other in a tensor of one dim; `sending`: as they come from it, else as they go
// to it.
void copy_elements(absl::Span<const Message> run, const at::Tensor& row, int64_t offset, const RankPieces& pieces,
                   int64_t slot, bool sending) {
  for (const Message& m : run) {
    const Shape& sizes = m.block.sizes;
    const at::Tensor& end = pieces[slot][sending ? m.input : m.output];
    const at::Tensor of_row = row.narrow(0, offset, numel_of(sizes)).view(c10::IntArrayRef(sizes.data(), sizes.size()));
    const at::Tensor of_end = block_view(end, sending ? m.block.from : m.block.to, sizes);
    sending ? of_row.copy_(of_end) : of_end.copy_(of_row);
    offset += numel_of(sizes);
  }
}

}  // namespace

bool GroupScatter::form(const RankSlots& slots, const RankPieces& outputs, ReduceOp op) {
  std::optional<at::ScalarType> one;
  for (size_t p = 0; p < size(); ++p) {
    counts.push_back(elements(run(p, 0)));
    for (size_t q = 0; q < size(); ++q) {
      if (elements(run(p, q)) != counts[p]) return false;
      for (const Message& m : run(p, q)) {
        const at::ScalarType type = outputs[slots[m.receiver]][m.output].scalar_type();
        if (one.value_or(type) != type) return false;
        one = type;
      }
    }
  }
  if (!one) return false;
  dtype = *one;
  const Reduction by = reduction_by(CommBackend::kNcclLocal, Collective::kReduceScatter, dtype, op);
  if (by.carrier == Carrier::kInOrder) return false;
  reduction = by;
  return true;
}

void GroupScatter::call(NcclComms::Part& part, const RankSlots& slots, const RankPieces& inputs, RankTensors& keep) {
  const int64_t unit = reduction->carrier == Carrier::kAsReal ? 2 : 1;
  int64_t total = 0;
  for (int64_t count : counts) total += count;
  if (total == 0) return;
  const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
  RankTensors rows;
  for (size_t q = 0; q < size(); ++q) {
    const int64_t slot = slots[(*members)[q]];
    const at::TensorOptions options = options_of(q, slots, inputs);
    const at::Tensor packed = at::empty({total}, options);
    int64_t offset = 0;
    for (size_t p = 0; p < size(); ++p) {
      copy_elements(run(p, q), packed, offset, inputs, slot, /*sending=*/true);
      offset += counts[p];
    }
    rows.push_back(reduction->carrier == Carrier::kNative ? packed : to_carrier(packed, *reduction));
    at::DimVector shape{counts[q]};
    if (unit == 2) shape.push_back(2);
    received.push_back(at::empty(shape, options.dtype(reduction->dtype)));
  }
  const auto add = [&](Kind kind, size_t position, int64_t offset, int64_t count, size_t root) {
    part.calls.push_back(
        {.kind = kind,
         .position = static_cast<int64_t>(position),
         .from = static_cast<const char*>(rows[position].data_ptr()) + offset * rows[position].element_size(),
         .to = kind == Kind::kReduceScatter || position == root ? received[position].data_ptr() : nullptr,
         .count = static_cast<size_t>(count),
         .dtype = nccl_dtype(reduction->dtype),
         .op = nccl_op(reduction->op),
         .peer = static_cast<int>(root)});
  };
  if (even) {
    for (size_t q = 0; q < size(); ++q) add(Kind::kReduceScatter, q, 0, counts[0] * unit, q);
  } else {
    int64_t offset = 0;
    for (size_t p = 0; p < size(); ++p) {
      for (size_t q = 0; q < size() && counts[p] > 0; ++q) add(Kind::kReduce, q, offset * unit, counts[p] * unit, p);
      offset += counts[p];
    }
  }
  std::move(rows.begin(), rows.end(), std::back_inserter(keep));
}

void GroupScatter::unpack(const RankSlots& slots, const RankPieces& outputs) const {
  for (size_t p = 0; p < received.size(); ++p) {
    if (counts[p] == 0) continue;
    const at::Tensor row = from_carrier(received[p], *reduction, dtype);
    copy_elements(run(p, 0), row, 0, outputs, slots[(*members)[p]], /*sending=*/false);
  }
}

at::TensorOptions GroupScatter::options_of(size_t sender, const RankSlots& slots, const RankPieces& inputs) const {
  for (size_t p = 0; p < size(); ++p) {
    if (!run(p, sender).empty()) return inputs[slots[(*members)[sender]]][run(p, sender)[0].input].options();
  }
  return {};
}

}  // namespace dtensor::internal
