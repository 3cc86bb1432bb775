#include "dtensor/gradients/reduce_together.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/comm_work.h"
#include "comm/scope.h"
#include "dtensor/gradients/bucket_settings.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/gradients/open_gradient.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/cast_parts.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// .grad may have been removed.
bool has_nothing_to_reduce(const at::Tensor& leaf) {
  const at::Tensor& g = leaf.grad();
  return !is_dtensor(leaf) || !is_dtensor(g) || spec_of(g)->placements() == spec_of(leaf)->placements();
}

c10::ScalarType reduction_dtype(const at::Tensor& leaf, const at::Tensor& gradient) {
  const Spec& spec = *spec_of(gradient);
  if (!c10::isFloatingType(spec.dtype()) || !spec.has_partial()) return spec.dtype();
  if (const auto group = leaf_group_of(leaf)) return group->reduce_dtype().value_or(spec.dtype());
  const auto of_module = mixed_precision_of(leaf).reduce_dtype;
  return of_module ? *of_module : bucket_settings(spec.mesh().world()).reduce_dtype.value_or(spec.dtype());
}

// "while reducing the gradients of '2.bias', '2.weight' and 1 without a name, on rank 1, for gradient"
std::string context_of(const std::vector<at::Tensor>& leaves, const std::string& op) {
  std::vector<std::string> names;
  int64_t unnamed = 0;
  for (const at::Tensor& leaf : leaves) {
    const auto& name = meta_without_sync(leaf).name;
    if (name) {
      names.push_back(absl::StrCat("'", *name, "'"));
    } else {
      ++unnamed;
    }
  }
  std::string text = absl::StrCat("while reducing the gradients of ", absl::StrJoin(names, ", "));
  if (unnamed > 0) absl::StrAppend(&text, names.empty() ? "" : " and ", unnamed, " without a name");
  const World& world = spec_of(leaves.front())->mesh().world();
  const auto& owned = world.owned_ranks();
  if (owned.size() == 1 && world.size() > 1) absl::StrAppend(&text, ", on rank ", owned.front());
  return absl::StrCat(text, ", for ", op);
}

template <typename Fn>
auto with_context(const std::string& context, const Fn& run) {
  try {
    return run();
  } catch (c10::Error& e) {
    e.add_context(context);
    throw;
  } catch (const std::exception& e) {
    TORCH_CHECK(false, e.what(), "\n  ", context);
  }
}

// Errors of the collective that fills in `sums` get the context. (Every waiter throws the same exception object, hence
// one work for all.)
void add_context_to_arrival(const std::vector<at::Tensor>& sums, const std::string& context) {
  std::shared_ptr<CommWork> begun, named;
  for (const at::Tensor& sum : sums) {
    DTensorMeta& meta = mutable_hints(sum);
    if (!meta.arriving || meta.arriving->done()) continue;
    if (meta.arriving != begun) {
      begun = meta.arriving;
      named = std::make_shared<CommWork>([begun, context] { with_context(context, [&] { begun->wait(); }); });
    }
    meta.arriving = named;
  }
}

}  // namespace

void begin_reduction(std::vector<at::Tensor> leaves, const ReduceOptions& options) {
  const c10::AutoGradMode no_grad(false);
  leaves.erase(std::remove_if(leaves.begin(), leaves.end(), has_nothing_to_reduce), leaves.end());
  if (leaves.empty()) return;
  std::vector<at::Tensor> gradients;
  std::vector<Layout> to;
  for (const at::Tensor& leaf : leaves) {
    gradients.push_back(cast_parts(leaf.grad(), reduction_dtype(leaf, leaf.grad())));
    to.emplace_back(spec_of(leaf)->mesh(), spec_of(leaf)->placements());
  }
  const auto& name = meta_without_sync(leaves.front()).name;
  std::string argument = name ? *name : "";
  if (name && leaves.size() > 1) absl::StrAppend(&argument, " and ", leaves.size() - 1, " more");
  const CommCause cause{options.op, argument, name ? common_module(leaves) : current_scope().module_path,
                        options.implicit};
  const std::string context = context_of(leaves, options.op);
  const std::vector<at::Tensor> sums =
      with_context(context, [&] { return redistribute_as(gradients, to, cause, {.async_op = options.async}); });
  add_context_to_arrival(sums, context);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor sum = cast_arriving_parts(sums[i], spec_of(leaves[i].grad())->dtype());
    if (!put_sum_in_open(leaves[i].grad(), sum)) leaves[i].mutable_grad() = sum;
  }
}

void wait_for_sums(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    if (is_dtensor(leaf.grad())) meta_for_write(leaf.grad());
  }
}

void close_gradients(const std::vector<at::Tensor>& leaves) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& leaf : leaves) {
    if (!is_dtensor(leaf.grad())) continue;
    close_gradient(leaf.grad());
    offload_gradient(leaf);
  }
}

void reduce_together(const std::vector<at::Tensor>& leaves, const ReduceOptions& options) {
  begin_reduction(leaves, options);
  wait_for_sums(leaves);
  close_gradients(leaves);
}

at::Tensor reduce_at_once(const at::Tensor& leaf, const at::Tensor& gradient, const CommCause& cause) {
  const Layout leaf_layout(spec_of(leaf)->mesh(), spec_of(leaf)->placements());
  const c10::ScalarType own = spec_of(gradient)->dtype();
  const at::Tensor addends =
      c10::GradMode::is_enabled() ? gradient : cast_parts(gradient, reduction_dtype(leaf, gradient));
  const at::Tensor sum = with_context(context_of({leaf}, cause.op), [&] {
    return redistribute_as(at::TensorList(&addends, 1), c10::ArrayRef<Layout>(leaf_layout), cause)[0];
  });
  return spec_of(sum)->dtype() == own ? sum : cast_parts(sum, own);
}

}  // namespace dtensor::internal
