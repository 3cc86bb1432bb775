#include "dtensor/gradients/waiting_gradient.h"

#include <ATen/core/grad_mode.h>

#include "dtensor/gradients/open_gradient.h"
#include "dtensor/gradients/reduce_together.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

std::vector<at::Tensor> leaves_of(const WaitingGradients& waiting) {
  std::vector<at::Tensor> leaves;
  for (const WaitingGradient& w : waiting) leaves.push_back(w.leaf);
  return leaves;
}

}  // namespace

void begin_to_reduce(WaitingGradients& waiting, bool async) {
  std::vector<at::Tensor> before;
  for (const WaitingGradient& w : waiting) before.push_back(w.leaf.grad());
  begin_reduction(leaves_of(waiting), {.async = async});
  if (!async) return;
  for (size_t i = 0; i < waiting.size(); ++i) {
    WaitingGradient& w = waiting[i];
    if (w.leaf.grad().is_same(before[i])) continue;
    w.sum = w.leaf.grad();
    if (w.had_gradient && !w.put_aside.defined()) w.unreduced = before[i];
  }
}

void wait_until_reduced(const WaitingGradients& waiting) {
  wait_for_sums(leaves_of(waiting));
  for (const WaitingGradient& w : waiting) {
    if (w.sum.defined()) meta_for_write(w.sum);  // also where a hook has replaced .grad: its error must not be lost
  }
}

void take_sums(const WaitingGradients& waiting) {
  close_gradients(leaves_of(waiting));
  const c10::AutoGradMode no_grad(false);
  for (const WaitingGradient& w : waiting) {
    if (!w.put_aside.defined() || !w.leaf.grad().defined()) continue;
    w.leaf.mutable_grad() = w.put_aside.add_(w.leaf.grad());
    offload_gradient(w.leaf);
  }
}

void undo(const WaitingGradients& waiting) {
  for (const WaitingGradient& w : waiting) {
    if (w.put_aside.defined()) w.leaf.mutable_grad() = w.put_aside;
    const at::Tensor& gradient = w.leaf.grad();
    if (!is_dtensor(w.leaf) || !is_dtensor(gradient) || forget_addends(gradient)) continue;
    if (w.sum.defined()) {
      if (gradient.is_same(w.sum)) w.leaf.mutable_grad() = w.unreduced;
    } else if (!w.had_gradient && spec_of(gradient)->placements() != spec_of(w.leaf)->placements()) {
      w.leaf.mutable_grad() = at::Tensor();
    }
  }
}

}  // namespace dtensor::internal
