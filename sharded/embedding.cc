#include "sharded/embedding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "dtensor/dispatch_key.h"
#include "sharded/chunk_sharding_spec.h"
#include "sharded/lookup_tables.h"
#include "sharded/op_registry.h"
#include "sharded/remote_shard.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

struct OpName {
  const char* op;      // in reports
  const char* module;  // in texts
};
constexpr OpName kEmbedding{"sharded::embedding", "nn.Embedding"};
constexpr OpName kEmbeddingBag{"sharded::embedding_bag", "nn.EmbeddingBag"};

// A table that lies on one rank is one cut by columns of which this rank has all, so that others send nothing.
void take_as_columns(TableParts& table) {
  const auto holds = [](const IndexRange& window) { return window.size > 0; };
  if (table.dim == 1 || std::count_if(table.windows.begin(), table.windows.end(), holds) != 1) return;
  table.dim = 1;
  for (IndexRange& window : table.windows) window = window.size > 0 ? IndexRange{0, table.columns} : IndexRange{};
}

TableParts parts_of_table(const ShardedTensor& weight, const OpName& name) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "Weight needs to have exactly 2 dims: it has the shape ", weight.sizes());
  const auto* spec = weight.sharding_spec().as<ChunkShardingSpec>();
  TORCH_CHECK_NOT_IMPLEMENTED(spec != nullptr, "Only ChunkShardingSpec supported for ShardedTensor ops! It is ",
                              weight.sharding_spec()->to_string());
  const int64_t dim = spec->dim() < 0 ? spec->dim() + 2 : spec->dim();
  TORCH_CHECK(dim == 0 || dim == 1, name.module, " weight sharded on dim ", spec->dim(), " not supported!");
  TableParts table;
  table.group = weight.process_group();
  table.dim = dim;
  table.rows = weight.sizes()[0];
  table.columns = weight.sizes()[1];
  table.requires_grad = weight.requires_grad();
  table.windows.resize(table.group.size());
  std::vector<int64_t> shards(table.group.size());
  for (const ShardMetadata& m : weight.metadata().shards_metadata) {
    const int64_t position = table.group.group_rank(rank_of(*m.placement, table.group.world()));
    TORCH_CHECK(++shards[position] == 1, "Only one local shard supported! Rank ", table.group.ranks()[position],
                " has several");
    table.windows[position] = {m.shard_offsets[dim], m.shard_sizes[dim]};
  }
  for (int64_t rank : table.group.owned_ranks()) {
    const auto& own = weight.local_shards(rank);
    table.parts.push_back(own.empty() ? at::Tensor() : own[0].tensor);
    table.options = at::TensorOptions().dtype(weight.dtype()).device(table.group.world().device(rank));
  }
  take_as_columns(table);
  return table;
}

void check_options(const EmbeddingOptions& o, int64_t rows, const OpName& name) {
  TORCH_CHECK(!o.scale_grad_by_freq, name.module, " weight sharded with flag on \"scale_grad_by_freq\" not supported!");
  TORCH_CHECK(!o.sparse, name.module, " weight sharded with flag on \"sparse\" not supported!");
  TORCH_CHECK_VALUE(!o.max_norm || *o.max_norm > 0, "\"max_norm\" must be larger than zero! It is ",
                    o.max_norm.value_or(0));
  if (!o.padding_idx) return;
  TORCH_CHECK_VALUE(*o.padding_idx >= -rows && *o.padding_idx < rows, "padding_idx ", *o.padding_idx,
                    " must be within the table's ", rows, " rows");
}

TableRequest request_of(const ShardedTensor& weight, const EmbeddingOptions& o, Pooling pooling, const OpName& name) {
  TableRequest request;
  request.table = parts_of_table(weight, name);
  request.pooling = pooling;
  request.padding_idx = o.padding_idx;
  if (o.padding_idx && *o.padding_idx < 0) *request.padding_idx += request.table.rows;
  request.max_norm = o.max_norm;
  request.norm_type = o.norm_type;
  return request;
}

void check_count(size_t given, const ProcessGroup& group, const OpName& name) {
  TORCH_CHECK_VALUE(given == group.owned_ranks().size(), "[", name.op, "] ", given, " inputs for ",
                    group.owned_ranks().size(), " ranks: pass one per rank of the group that this process owns");
}

// `own` for the first owned rank, and `nothing` for the others.
template <typename T>
std::vector<T> of_first_rank(const ProcessGroup& group, const T& own, const T& nothing) {
  std::vector<T> result(group.owned_ranks().size(), nothing);
  if (!result.empty()) result[0] = own;
  return result;
}

at::Tensor first_of(const std::vector<at::Tensor>& results, const OpName& name) {
  TORCH_CHECK(!results.empty(), "[", name.op, "] this process has no rank of the table's group");
  return results[0];
}

at::Tensor no_indices() {
  const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);  // also inside a MeshScope
  return at::empty({0}, at::TensorOptions().dtype(at::kLong));
}

// The input of a rank that looks up nothing.
BagInput no_bags(const BagInput& like, bool include_last_offset) {
  const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);
  const auto options = at::TensorOptions().dtype(at::kLong);
  BagInput none;
  none.input = at::empty({0}, options);
  none.offsets = at::zeros({include_last_offset ? 1 : 0}, options);
  if (like.per_sample_weights.defined()) none.per_sample_weights = like.per_sample_weights.new_empty({0});
  return none;
}

void check_weights(const BagInput& input, const ShardedTensor& weight) {
  if (!input.per_sample_weights.defined()) return;
  TORCH_CHECK_VALUE(input.per_sample_weights.scalar_type() == weight.dtype(), "per_sample_weights have dtype ",
                    input.per_sample_weights.scalar_type(), ", the table ", weight.dtype());
}

}  // namespace

std::vector<at::Tensor> embedding(const std::vector<at::Tensor>& inputs, const ShardedTensor& weight,
                                  const EmbeddingOptions& options) {
  const TableRequest request = request_of(weight, options, Pooling::kNone, kEmbedding);
  const auto bags_of = [&](size_t i) {
    check_count(inputs.size(), weight.process_group(), kEmbedding);
    check_options(options, request.table.rows, kEmbedding);
    return std::vector<BagBatch>{as_single_rows(inputs[i])};
  };
  std::vector<at::Tensor> rows = lookup_tables({request}, bags_of, options.same_sizes, kEmbedding.op)[0];
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int64_t> shape = inputs[i].sizes().vec();
    shape.push_back(request.table.columns);
    rows[i] = rows[i].view(shape);
  }
  return rows;
}

at::Tensor embedding(const at::Tensor& input, const ShardedTensor& weight, const EmbeddingOptions& options) {
  const at::Tensor nothing = no_indices();
  return first_of(embedding(of_first_rank(weight.process_group(), input, nothing), weight, options), kEmbedding);
}

std::vector<std::vector<at::Tensor>> embedding_bags(const std::vector<BagTable>& tables) {
  std::vector<TableRequest> requests;
  bool same_sizes = true;
  for (const BagTable& t : tables) {
    requests.push_back(request_of(t.weight, t.options, pooling_of(t.options.mode), kEmbeddingBag));
    same_sizes &= t.options.same_sizes;
    TORCH_CHECK(requests.back().table.group == requests[0].table.group,
                "All distributed tensors should use the same ProcessGroup if used together in an op.");
  }
  const auto bags_of = [&](size_t i) {
    std::vector<BagBatch> bags;
    for (size_t t = 0; t < tables.size(); ++t) {
      check_count(tables[t].inputs.size(), requests[t].table.group, kEmbeddingBag);
      check_options(tables[t].options, requests[t].table.rows, kEmbeddingBag);
      check_weights(tables[t].inputs[i], tables[t].weight);
      bags.push_back(as_bags(tables[t].inputs[i], tables[t].options));
    }
    return bags;
  };
  return lookup_tables(requests, bags_of, same_sizes, kEmbeddingBag.op);
}

std::vector<at::Tensor> embedding_bag(const std::vector<BagInput>& inputs, const ShardedTensor& weight,
                                      const EmbeddingBagOptions& options) {
  return embedding_bags({{weight, options, inputs}})[0];
}

at::Tensor embedding_bag(const BagInput& input, const ShardedTensor& weight, const EmbeddingBagOptions& options) {
  const BagInput nothing = no_bags(input, options.include_last_offset);
  return first_of(embedding_bag(of_first_rank(weight.process_group(), input, nothing), weight, options), kEmbeddingBag);
}

namespace {

// `torch::embedding(weight, ...)`: the arguments of ATen's operators, some of them left out.
template <typename T>
T argument(const OpArguments& args, size_t i, T otherwise) {
  return i < args.size() && !args[i].isNone() ? args[i].to<T>() : otherwise;
}
at::Tensor tensor_argument(const OpArguments& args, size_t i) { return argument(args, i, at::Tensor()); }

ShardedTensor weight_of(const OpArguments& args) {
  const at::Tensor weight = tensor_argument(args, 0);
  TORCH_CHECK_TYPE(is_sharded(weight), "weight needs to be ShardedTensor");
  return ShardedTensor(weight);
}

c10::IValue run_embedding(const OpTypes&, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
  EmbeddingOptions options;
  if (const int64_t padding = argument<int64_t>(args, 2, -1); padding >= 0) options.padding_idx = padding;
  options.scale_grad_by_freq = argument(args, 3, false);
  options.sparse = argument(args, 4, false);
  return embedding(tensor_argument(args, 1), weight_of(args), options);
}

c10::IValue run_embedding_bag(const OpTypes&, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
  static const std::vector<std::string> modes = {"sum", "mean", "max"};
  EmbeddingBagOptions options;
  options.scale_grad_by_freq = argument(args, 3, false);
  const int64_t mode = argument<int64_t>(args, 4, 0);
  TORCH_CHECK_VALUE(mode >= 0 && mode < 3, "mode '", mode, "' is not supported");
  options.mode = modes[mode];
  options.sparse = argument(args, 5, false);
  options.include_last_offset = argument(args, 7, false);
  if (args.size() > 8 && !args[8].isNone()) options.padding_idx = args[8].toInt();
  const BagInput input{tensor_argument(args, 1), tensor_argument(args, 2), tensor_argument(args, 6)};
  const at::Tensor none = no_indices();
  return c10::ivalue::Tuple::create({embedding_bag(input, weight_of(args), options), none, none, none});
}

c10::IValue run_embedding_renorm(const OpTypes&, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
  const ShardedTensor weight = weight_of(args);
  EmbeddingOptions options;
  options.max_norm = args.at(2).toDouble();
  options.norm_type = args.at(3).toDouble();
  const TableRequest request = request_of(weight, options, Pooling::kNone, kEmbedding);
  const auto inputs = of_first_rank(weight.process_group(), tensor_argument(args, 1), no_indices());
  renormalize_table(
      request,
      [&](size_t i) {
        check_options(options, request.table.rows, kEmbedding);
        return std::vector<BagBatch>{as_single_rows(inputs[i])};
      },
      kEmbedding.op);
  return args[0];
}

[[maybe_unused]] const bool embedding_operators_registered = [] {
  register_builtin_op("embedding", run_embedding);
  register_builtin_op("embedding_bag", run_embedding_bag);
  register_builtin_op("embedding_renorm_", run_embedding_renorm);
  return true;
}();

}  // namespace
}  // namespace dtensor::sharded
