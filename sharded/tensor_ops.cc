#include "sharded/tensor_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/enum.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <functional>

#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
namespace {

using OneTensor = std::function<at::Tensor(const at::Tensor&)>;

ShardedTensor per_shard(const ShardedTensor& st, const OneTensor& f, const TensorProperties& properties) {
  Parts parts = parts_of(st);
  parts.metadata.tensor_properties = properties;
  for (auto& of_rank : parts.shards) {
    for (Shard& shard : of_rank) shard.tensor = f(shard.tensor);
  }
  return make_sharded_tensor(std::move(parts));
}

const ShardedTensor& in_place(const ShardedTensor& st, const std::function<void(at::Tensor&)>& f) {
  c10::AutoGradMode no_grad(false);
  for (auto& of_rank : st.state().shards) {
    for (Shard& shard : of_rank) f(shard.tensor);
  }
  return st;
}

bool compare(const char* op, const at::Tensor& first, const at::Tensor& second,
             const std::function<bool(const at::Tensor&, const at::Tensor&)>& same) {
  TORCH_CHECK_TYPE(is_sharded(first) && is_sharded(second), "Both arguments to torch.", op,
                   " need to be of type ShardedTensor");
  const ShardedTensor a(first), b(second);
  const ProcessGroup& group = a.process_group();
  TORCH_CHECK(group == b.process_group(),
              "All distributed tensors should use the same ProcessGroup if used together in an op. Found ",
              group.to_string(), " and ", b.process_group().to_string());
  const auto rank_texts = exchange_texts(group, op, [&](int64_t rank) {
    const auto &x = a.local_shards(rank), &y = b.local_shards(rank);
    bool equal = a.metadata() == b.metadata() && x.size() == y.size();
    for (size_t i = 0; equal && i < x.size(); ++i)
      equal = x[i].metadata == y[i].metadata && x[i].tensor.scalar_type() == y[i].tensor.scalar_type() &&
              x[i].tensor.sizes() == y[i].tensor.sizes() && same(x[i].tensor, y[i].tensor);
    return std::string(equal ? "" : "differs");
  });
  return std::all_of(rank_texts.begin(), rank_texts.end(), [](const std::string& text) { return text.empty(); });
}

}  // namespace

ShardedTensor clone(const ShardedTensor& st, c10::MemoryFormat format) {
  TORCH_CHECK(format == c10::MemoryFormat::Preserve, "Only support torch.preserve_format for ShardedTensor! Found ",
              format);
  return per_shard(
      st, [](const at::Tensor& t) { return t.clone(); }, st.metadata().tensor_properties);
}

ShardedTensor deepcopy(const ShardedTensor& st) {
  const auto copy = [](const at::Tensor& t) {
    at::Tensor result = t.detach().clone().set_requires_grad(t.requires_grad());
    if (t.is_leaf() && t.grad().defined()) result.mutable_grad() = t.grad().clone();
    return result;
  };
  return per_shard(st, copy, st.metadata().tensor_properties);
}

const ShardedTensor& copy_(const ShardedTensor& to, const ShardedTensor& from) {
  const auto &a = to.state().shards, &b = from.state().shards;
  bool same = to.metadata().shards_metadata == from.metadata().shards_metadata && a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = a[i].size() == b[i].size();
  TORCH_CHECK(same, "inplace copy can only happen between two ShardedTensor with same metadata!");
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].size(); ++k) a[i][k].tensor.copy_(b[i][k].tensor);
  }
  return to;
}

ShardedTensor detach(const ShardedTensor& st) {
  TensorProperties properties = st.metadata().tensor_properties;
  properties.requires_grad = false;
  return per_shard(
      st, [](const at::Tensor& t) { return t.detach(); }, properties);
}

const ShardedTensor& requires_grad_(const ShardedTensor& st, bool requires_grad) {
  if (st.requires_grad() == requires_grad) return st;
  for (auto& of_rank : st.state().shards) {
    for (Shard& shard : of_rank) shard.tensor.set_requires_grad(requires_grad);
  }
  st.state().metadata.tensor_properties.requires_grad = requires_grad;
  BelowSharding below;
  st.tensor().set_requires_grad(requires_grad);
  return st;
}

ShardedTensor type_as(const ShardedTensor& st, const at::Tensor& like) {
  TORCH_CHECK_VALUE(like.defined(), "Needs to give a Tensor or ShardedTensor to cast type as!");
  const c10::ScalarType dtype = is_sharded(like) ? ShardedTensor(like).dtype() : like.scalar_type();
  if (dtype == st.dtype()) return st;
  TensorProperties properties = st.metadata().tensor_properties;
  properties.dtype = dtype;
  properties.requires_grad &= at::isFloatingType(dtype) || at::isComplexType(dtype);
  return per_shard(
      st, [&](const at::Tensor& t) { return t.to(dtype); }, properties);
}

const ShardedTensor& uniform_(const ShardedTensor& st, double from, double to) {
  return in_place(st, [&](at::Tensor& t) { t.uniform_(from, to); });
}

const ShardedTensor& normal_(const ShardedTensor& st, double mean, double std) {
  return in_place(st, [&](at::Tensor& t) { t.normal_(mean, std); });
}

const ShardedTensor& constant_(const ShardedTensor& st, const c10::Scalar& value) {
  return in_place(st, [&](at::Tensor& t) { t.fill_(value); });
}

const ShardedTensor& kaiming_uniform_(const ShardedTensor& st, double a, FanMode mode,
                                      const std::string& nonlinearity) {
  static const std::map<std::string, torch::nn::init::NonlinearityType> kKnown = {
      {"linear", torch::kLinear}, {"conv1d", torch::kConv1D},       {"conv2d", torch::kConv2D},
      {"conv3d", torch::kConv3D}, {"sigmoid", torch::kSigmoid},     {"tanh", torch::kTanh},
      {"relu", torch::kReLU},     {"leaky_relu", torch::kLeakyReLU}};
  const auto known = kKnown.find(nonlinearity);
  TORCH_CHECK_VALUE(known != kKnown.end(), "Unsupported nonlinearity ", nonlinearity);
  torch::nn::init::FanModeType fan = torch::kFanIn;
  if (mode == FanMode::kFanOut) fan = torch::kFanOut;
  return in_place(st, [&](at::Tensor& t) {
    if (t.numel() > 0) torch::nn::init::kaiming_uniform_(t, a, fan, known->second);
  });
}

bool equal(const at::Tensor& a, const at::Tensor& b) {
  return compare("equal", a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

bool allclose(const at::Tensor& a, const at::Tensor& b, double rtol, double atol, bool equal_nan) {
  return compare("allclose", a, b,
                 [&](const at::Tensor& x, const at::Tensor& y) { return at::allclose(x, y, rtol, atol, equal_nan); });
}

}  // namespace dtensor::sharded
