// The communicator of World::local: every rank of every group is in this process.
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/Exception.h>

#include <utility>

#include "mesh/communicator.h"

namespace dtensor {
namespace {

// Where the ranks of a call stand in its vectors.
class Slots {
 public:
  explicit Slots(const CommCall& call) : slot_(call.group->group_of.size(), -1) {
    for (size_t i = 0; i < call.ranks.size(); ++i) slot_[call.ranks[i]] = static_cast<int64_t>(i);
    for (int64_t rank : call.ranks) {
      for (int64_t member : call.group->members[call.group->group_of[rank]]) {
        TORCH_CHECK(slot_[member] >= 0, "in-process communicator: call.ranks has rank ", rank, " but not rank ", member,
                    " of the same group ", call.group->name, "; pass all ranks of a group");
      }
    }
  }
  int64_t operator[](int64_t rank) const { return slot_[rank]; }

 private:
  std::vector<int64_t> slot_;
};

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// A fresh tensor. For bool, sum is "or" and product is "and", as ATen's add and mul have it.
at::Tensor reduce_in_order(const std::vector<at::Tensor>& addends, ReduceOp op, c10::Device device) {
  const auto dtype = addends[0].scalar_type();
  const auto sum_dtype = c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  at::Tensor result = addends[0].to(device, sum_dtype, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < addends.size(); ++i) {
    const at::Tensor addend = addends[i].to(device, sum_dtype);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result.add_(addend);
        break;
      case ReduceOp::kProduct:
        result.mul_(addend);
        break;
      case ReduceOp::kMin:
        at::minimum_out(result, result, addend);
        break;
      case ReduceOp::kMax:
        at::maximum_out(result, result, addend);
        break;
    }
  }
  if (op == ReduceOp::kAvg) result.div_(static_cast<int64_t>(addends.size()));
  return result.to(dtype);
}

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(std::vector<c10::Device> devices) : devices_(std::move(devices)) {}

  bool needs_shapes() const override { return false; }

 protected:
  RankPieces do_all_gather(const CommCall& call, const RankTensors& inputs) override {
    const Slots slots(call);
    RankPieces results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      for (int64_t member : members(call, i)) results[i].push_back(inputs[slots[member]].to(device(call, i)));
    }
    return results;
  }

  RankTensors do_all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op) override {
    const Slots slots(call);
    RankTensors results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (position(call, i) != 0) continue;
      std::vector<at::Tensor> addends;
      for (int64_t member : members(call, i)) addends.push_back(inputs[slots[member]]);
      results[i] = reduce_in_order(addends, op, device(call, i));
      for (int64_t member : members(call, i)) {
        if (member != call.ranks[i]) results[slots[member]] = copy_to(results[i], devices_[member]);
      }
    }
    return results;
  }

  RankTensors do_reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    const Slots slots(call);
    RankTensors results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      std::vector<at::Tensor> addends;
      for (int64_t member : members(call, i)) addends.push_back(inputs[slots[member]][position(call, i)]);
      results[i] = reduce_in_order(addends, op, device(call, i));
    }
    return results;
  }

  RankPieces do_all_to_all(const CommCall& call, const RankPieces& inputs) override {
    const Slots slots(call);
    RankPieces results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      for (int64_t member : members(call, i)) {
        results[i].push_back(inputs[slots[member]][position(call, i)].to(device(call, i)));
      }
    }
    return results;
  }

  RankTensors do_broadcast(const CommCall& call, const RankTensors& inputs, int64_t source) override {
    const Slots slots(call);
    RankTensors results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = copy_to(inputs[slots[members(call, i)[source]]], device(call, i));
    }
    return results;
  }

  RankTensors do_scatter(const CommCall& call, const RankPieces& inputs, int64_t source) override {
    const Slots slots(call);
    RankTensors results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = copy_to(inputs[slots[members(call, i)[source]]][position(call, i)], device(call, i));
    }
    return results;
  }

  RankPieces do_gather(const CommCall& call, const RankTensors& inputs, int64_t target) override {
    const Slots slots(call);
    RankPieces results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (position(call, i) != target) continue;
      for (int64_t member : members(call, i)) results[i].push_back(inputs[slots[member]].to(device(call, i)));
    }
    return results;
  }

  RankTensors do_permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources) override {
    const Slots slots(call);
    RankTensors results(call.ranks.size());
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = copy_to(inputs[slots[members(call, i)[sources[position(call, i)]]]], device(call, i));
    }
    return results;
  }

  void do_barrier(const CommCall&) override {}

 private:
  static const std::vector<int64_t>& members(const CommCall& call, size_t i) {
    return call.group->members[call.group->group_of[call.ranks[i]]];
  }
  static int64_t position(const CommCall& call, size_t i) { return call.group->position_of[call.ranks[i]]; }
  c10::Device device(const CommCall& call, size_t i) const { return devices_[call.ranks[i]]; }

  std::vector<c10::Device> devices_;  // by rank
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(std::vector<c10::Device> devices) {
  return std::make_unique<LocalCommunicator>(std::move(devices));
}

}  // namespace dtensor
