// The reduce_scatter of one group of GPUs of this process.
#pragma once

#include <optional>
#include <vector>

#include "comm/backend_capabilities.h"
#include "comm/communicator.h"
#include "processes/nccl/nccl_comms.h"

namespace dtensor::internal {

// The inputs of all ranks, in a row of elements, receiver by receiver; the outputs of all, in another.
struct GroupScatter {
  const std::vector<int64_t>* members = nullptr;
  std::vector<absl::Span<const Message>> runs;  // by the receiver's and the sender's position

  // Whether NCCL can do it: every rank has an addend for every rank with an output, all of one dtype that the table
  // allows.
  bool form(const RankSlots& slots, const RankPieces& outputs, ReduceOp op);
  // Adds the calls to `part`, and to `keep` what they read. One reduce_scatter where all get as much, else one reduce
  // for each. REQUIRES: form().
  void call(NcclComms::Part& part, const RankSlots& slots, const RankPieces& inputs, RankTensors& keep);
  // After the calls: writes the results to their places. Does nothing without call().
  void unpack(const RankSlots& slots, const RankPieces& outputs) const;

 private:
  size_t size() const { return members->size(); }
  absl::Span<const Message> run(size_t receiver, size_t sender) const { return runs[receiver * size() + sender]; }
  at::TensorOptions options_of(size_t sender, const RankSlots& slots, const RankPieces& inputs) const;

  std::optional<Reduction> reduction;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> counts;  // by the receiver's position
  RankTensors received;         // likewise
};

}  // namespace dtensor::internal
