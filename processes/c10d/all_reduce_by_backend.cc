#include "processes/c10d/all_reduce_by_backend.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dtensor::internal {
namespace {

// Tensors that the backend gets in one form.
struct Batch {
  Reduction form;
  std::vector<size_t> indices;  // among the inputs
  std::vector<at::Tensor> tensors;
};

bool same_form(const Reduction& a, const Reduction& b) {
  return a.carrier == b.carrier && a.dtype == b.dtype && a.op == b.op;
}

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  constexpr c10d::ReduceOp::RedOpType kOps[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                                                c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  return kOps[static_cast<size_t>(op)];
}

}  // namespace

std::vector<size_t> all_reduce_by_backend(const LinkCall& call, CommBackend backend, const Pieces& inputs, ReduceOp op,
                                          Pieces& results) {
  std::vector<Batch> batches;
  std::vector<size_t> rest;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Reduction form = reduction_by(backend, Collective::kAllReduce, inputs[k].scalar_type(), op);
    if (form.carrier == Carrier::kInOrder) {
      rest.push_back(k);
    } else if (inputs[k].numel() == 0) {
      results[k] = at::empty(inputs[k].sizes(), inputs[k].options());
    } else {
      auto batch =
          std::find_if(batches.begin(), batches.end(), [&](const Batch& b) { return same_form(b.form, form); });
      if (batch == batches.end()) batch = batches.insert(batches.end(), Batch{form, {}, {}});
      batch->indices.push_back(k);
      batch->tensors.push_back(to_carrier(inputs[k], form));
    }
  }
  // The results are the tensors that the backend reduces, but for those that it reduces in another width.
  const bool is_async =
      call.device.is_cuda() && call.is_async() && rest.empty() &&
      std::none_of(batches.begin(), batches.end(), [](const Batch& b) { return b.form.carrier == Carrier::kAsInt32; });
  std::vector<c10::intrusive_ptr<c10d::Work>> begun;
  for (Batch& batch : batches) {
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = c10d_op(batch.form.op);
    const StartWork start = [process_group = call.link.backend.get(), tensors = batch.tensors, options]() mutable {
      return start_alone([&] { return process_group->allreduce_coalesced(tensors, options); });
    };
    if (is_async) {
      begun.push_back(begin_on_gpu(call, start));
    } else {
      run(call, start);
    }
    for (size_t i = 0; i < batch.indices.size(); ++i) {
      const size_t k = batch.indices[i];
      results[k] = from_carrier(batch.tensors[i], batch.form, inputs[k].scalar_type());
    }
  }
  if (!begun.empty()) *call.call.work = wait_on_gpu(call.device, std::move(begun));
  return rest;
}

}  // namespace dtensor::internal
