#include "sharded/shard_tensor.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "sharded/errors.h"

namespace dtensor::sharded {
namespace {

// Every rank's text, compared with the first rank's.
void check_agreed(const ProcessGroup& group, const char* what, const std::vector<std::string>& rank_texts) {
  for (int64_t i = 1; i < group.size(); ++i) {
    if (rank_texts[i].empty() || rank_texts[0].empty()) continue;  // worlds without data
    TORCH_CHECK_VALUE(rank_texts[i] == rank_texts[0], what, "=", rank_texts[0], " on rank: ", group.ranks()[0],
                      " does not match with ", what, "=", rank_texts[i], " on rank: ", group.ranks()[i]);
  }
}

ShardedTensor shard_checked(const at::Tensor& tensor, const AnyShardingSpec& spec, const ProcessGroup& group,
                            int64_t src_rank, const std::string& not_contiguous) {
  TORCH_CHECK_VALUE(group.defined() && spec.defined(), "sharding a tensor needs a process group and a spec");
  check_agreed(group, "src_rank", exchange_texts(group, "shard_tensor", [&](int64_t) {
                 TORCH_CHECK_VALUE(tensor.defined() && !is_sharded(tensor), "the tensor to shard is ",
                                   tensor.defined() ? "sharded already" : "undefined");
                 TORCH_CHECK_VALUE(tensor.is_contiguous(), not_contiguous);
                 return std::to_string(src_rank);
               }));
  check_agreed(group, "sharding_spec",
               exchange_texts(group, "shard_tensor", [&](int64_t) { return spec->to_string(); }));
  check_agreed(group, "size", exchange_texts(group, "shard_tensor", [&](int64_t) {
                 return c10::str(tensor.sizes(), " ", tensor.scalar_type(), " requires_grad=", tensor.requires_grad());
               }));
  return spec->shard(tensor, src_rank, group);
}

// The parameter or buffer `name`.
at::Tensor registered(torch::nn::Module& module, const std::string& name) {
  std::string known;
  for (const auto& list : {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : list) {
      if (item.key() == name) return item.value();
      known += (known.empty() ? "" : ", ") + item.key();
    }
  }
  for (const auto& child : module.named_children()) {
    TORCH_CHECK_VALUE(child.key() != name, "Expected ", module.name(), ".", name, " to be a Tensor, but found ",
                      child.value()->name());
  }
  raise<AttributeError>(module.name(), " has no attribute `", name, "`; it has ", known.empty() ? "none" : known);
}

void put(const at::Tensor& target, const ShardedTensor& t) {
  c10::AutoGradMode no_grad(false);
  const bool requires_grad = t.requires_grad();
  BelowSharding below;
  target.set_data(t.tensor());
  target.mutable_grad() = at::Tensor();
  if (target.requires_grad() != requires_grad) target.set_requires_grad(requires_grad);
}

}  // namespace

ShardedTensor shard_tensor(const at::Tensor& tensor, const AnyShardingSpec& spec, const ProcessGroup& group,
                           int64_t src_rank) {
  return shard_checked(tensor, spec, group, src_rank, "input tensor is not a contiguous Tensor");
}

void shard_parameter(torch::nn::Module& module, const std::string& name, const AnyShardingSpec& spec,
                     const ProcessGroup& group, int64_t src_rank) {
  at::Tensor tensor;
  check_on_all_ranks(group, "shard_parameter", [&](int64_t) { tensor = registered(module, name); });
  if (!tensor.defined()) tensor = registered(module, name);  // a process outside the group
  put(tensor, shard_checked(tensor, spec, group, src_rank, "param: " + name + " is not a contiguous Tensor"));
}

void set_parameter(torch::nn::Module& module, const std::string& name, const ShardedTensor& t) {
  put(registered(module, name), t);
}

}  // namespace dtensor::sharded
